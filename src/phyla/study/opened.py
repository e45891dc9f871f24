"""A study that is open in its store: made there, or found and compared with what is stored."""

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from phyla import settings
from phyla.checkpoints import LocalCheckpoints
from phyla.controller import Sightings, differences, suite_differences
from phyla.errors import StateError, StudyChanged
from phyla.local_client import LocalClient, claim_checkpoints, open_checkpoints
from phyla.records import StudyRecord, StudyState
from phyla.store import Store, open_store
from phyla.study.opening import checked_population, find_population, find_study
from phyla.study.overwriting import say_if_edited
from phyla.study.progress import lease_s
from phyla.study.reconciling import reconcile
from phyla.study.starts import check_usable

if TYPE_CHECKING:
    from phyla.study.study import Study


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedStudy:
    """What this process works on a study with.

    Attributes:
        store: where the study is.
        record: the study, as it was when it was opened.
        repository: its checkpoints.
        client: what workers of this process ask.
        references: names of the functions that worker processes import; None where there are none to start.
        works: whether its checkpoint directory was claimed, so that it may be worked on.
    """

    store: Store
    record: StudyRecord
    repository: LocalCheckpoints
    client: LocalClient
    references: tuple[str | None, str | None]
    works: bool

    def claim(self) -> None:
        """Make sure, before anything is decided, that the checkpoint directory is there and the study's.

        Raises:
            CheckpointsAbsent: it is not there, or something else is in its place.
        """
        unknown = claim_checkpoints(self.store, self.record, self.repository)
        if unknown:
            warnings.warn(
                f"{len(unknown)} directories among the checkpoints of study {self.record.name!r} are not known "
                f"to this store, and are left alone; phyla doctor {self.record.name} lists them",
                stacklevel=2,
            )


def open_study(
    study: "Study",
    references: tuple[str | None, str | None],
    *,
    works: bool,
    store: Store | None = None,
) -> OpenedStudy:
    """Make a study in its store, or compare it with the one that exists there.

    Args:
        study: the study.
        references: names of the functions that worker processes import.
        works: whether the study is worked on; else it is only looked at, and its checkpoints may be elsewhere.
        store: its store, if that is open already.

    Raises:
        CheckpointsAbsent: its checkpoint directory is not there, or something else is in its place.
        StudyChanged: it exists with other settings.
        ConfigurationError: it cannot be written down, or cannot take a change, or its name is another run's.
        CheckpointError: it starts from something that is no checkpoint.
        StoreError: the database failed.
    """
    config = study.config(references)
    if store is None:
        store = open_store(study.places.storage)
    found = find_population(store, study.name)
    repository = open_checkpoints(store, study.name, study.places.checkpoints(study.name))
    if works:
        # Before anything is stored: nothing is decided where the checkpoints are not to be seen.
        claim_checkpoints(store, found, repository)
    population_size = study.rules.strategy.population_size
    if study.start_from and found is None:
        # Raises before the study is stored.
        check_usable(study.start_from, population_size)
    record = checked_population(store, store.create_study(study.name, config, study.seed, population_size))
    before = record
    record = reconcile(store, record, config, study)
    if record.state is StudyState.COMPLETED:
        say_if_edited(before, study)
    client = LocalClient(store, record, study.rules, repository)
    if study.rules.suites:
        # Fills in what suites have gained.
        Sightings(store, record, study.rules.suites).backfill()
    if works:
        client.start_from(study.start_from, settings.system_clock)
    return OpenedStudy(
        store=store,
        record=record,
        repository=repository,
        client=client,
        references=references,
        works=works,
    )


def join_study(study: "Study", references: tuple[str | None, str | None]) -> OpenedStudy:
    """Open a study that exists to add workers to it; creates and changes nothing.

    Raises:
        StudyNotFound: there is no such study.
        StudyChanged: it has another configuration than the file; names what differs.
        StateError: it is stopped, or has failed.
        StoreError: the database failed.
    """
    given = study.config(references)
    store, record = find_study(study.name, study.places)
    changed = {**differences(record.config, given), **suite_differences(record.config, given)}
    if changed:
        store.close()
        listing = "\n".join(f"  {name}: it has {old!r}, given {new!r}" for name, (old, new) in changed.items())
        raise StudyChanged(
            f"study {study.name!r} in {store.url} is not the one that the study file defines:\n{listing}\n"
            "A worker changes nothing: use the file that the study is run with, or give the study these settings "
            "with: phyla change FILE.py"
        )
    if record.state in (StudyState.STOPPED, StudyState.FAILED):
        store.close()
        raise StateError(
            f"study {study.name!r} is {record.state}: {record.message}. Let it go on first with: "
            f"phyla run FILE.py, or phyla change {study.name}"
        )
    # Workers that join keep their leases as long as those of the run.
    study.rules = replace(study.rules, lease_s=lease_s(record.config))
    repository = open_checkpoints(store, study.name, study.places.checkpoints(study.name))
    client = LocalClient(store, replace(record, config=given), study.rules, repository, joins=True)
    return OpenedStudy(
        store=store,
        record=record,
        repository=repository,
        client=client,
        references=references,
        works=True,
    )
