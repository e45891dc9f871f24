"""Controllers where their store is: in this process, or at a service that the store is reached through."""

from collections.abc import Sequence

from phyla.configuration import settings_digest
from phyla.controller.controller import Controller
from phyla.controller.sightings import Sightings
from phyla.controller.study_records import Housekeeping
from phyla.evaluation import Suite
from phyla.machine import Rules
from phyla.records import JsonObject, StudyRecord
from phyla.store import RemoteStore, Store


def controller_of(
    store: Store, study: int, rules: Rules, config: JsonObject | None = None, *, source: int | None = None
) -> Controller:
    """Return the controller of a study; one at a service goes by the rules that are stored there."""
    if isinstance(store, RemoteStore):
        return store.part(Controller, study, settings=None if config is None else settings_digest(config))
    return Controller(store, study, rules, config, source=source)


def housekeeping_of(store: Store, study: int) -> Housekeeping:
    """Return what keeps the records of a study."""
    return store.part(Housekeeping, study) if isinstance(store, RemoteStore) else Housekeeping(store, study)


def sightings_of(store: Store, study: StudyRecord, suites: Sequence[Suite]) -> Sightings:
    """Return what takes in the checkpoints of a study."""
    return store.part(Sightings, study.id) if isinstance(store, RemoteStore) else Sightings(store, study, suites)
