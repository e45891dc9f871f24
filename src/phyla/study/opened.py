"""A study that is open in its store: made there, or found and compared with what is stored."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from phyla import settings
from phyla.checkpoints import LocalCheckpoints
from phyla.controller import RunController
from phyla.errors import ConfigurationError
from phyla.local_client import LocalClient
from phyla.records import RunKind, RunRecord, StudyRecord
from phyla.store import Store, open_store
from phyla.study.overwriting import say_if_edited
from phyla.study.reconciling import reconcile
from phyla.study.starts import check_usable
from phyla.worker import worker_name

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
        worker: name of this process as a worker.
        references: names of the functions that worker processes import; None where there are none to start.
        run: the run under which its checkpoints are evaluated; None without suites.
    """

    store: Store
    record: StudyRecord
    repository: LocalCheckpoints
    client: LocalClient
    worker: str
    references: tuple[str | None, str | None]
    run: RunRecord | None


def open_study(study: "Study", references: tuple[str | None, str | None], *, extend: bool) -> OpenedStudy:
    """Make a study in its store, or compare it with the one that exists there.

    Args:
        study: the study.
        references: names of the functions that worker processes import; None where there are none to start.
        extend: take over what may change into a study that exists.

    Raises:
        StudyChanged: it exists with another configuration.
        ConfigurationError: it cannot be written down, or cannot take a change, or its name is another run's.
        CheckpointError: it starts from something that is no checkpoint.
        StoreError: the database failed.
    """
    config = study.config(references)
    store = open_store(study.places.storage)
    population_size = study.rules.strategy.population_size
    if study.start_from and store.find_study(study.name) is None:
        # What cannot be imported shall leave no study behind.
        check_usable(study.start_from, population_size)
    record = store.create_study(study.name, config, study.seed, population_size)
    say_if_edited(store, record, study)
    record = reconcile(store, record, config, study, extend=extend)
    repository = LocalCheckpoints(study.places.checkpoints(study.name))
    client = LocalClient(store, record, study.rules, repository)
    client.start_from(study.start_from, settings.system_clock)
    return OpenedStudy(
        store=store,
        record=record,
        repository=repository,
        client=client,
        worker=worker_name(),
        references=references,
        run=_run_record(study, store, record) if study.rules.suites else None,
    )


def _run_record(study: "Study", store: Store, record: StudyRecord) -> RunRecord:
    """Return the run under which the study's checkpoints are evaluated; fill in what suites have gained."""
    run = store.create_run(study.name, RunKind.STUDY, {}, study=record.id)
    if run.study != record.id:
        raise ConfigurationError(
            f"{store.url} has a run called {study.name!r} that watches {run.location or 'another study'}; give "
            "the study another name"
        )
    controller = RunController(store, run, study.rules.suites, lease_s=study.rules.lease_s, rules=study.rules)
    controller.backfill()
    return run
