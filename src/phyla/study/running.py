"""Running a study until it ends, in this process or in worker processes; resuming it, and interrupting it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, final

from phyla import plugins, settings
from phyla.errors import CheckpointsAbsent, CheckpointStorageFailed, ConfigurationError, StudyFailed
from phyla.launchers import WorkerSpec, get_launcher, gpu_environments
from phyla.records import Aim, StudyState
from phyla.study.findings import say_nothing_to_do
from phyla.study.leftovers import others_at_work, remove_outputs, take_back
from phyla.study.opened import OpenedStudy
from phyla.study.progress import Failures, best_of
from phyla.study.results import Results
from phyla.study.working import check_workers, checked_kinds, work_here
from phyla.worker import Launch, Worker, population_worker

if TYPE_CHECKING:
    from phyla.study.study import Study


def function_names(study: "Study") -> tuple[str, str | None]:
    """Return the names under which worker processes import the training function and the setup.

    Raises:
        NotImportable: they could not find one of them.
    """
    assert study.train is not None
    return plugins.reference(study.train), None if study.setup is None else plugins.reference(study.setup)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Who works on a study, and who is told.

    Attributes:
        kinds: what workers do.
        environments: of each worker process; without any, this process works.
        evaluators: how many of those, the last ones, only evaluate.
        stall_timeout_s: seconds without progress before a worker process is ended; None never ends one.
        yields: whether `trial.report()` may run an eval task that waits.
        on_progress: called many times a second in this process; if it works, after every trial.
        on_interrupt: called for each Ctrl-C or SIGTERM inside the signal handler.
    """

    kinds: frozenset[str]
    environments: Sequence[Mapping[str, str]]
    evaluators: int = 0
    stall_timeout_s: float | None = None
    yields: bool = False
    on_progress: Callable[[Results], None] | None
    on_interrupt: Callable[[], None]


def crew_of(
    study: "Study",
    workers: int,
    kinds: Sequence[str],
    gpus_per_worker: float,
    *,
    evaluators: int = 0,
    stall_timeout_s: float | None = None,
    yields: bool = False,
    on_progress: Callable[[Results], None] | None,
    on_interrupt: Callable[[], None],
) -> Crew:
    """Return who is to work on a study, once it is clear that they can.

    Raises:
        ConfigurationError: they cannot.
    """
    if plugins.reading_study_file():
        raise plugins.StudyFileRead
    if study.train is None:
        raise ConfigurationError("Study(train=...) is needed to run; without it use ask() and tell()")
    check_workers(study.places, workers=workers, evaluators=evaluators)
    wanted = checked_kinds(kinds)
    if "train" not in wanted and not study.rules.suites:
        raise ConfigurationError(f"kinds={kinds!r}: this study has no suites= to evaluate")
    if evaluators and not (workers and study.rules.suites):
        raise ConfigurationError(
            f"evaluators={evaluators}: they need suites= to evaluate, and workers= of at least 1 that train"
        )
    number = isinstance(stall_timeout_s, (int, float)) and not isinstance(stall_timeout_s, bool)
    if stall_timeout_s is not None and not (number and stall_timeout_s > 0):
        raise ConfigurationError(f"stall_timeout_s={stall_timeout_s!r}: must be above 0, or None")
    return Crew(
        kinds=wanted,
        environments=gpu_environments(workers + evaluators, gpus_per_worker),
        evaluators=evaluators,
        stall_timeout_s=stall_timeout_s,
        yields=yields,
        on_progress=on_progress,
        on_interrupt=on_interrupt,
    )


def run_study(study: "Study", opened: OpenedStudy, crew: Crew) -> Results:
    """Train until the study ends; resumes what an earlier run left.

    Raises:
        StudyChanged: it was given other settings meanwhile.
        StudyFailed: the study stopped itself.
        CheckpointsAbsent: the directory of its checkpoints is not there, or something else is in its place.
        KeyboardInterrupt: a person stopped it.
        StoreError: the database failed.
    """
    with Launch(study.places.locks, opened.store.url, [study.name]) as launch:
        return _run(study, opened, launch, crew)


def _run(study: "Study", opened: OpenedStudy, launch: Launch, crew: Crew) -> Results:
    results = Results(opened.store, opened.record, study.places)
    _resume(study, opened, launch)
    if results.state is StudyState.COMPLETED:
        with opened.store.reader(opened.record.id) as reader:
            say_nothing_to_do(reader)

    # Whoever is told of progress shows what failed.
    failures = Failures(settings.system_clock()) if crew.on_progress is None else None
    look = partial(study.lookout.look, opened.store, opened.record.id, failures=failures)

    def tick() -> None:
        look()
        if crew.on_progress is not None:
            crew.on_progress(results)

    try:
        finished = _work(study, opened, launch, crew, tick)
        look(at_once=True)
        opened.client.collect()
        opened.client.recover()
        if results.state is StudyState.COMPLETED:
            _verify_best(opened)
    except (CheckpointsAbsent, CheckpointStorageFailed) as error:
        _stop(opened, launch, str(error))
        raise
    _clean_outputs(study, opened)
    if not finished:
        _stop(opened, launch, "interrupted; run it again to resume")
        raise KeyboardInterrupt
    record = results.study()
    if record.state is StudyState.FAILED:
        raise StudyFailed(f"study {study.name!r} stopped itself: {record.message}")
    return results


def _stop(opened: OpenedStudy, launch: Launch, why: str) -> None:
    """Stop a study that is running, unless others are at work on it."""
    if opened.client.study().state is StudyState.RUNNING and not others_at_work(opened, launch):
        opened.store.set_state(opened.record.id, StudyState.STOPPED, why)


def add_workers(study: "Study", opened: OpenedStudy, crew: Crew) -> Results:
    """Train a study that others run, until it ends; changes nothing but by the work that is done.

    Raises:
        StudyChanged: it was given other settings meanwhile.
        StudyFailed: the workers cannot start, or die again and again.
        CheckpointsAbsent: the directory of its checkpoints is not there, or something else is in its place.
        KeyboardInterrupt: a person stopped these workers; the study goes on.
        StoreError: the database failed.
    """
    results = Results(opened.store, opened.record, study.places)

    def tick() -> None:
        study.lookout.look_at_metrics(opened.store, opened.record.id)
        if crew.on_progress is not None:
            crew.on_progress(results)

    if not opened.client.is_active():
        return results
    opened.claim()
    with Launch(study.places.locks, opened.store.url, [study.name]) as launch:
        if not _work(study, opened, launch, crew, tick):
            raise KeyboardInterrupt
    return results


def _resume(study: "Study", opened: OpenedStudy, launch: Launch) -> None:
    opened.claim()
    record = opened.client.study()
    if record.state in (StudyState.STOPPED, StudyState.FAILED):
        opened.store.set_state(record.id, StudyState.RUNNING)
    take_back(opened.store, opened.record.id, opened.client.lose_worker, launch)
    opened.client.recover()
    _clean_outputs(study, opened)


def _verify_best(opened: OpenedStudy) -> None:
    """Make sure that the best checkpoint, or all on the front, can be used; else the next best takes its place."""
    aim = Aim.from_config(opened.record.config)
    while True:
        with opened.store.reader(opened.record.id) as reader:
            found = [reader.checkpoint(trial.checkpoint or "") for trial in best_of(reader, aim)]
        if all(opened.client.verify(row) for row in found if row is not None):
            return


def _clean_outputs(study: "Study", opened: OpenedStudy) -> None:
    if study.rules.suites:
        # What cannot be removed now is removed after the next run.
        with opened.store.reader(opened.record.id) as reader, suppress(OSError):
            remove_outputs(reader, study.places.outputs(study.name))


def _work(study: "Study", opened: OpenedStudy, launch: Launch, crew: Crew, tick: Callable[[], None]) -> bool:
    """Work, here or in processes, until the study ends; return False when a person interrupted it."""
    if not crew.environments:
        name = launch.worker_name()
        return work_here(_worker(study, opened, crew, name), name, opened.client, crew.on_interrupt, on_trial=tick)
    launcher = get_launcher()(
        opened.client,
        _specs(study, opened, crew),
        launch=launch,
        environments=crew.environments,
        logs=study.places.logs(study.name),
        renew_s=study.rules.lease_s / 3,
        stall_timeout_s=crew.stall_timeout_s,
        on_tick=tick,
        on_interrupt=crew.on_interrupt,
    )
    return launcher.run()


def _worker(study: "Study", opened: OpenedStudy, crew: Crew, name: str) -> Worker:
    """Return the worker that this process is."""
    assert study.train is not None
    return population_worker(
        opened.client,
        opened.record,
        opened.repository,
        study.rules,
        study.train,
        study.setup,
        name=name,
        kinds=crew.kinds,
        work_root=study.places.work(study.name),
        outputs=study.places.outputs(study.name),
        log=study.places.logs(study.name) / "worker-0.log",
        renew_s=study.rules.lease_s / 3,
        yields=crew.yields,
    )


def _specs(study: "Study", opened: OpenedStudy, crew: Crew) -> list[WorkerSpec]:
    first_evaluator = len(crew.environments) - crew.evaluators
    config = study.config(opened.references)
    return [
        WorkerSpec(
            configs={study.name: config},
            storage=study.places.storage,
            checkpoints=str(study.places.checkpoints(study.name)),
            work_root=str(study.places.work(study.name)),
            outputs=str(study.places.outputs(study.name)),
            index=index,
            kinds=tuple(sorted(crew.kinds)) if index < first_evaluator else ("evaluate",),
            yields=crew.yields,
        )
        for index in range(len(crew.environments))
    ]
