"""The parts of a study, in this process or at the service of its store."""

from collections.abc import Sequence

from phyla.configuration import settings_digest
from phyla.controller.controller import Controller
from phyla.controller.sightings import Sightings
from phyla.controller.study_changes import StudyChanges
from phyla.controller.study_records import StudyRecords
from phyla.evaluation import Suite
from phyla.machine import Rules, TrainRules
from phyla.records import JsonObject, Role, StudyRecord
from phyla.store import Part, RemoteStore, Store

WORK = Part(
    name="work",
    kind=Controller,
    methods={
        Role.VIEWER: ("retention",),
        Role.WORKER: ("complete", "fail", "release", "renew", "lose_worker", "report", "save_progress"),
    },
)
CHANGES = Part(name="changes", kind=StudyChanges, methods={Role.OPERATOR: ("change",)})
RECORDS = Part(
    name="records",
    kind=StudyRecords,
    methods={
        Role.WORKER: ("mark_deleting", "set_checkpoints", "set_unusable", "fail_study", "set_directory"),
        Role.OPERATOR: ("import_checkpoints", "note_start", "store_config", "begin_deleting"),
    },
)
SIGHTINGS = Part(
    name="sightings",
    kind=Sightings,
    methods={
        Role.VIEWER: ("seen", "held"),
        Role.OPERATOR: ("observe", "gone", "note", "backfill", "drain", "evaluate_again", "retry"),
    },
)
PARTS = (WORK, CHANGES, RECORDS, SIGHTINGS)
"""The parts with remote methods, which a service runs on its own store."""


def controller_of(
    store: Store, study: int, rules: Rules, config: JsonObject | None = None, *, source: int | None = None
) -> Controller:
    """Return the controller of a study; at a service it uses the stored rules."""
    if isinstance(store, RemoteStore):
        return store.part(WORK, study, settings=None if config is None else settings_digest(config))
    return Controller(store, study, rules, config, source=source)


def changes_of(store: Store, study: int, rules: TrainRules) -> StudyChanges:
    """Return the part that changes settings; a service makes the rules from the settings that it receives."""
    return store.part(CHANGES, study) if isinstance(store, RemoteStore) else StudyChanges(store, study, rules)


def records_of(store: Store, study: int) -> StudyRecords:
    """Return the part that keeps the records of a study."""
    return store.part(RECORDS, study) if isinstance(store, RemoteStore) else StudyRecords(store, study)


def sightings_of(store: Store, study: StudyRecord, suites: Sequence[Suite]) -> Sightings:
    """Return the part that registers the checkpoints of a study."""
    return store.part(SIGHTINGS, study.id) if isinstance(store, RemoteStore) else Sightings(store, study, suites)
