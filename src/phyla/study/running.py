"""Running a study until it ends, in this process or in worker processes; resuming it, and interrupting it."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from phyla import plugins, settings
from phyla.checkpoints import advice_on
from phyla.errors import CheckpointsAbsent, CheckpointStorageFailed, ConfigurationError, StudyChanged, StudyFailed
from phyla.launchers import Launcher, WorkerSpec, get_launcher
from phyla.machine import Outdated
from phyla.records import Aim, StudyState
from phyla.study.findings import Findings, say_nothing_to_do
from phyla.study.interrupting import interrupts
from phyla.study.liveness import others_at_work, take_back
from phyla.study.opened import OpenedStudy
from phyla.study.outputs import remove_leftovers
from phyla.study.progress import best_of
from phyla.study.results import Results
from phyla.study.unaggregated import Unaggregated
from phyla.study.unreported import Unreported
from phyla.worker import (
    EvaluatedRun,
    Evaluator,
    Launch,
    StudySources,
    Trainer,
    Worker,
    WorkerContext,
)

if TYPE_CHECKING:
    from phyla.study.study import Study


MOST_WORKERS = 10_000
"""Processes of one run on this machine."""


def checked_kinds(study: "Study", workers: int, evaluators: int, kinds: Sequence[str]) -> frozenset[str]:
    """Return what workers do, once it is clear that such workers can run the study.

    Raises:
        ConfigurationError: they cannot.
    """
    if study.train is None:
        raise ConfigurationError("Study(train=...) is needed to run; without it use ask() and tell()")
    for name, count in (("workers", workers), ("evaluators", evaluators)):
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_WORKERS:
            raise ConfigurationError(
                f"{name}={count!r}: must be an integer of at least 0, at most {MOST_WORKERS:,}"
            )
    wanted = frozenset(kinds)
    if not wanted or not wanted <= {"train", "evaluate"}:
        raise ConfigurationError(f"kinds={kinds!r}: choose 'train', 'evaluate', or both")
    if "train" not in wanted and not study.rules.suites:
        raise ConfigurationError(f"kinds={kinds!r}: this study has no suites= to evaluate")
    if evaluators and not (workers and study.rules.suites):
        raise ConfigurationError(
            f"evaluators={evaluators}: they need suites= to evaluate, and workers= of at least 1 that train"
        )
    if workers and settings.in_worker():
        raise ConfigurationError(
            "study.run(workers=...) was called in a worker process, which would start workers without end; "
            'call it under `if __name__ == "__main__":`, or with workers=0 inside training code'
        )
    if workers and study.places.storage == "memory://":
        raise ConfigurationError(
            "storage='memory://' exists in this process only, where worker processes cannot see it; "
            "run with workers=0, or leave storage= out"
        )
    return wanted


def function_names(study: "Study") -> tuple[str, str | None]:
    """Return the names under which worker processes import the training function and the setup.

    Raises:
        NotImportable: they could not find one of them.
    """
    assert study.train is not None
    return plugins.reference(study.train), None if study.setup is None else plugins.reference(study.setup)


def run_study(
    study: "Study",
    opened: OpenedStudy,
    unreported: Unreported,
    *,
    kinds: frozenset[str],
    environments: Sequence[Mapping[str, str]],
    evaluators: int,
    stall_timeout_s: float | None,
    yield_at_report: bool,
    on_progress: Callable[[Results], None] | None,
    on_interrupt: Callable[[], None],
) -> Results:
    """Train until the study ends; resumes what an earlier run left.

    Args:
        study: the study.
        opened: the same, in its store.
        unreported: looks out for metrics that are not reported.
        kinds: what workers do.
        environments: one per worker process; without any, this process works.
        evaluators: how many of those, the last ones, only evaluate.
        stall_timeout_s: seconds without progress before a worker process is ended; None never ends one.
        yield_at_report: whether `trial.report()` may run an eval task that waits.
        on_progress: called many times a second in this process; if it works, after every trial.
        on_interrupt: called for each Ctrl-C or SIGTERM inside the signal handler.

    Raises:
        StudyChanged: it was given other settings meanwhile.
        StudyFailed: the study stopped itself.
        CheckpointsAbsent: the directory of its checkpoints is not there, or something else is in its place.
        KeyboardInterrupt: a person stopped it.
        StoreError: the database failed.
    """
    with Launch(study.places.locks, opened.store.url, [study.name]) as launch:
        return _run(
            study,
            opened,
            launch,
            unreported,
            kinds=kinds,
            environments=environments,
            evaluators=evaluators,
            stall_timeout_s=stall_timeout_s,
            yield_at_report=yield_at_report,
            on_progress=on_progress,
            on_interrupt=on_interrupt,
        )


def _run(
    study: "Study",
    opened: OpenedStudy,
    launch: Launch,
    unreported: Unreported,
    *,
    kinds: frozenset[str],
    environments: Sequence[Mapping[str, str]],
    evaluators: int,
    stall_timeout_s: float | None,
    yield_at_report: bool,
    on_progress: Callable[[Results], None] | None,
    on_interrupt: Callable[[], None],
) -> Results:
    results = Results(opened.store, opened.record, study.places)
    _resume(study, opened, launch)
    if results.state is StudyState.COMPLETED:
        with opened.store.reader(opened.record.id) as reader:
            say_nothing_to_do(reader)

    # Whoever is told of progress shows what failed.
    failed = {} if on_progress is not None else {"failures": results.failures(settings.system_clock())}
    findings = Findings(results.findings, **failed)
    unaggregated = Unaggregated(study.name, opened.run, tuple(suite.name for suite in study.rules.suites))

    def tick() -> None:
        unreported.look(opened.store, opened.record.id)
        unaggregated.look(opened.store)
        findings.look()
        if on_progress is not None:
            on_progress(results)

    try:
        if environments:
            launcher = _launcher(
                *(study, opened, launch, environments, kinds, evaluators, tick, on_interrupt),
                stall_timeout_s=stall_timeout_s,
                yields=yield_at_report,
            )
            finished = launcher.run()
        else:
            name = launch.worker_name()
            finished = _run_here(study, opened, name, kinds, tick, on_interrupt, yields=yield_at_report)
        unreported.look(opened.store, opened.record.id, at_once=True)
        unaggregated.look(opened.store, at_once=True)
        findings.look(at_once=True)
        opened.client.collect()
        opened.client.recover()
        if results.state is StudyState.COMPLETED:
            _verify_best(opened)
    except (CheckpointsAbsent, CheckpointStorageFailed) as error:
        if results.state is StudyState.RUNNING and not others_at_work(opened, launch):
            opened.store.set_state(opened.record.id, StudyState.STOPPED, str(error))
        raise
    _clean_outputs(study, opened)
    record = results.study()
    if not finished:
        if record.state is StudyState.RUNNING and not others_at_work(opened, launch):
            opened.store.set_state(record.id, StudyState.STOPPED, "interrupted; run it again to resume")
        raise KeyboardInterrupt
    if record.state is StudyState.FAILED:
        raise StudyFailed(f"study {study.name!r} stopped itself: {record.message}")
    return results


def add_workers(
    study: "Study",
    opened: OpenedStudy,
    unreported: Unreported,
    *,
    kinds: frozenset[str],
    environments: Sequence[Mapping[str, str]],
    on_progress: Callable[[Results], None] | None,
    on_interrupt: Callable[[], None],
) -> Results:
    """Train a study that others run, until it ends; changes nothing but by the work that is done.

    Args: as for `run_study`.

    Raises:
        StudyChanged: it was given other settings meanwhile.
        StudyFailed: the workers cannot start, or die again and again.
        CheckpointsAbsent: the directory of its checkpoints is not there, or something else is in its place.
        KeyboardInterrupt: a person stopped these workers; the study goes on.
        StoreError: the database failed.
    """
    results = Results(opened.store, opened.record, study.places)

    def tick() -> None:
        unreported.look(opened.store, opened.record.id)
        if on_progress is not None:
            on_progress(results)

    if not opened.client.is_active():
        return results
    opened.claim()
    with Launch(study.places.locks, opened.store.url, [study.name]) as launch:
        if environments:
            finished = _launcher(study, opened, launch, environments, kinds, 0, tick, on_interrupt).run()
        else:
            finished = _run_here(study, opened, launch.worker_name(), kinds, tick, on_interrupt)
    if not finished:
        raise KeyboardInterrupt
    return results


def _resume(study: "Study", opened: OpenedStudy, launch: Launch) -> None:
    opened.claim()
    record = opened.client.study()
    if record.state in (StudyState.STOPPED, StudyState.FAILED):
        opened.store.set_state(record.id, StudyState.RUNNING)
    take_back(opened, launch)
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
    if opened.run is not None:
        # What cannot be removed now is removed after the next run.
        with opened.store.evaluations(opened.run) as evaluations, suppress(OSError):
            remove_leftovers(evaluations, study.places.outputs(study.name))


# In this process


def _run_here(
    study: "Study",
    opened: OpenedStudy,
    name: str,
    kinds: frozenset[str],
    tick: Callable[[], None],
    on_interrupt: Callable[[], None],
    *,
    yields: bool = False,
) -> bool:
    """Work in this process; return whether nobody interrupted it."""
    worker = _worker(study, opened, kinds, name, yields=yields)
    with interrupts(worker.stop, on_interrupt) as interrupted:
        try:
            ended = worker.run(on_trial=tick)
        except BaseException:
            opened.client.lose_worker(name, "its run was interrupted", counts=False)
            raise
    if isinstance(ended, Outdated):
        raise StudyChanged(ended.why)
    return not interrupted.is_set()


def _worker(study: "Study", opened: OpenedStudy, kinds: frozenset[str], name: str, *, yields: bool) -> Worker:
    """Return the worker that this process is."""
    assert study.train is not None
    work_root = study.places.work(study.name)
    state = None
    if study.setup is not None:
        directory = work_root / "worker-0"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StudyFailed(f"cannot make {directory}: {error.strerror}; {advice_on(error)}") from error
        state = study.setup(WorkerContext(name=name, index=0, study=study.name, working_dir=directory))
    evaluator = None
    if study.rules.suites and "evaluate" in kinds:
        own = EvaluatedRun(
            suites=study.rules.suites,
            sources=StudySources(opened.repository),
            outputs=study.places.outputs(study.name),
            stop=partial(opened.client.end_study, StudyState.FAILED),
        )
        evaluator = Evaluator(
            opened.client,
            lambda run: own,
            work_root=work_root,
            name=name,
            clock=settings.system_clock,
            timer=time.perf_counter,
            state=state,
        )
    trainer = None
    if "train" in kinds:
        trainer = Trainer(
            opened.client,
            opened.repository,
            study.train,
            metrics=study.rules.reported_metrics,
            work_root=work_root,
            clock=settings.system_clock,
            state=state,
            log=study.places.logs(study.name) / "worker-0.log",
        )
    return Worker(
        opened.client,
        name=name,
        clock=settings.system_clock,
        trainer=trainer,
        evaluator=evaluator,
        yields=yields,
        renew_s=study.rules.lease_s / 3,
    )


# In worker processes


def _launcher(
    study: "Study",
    opened: OpenedStudy,
    launch: Launch,
    environments: Sequence[Mapping[str, str]],
    kinds: frozenset[str],
    evaluators: int,
    tick: Callable[[], None],
    on_interrupt: Callable[[], None],
    *,
    stall_timeout_s: float | None = None,
    yields: bool = False,
) -> Launcher:
    """Return the supervisor of worker processes, which starts them when it is run."""
    train, setup = opened.references
    assert train is not None
    first_evaluator = len(environments) - evaluators
    config = study.config(opened.references)
    specs = [
        WorkerSpec(
            study=study.name,
            storage=study.places.storage,
            checkpoints=str(study.places.checkpoints(study.name)),
            work_root=str(study.places.work(study.name)),
            train=train,
            setup=setup,
            index=index,
            beat_file="",
            python_path=tuple(entry or str(Path.cwd()) for entry in sys.path),
            outputs=str(study.places.outputs(study.name)),
            kinds=tuple(sorted(kinds)) if index < first_evaluator else ("evaluate",),
            yields=yields,
            config=config,
        )
        for index in range(len(environments))
    ]
    return get_launcher()(
        opened.client,
        specs,
        launch=launch,
        environments=environments,
        logs=study.places.logs(study.name),
        renew_s=study.rules.lease_s / 3,
        stall_timeout_s=stall_timeout_s,
        on_tick=tick,
        on_interrupt=on_interrupt,
    )
