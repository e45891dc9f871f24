"""Running studies until they end, in this process or in worker processes; resuming and interrupting them."""

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from phyla import plugins, settings
from phyla.client import Client
from phyla.errors import (
    CheckpointsAbsent,
    CheckpointStorageFailed,
    ConfigurationError,
    StudyChanged,
    StudyFailed,
)
from phyla.launchers import WorkerSpec, get_launcher, gpu_environments
from phyla.machine import Outdated
from phyla.records import Aim, StudyState
from phyla.study.findings import say_nothing_to_do
from phyla.study.leftovers import others_at_work, remove_outputs, take_back
from phyla.study.opening import OpenedStudy
from phyla.study.places import Places
from phyla.study.progress import Failures, best_of
from phyla.study.results import Results
from phyla.worker import Launch, Worker, population_worker

if TYPE_CHECKING:
    from phyla.study.study import Study

MOST_WORKERS = 10_000
"""Processes of one run on this machine."""


def check_workers(places: Places, **counts: int) -> None:
    """Make sure that this process may start that many workers, of one kind or several."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_WORKERS:
            raise ConfigurationError(
                f"{name}={count!r}: must be an integer of at least 0, at most {MOST_WORKERS:,}"
            )
    if any(counts.values()) and settings.in_worker():
        raise ConfigurationError(
            "a worker process was to start workers, which would start workers without end; start them under "
            '`if __name__ == "__main__":`, or use workers=0 inside training code'
        )
    if any(counts.values()) and places.storage == "memory://":
        raise ConfigurationError(
            "storage='memory://' exists in this process only, where worker processes cannot see it; "
            "run with workers=0, or leave storage= out"
        )


def checked_kinds(kinds: Sequence[str]) -> frozenset[str]:
    """Return what workers do."""
    wanted = frozenset(kinds)
    if not wanted or not wanted <= {"train", "evaluate"}:
        raise ConfigurationError(f"kinds={kinds!r}: choose 'train', 'evaluate', or both")
    return wanted


@final
@dataclass(frozen=True, kw_only=True)
class Crew:
    """Who works on a study, and who is told; see `Study.run`."""

    workers: int
    evaluators: int = 0
    kinds: Sequence[str]
    gpus_per_worker: float
    stall_timeout_s: float | None = None
    yields: bool = False
    on_progress: Callable[[Results], None] | None
    on_interrupt: Callable[[], None]

    @cached_property
    def environments(self) -> Sequence[Mapping[str, str]]:
        """Environment variables of each worker process; those of the evaluators come last."""
        return gpu_environments(self.workers + self.evaluators, self.gpus_per_worker)

    def check(self, study: "Study") -> None:
        """Make sure that they can work on a study."""
        if plugins.reading_study_file():
            raise plugins.StudyFileRead
        if study.train is None:
            raise ConfigurationError("Study(train=...) is needed to run; without it use ask() and tell()")
        check_workers(study.places, workers=self.workers, evaluators=self.evaluators)
        suites = study.rules.suites
        if "train" not in checked_kinds(self.kinds) and not suites:
            raise ConfigurationError(f"kinds={self.kinds!r}: this study has no suites= to evaluate")
        if self.evaluators and not (self.workers and suites):
            raise ConfigurationError(
                f"evaluators={self.evaluators}: they need suites= to evaluate, and workers= of at least 1 that "
                "train"
            )
        stall = self.stall_timeout_s
        number = isinstance(stall, (int, float)) and not isinstance(stall, bool)
        if stall is not None and not (number and stall > 0):
            raise ConfigurationError(f"stall_timeout_s={stall!r}: must be above 0, or None")
        _ = self.environments  # raises where there are too few GPUs


def run_study(study: "Study", opened: OpenedStudy, crew: Crew) -> Results:
    """Train until the study ends; resumes what an earlier run left. See `Study.run`."""
    with Launch(study.places.locks, opened.store.url, [study.name]) as launch:
        return _run(study, opened, launch, crew)


def _run(study: "Study", opened: OpenedStudy, launch: Launch, crew: Crew) -> Results:
    store, client, key = opened.store, opened.client, opened.record.id
    results = Results(store, opened.record, study.places)
    opened.claim()
    if results.state in (StudyState.STOPPED, StudyState.FAILED):
        store.set_state(key, StudyState.RUNNING)
    take_back(store, key, client, launch)
    client.recover()
    _clean_outputs(study, opened)
    if results.state is StudyState.COMPLETED:
        with store.reader(key) as reader:
            say_nothing_to_do(reader)

    # Whoever is told of progress shows what failed.
    failures = Failures(settings.system_clock()) if crew.on_progress is None else None
    look = partial(study.lookout.look, store, key, failures=failures)
    try:
        finished = _work(study, opened, launch, crew, results, look)
        look(at_once=True)
        client.collect()
        client.recover()
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


def add_workers(study: "Study", opened: OpenedStudy, crew: Crew) -> Results:
    """Train a study that others run, until it ends. See `Study.work`."""
    results = Results(opened.store, opened.record, study.places)
    if opened.client.is_active():
        opened.claim()
        look = partial(study.lookout.look_at_metrics, opened.store, opened.record.id)
        with Launch(study.places.locks, opened.store.url, [study.name]) as launch:
            if not _work(study, opened, launch, crew, results, look):
                raise KeyboardInterrupt
    return results


def _stop(opened: OpenedStudy, launch: Launch, why: str) -> None:
    """Stop a study that is running, unless others are at work on it."""
    if opened.client.study().state is StudyState.RUNNING and not others_at_work(opened, launch):
        opened.store.set_state(opened.record.id, StudyState.STOPPED, why)


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


def _work(
    study: "Study",
    opened: OpenedStudy,
    launch: Launch,
    crew: Crew,
    results: Results,
    look: Callable[[], None],
) -> bool:
    name, places, lease_s = study.name, study.places, study.rules.lease_s

    def tick() -> None:
        look()
        if crew.on_progress is not None:
            crew.on_progress(results)

    def worker(worker_name: str) -> Worker:
        assert study.train is not None
        return population_worker(
            opened.client,
            opened.record,
            opened.repository,
            study.rules,
            study.train,
            study.setup,
            name=worker_name,
            kinds=frozenset(crew.kinds),
            work_root=places.work(name),
            outputs=places.outputs(name),
            log=places.logs(name) / "worker-0.log",
            renew_s=lease_s / 3,
            yields=crew.yields,
        )

    config = study.config(portable=bool(crew.workers))
    specs = [
        WorkerSpec(
            configs={name: config},
            storage=places.storage,
            checkpoints=str(places.checkpoints(name)),
            work_root=str(places.work(name)),
            outputs=str(places.outputs(name)),
            index=index,
            kinds=tuple(sorted(set(crew.kinds))) if index < crew.workers else ("evaluate",),
            yields=crew.yields,
        )
        for index in range(len(crew.environments))
    ]
    return work(
        opened.client,
        worker,
        specs,
        crew.environments,
        launch=launch,
        logs=places.logs(name),
        lease_s=lease_s,
        stall_timeout_s=crew.stall_timeout_s,
        on_tick=tick,
        on_interrupt=crew.on_interrupt,
    )


def work(
    client: Client,
    worker: Callable[[str], Worker],
    specs: Sequence[WorkerSpec],
    environments: Sequence[Mapping[str, str]],
    *,
    launch: Launch,
    logs: Path,
    lease_s: float,
    stall_timeout_s: float | None = None,
    on_tick: Callable[[], None],
    on_interrupt: Callable[[], None],
) -> bool:
    """Work on studies of any kind until they end; return False when a person interrupted it.

    Worker processes are started by `specs`; without any, this process is the `worker` of a name. Then the first
    Ctrl-C or SIGTERM asks it to end soon, and the next one raises KeyboardInterrupt at once. Only the main thread
    can handle signals; in another one they stay as they are.
    """
    if specs:
        launcher = get_launcher()(
            client,
            specs,
            launch=launch,
            environments=environments,
            logs=logs,
            renew_s=lease_s / 3,
            stall_timeout_s=stall_timeout_s,
            on_tick=on_tick,
            on_interrupt=on_interrupt,
        )
        return launcher.run()
    name = launch.worker_name()
    here = worker(name)
    interrupted = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        on_interrupt()
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        here.stop()

    main = threading.current_thread() is threading.main_thread()
    previous = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        ended = here.run(on_tick, on_tick)
    except BaseException:
        client.lose_worker(name, "its run was interrupted", counts=False)
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if isinstance(ended, Outdated):
        raise StudyChanged(ended.why)
    return not interrupted.is_set()
