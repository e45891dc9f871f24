"""Watch a training job that only writes checkpoints, or somebody else's study; evaluate with more workers."""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import plugins, settings
from phyla.errors import (
    ConfigurationError,
    NotImportable,
    RunChanged,
    RunNotFound,
    StoreBusy,
    StudyNotFound,
)
from phyla.evaluation import Suite
from phyla.records import EvalEvent, JsonObject, RunKind, RunRecord, RunState
from phyla.study.changes import Change, Changes, Watched, account
from phyla.study.interrupting import interrupts
from phyla.study.opening import sqlite_file
from phyla.study.outputs import remove_leftovers
from phyla.study.places import Places
from phyla.study.suites import chosen_suites
from phyla.study.targets import Target, check_directories, targets_of

if TYPE_CHECKING:
    from phyla.api import WorkClient
    from phyla.launchers import WorkerSpec
    from phyla.launchers.runs import OpenedRuns, RunConfig
    from phyla.store import Store
    from phyla.watcher import Follow, Following

TELL_EVERY_S = 0.5
SHARE = 20
"""Looking for changes takes at most this part of the time."""


def watch(
    paths: str | Path | Sequence[str | Path],
    suites: "Suite | str | Sequence[Suite | str]",
    workers: int = 0,
    *,
    name: str | None = None,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
    format: str = "auto",  # noqa: A002 -- the word that users know
    options: Mapping[str, Any] | None = None,
    following: "Following | None" = None,
    snapshot_dir: str | Path | None = None,
    lease_s: float = 60.0,
    poll_s: float = 10.0,
    gpus_per_worker: float = 0,
    gin_bindings: Sequence[str] = (),
    on_change: Callable[[Change], None] = lambda change: None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> Watched:
    """Evaluate every checkpoint that a training job writes, until it ends.

    A run that exists under its name is resumed; suites that changed are filled in for checkpoints that are
    still there.

    Args:
        paths: directories that hold checkpoints; or the name of one study of the store.
        suites: what to run on each checkpoint: suites, or texts as `load_suites` takes them.
        workers: worker processes to start; 0 evaluates in this process, where `timeout_s` is not enforced.
        name: of the run; by default made from the path, or the study's with `-watch`.
        home: directory for everything; by default `.phyla`, or what `PHYLA_HOME` says.
        storage: URL of the store; by default SQLite in the home.
        checkpoints: directory of all studies' checkpoints, for a study; by default in the home.
        format: what checkpoints look like, one of `phyla.watcher.FORMATS`.
        options: further options of the format: `step`, `quiet_s`, `marker`, `templates`.
        following: snapshots, how training ends, and the like.
        snapshot_dir: directory for snapshots, on the file system of the checkpoints; by default in the home.
        lease_s: seconds after which a worker that went silent loses its eval task.
        poll_s: longest time between two looks.
        gpus_per_worker: GPUs each worker sees, as in `Study.run`.
        gin_bindings: gin bindings of all workers.
        on_change: called in this thread for everything that happens.
        on_interrupt: called for each Ctrl-C or SIGTERM inside the signal handler, so it must be brief.

    Returns:
        How everything stands; `complete` tells whether nothing is missing.

    Raises:
        UsageError: an argument makes no sense, the run is followed elsewhere, or is another one.
        StudyFailed: worker processes cannot start, or die again and again.
        KeyboardInterrupt: a person stopped it; watch again to resume.
        StoreError: the database failed.
    """
    from phyla.watcher import Follow, Following, Watcher

    places = Places.of(home, storage, checkpoints)
    _check_workers(workers, places)
    chosen = chosen_suites(suites)
    how = following or Following()
    with ExitStack() as stack:
        store = _open_store(places)
        stack.callback(store.close)
        targets = targets_of(store, paths, name)
        check_directories(targets)
        for target in targets:
            stack.enter_context(_lock(places, target.name))
        name_of = plugins.reference if workers else plugins.reference_here
        for target in targets:
            config = _config(target, chosen, places, format, options or {}, how, snapshot_dir, lease_s)
            _create(store, target, config, name_of)
        opened = _opened(store, targets, chosen, workers, gin_bindings)
        _lose_the_dead(store, opened)
        changes = Changes(store, [run.record for run in opened.runs.values()])
        for run in opened.runs.values():
            run.controller.backfill()
            with store.evaluations(run.record) as reader:
                remove_leftovers(reader, Path(run.config.outputs))
        followers = _followers(store, opened, targets, places)
        follow = Follow(followers, poll_s=poll_s)
        stack.callback(follow.stop)
        follow.start()
        for run, (follower, _) in zip(opened.runs.values(), followers, strict=True):
            awaited = follower.awaited() if isinstance(follower, Watcher) else None
            if awaited is not None:
                on_change(_awaiting(run.record, awaited))
        tell = _Tell(changes, on_change, follow)
        if workers:
            finished = _with_processes(
                opened.client,
                _specs(places, [target.name for target in targets], workers, gin_bindings),
                places,
                lease_s=opened.lease_s,
                gpus_per_worker=gpus_per_worker,
                tick=tell,
                on_interrupt=on_interrupt,
            )
        else:
            finished = _in_process(opened, places, tell, on_interrupt)
        follow.stop()
        if follow.error is not None:
            raise follow.error
        tell(last=True)
        follow.tend()
        if not finished:
            raise KeyboardInterrupt
        return account(store, [target.name for target in targets])


def evaluate(
    names: str | Sequence[str],
    workers: int = 1,
    *,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
    gpus_per_worker: float = 0,
    gin_bindings: Sequence[str] = (),
    on_change: Callable[[Change], None] = lambda change: None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> Watched:
    """Add workers to runs that are watched, or to a study's own evaluation, until those end.

    They may be on any machine that sees the store and the files, and may be stopped at any time.

    Args:
        names: of the runs, or of one study that has suites.
        workers: worker processes to start; at least 1.
        home: directory where they live; by default `.phyla` or the environment's.
        storage: URL of the store, if that is not in the home.
        checkpoints: directory of all studies' checkpoints, if that is not in the home.
        gpus_per_worker: GPUs each worker sees, as in `Study.run`.
        gin_bindings: gin bindings of all workers.
        on_change: called in this thread for everything that happens.
        on_interrupt: called for each Ctrl-C or SIGTERM inside the signal handler, so it must be brief.

    Returns:
        How the runs stand.

    Raises:
        RunNotFound: there is no such run.
        StudyFailed: worker processes cannot start, or die again and again.
        KeyboardInterrupt: a person stopped it.
        StoreError: the database failed.
    """
    from phyla.launchers.runs import open_runs

    places = Places.of(home, storage, checkpoints)
    _check_workers(workers, places)
    if not workers:
        raise ConfigurationError("workers=0: evaluate() starts worker processes, so it needs at least 1")
    wanted = [names] if isinstance(names, str) else list(names)
    if not wanted:
        raise ConfigurationError("evaluate() needs the name of a run")
    file = sqlite_file(places.storage)
    if file is not None and not file.exists():
        raise RunNotFound(
            f"there is no run {wanted[0]!r}: {file} does not exist; say where it is with home= or storage= "
            "(on the command line: --home, --storage)"
        )
    with ExitStack() as stack:
        store = _open_store(places)
        stack.callback(store.close)
        own = store.find_run(wanted[0])
        client: WorkClient
        if own is not None and own.kind is RunKind.STUDY and not own.config:
            if len(wanted) > 1:
                raise ConfigurationError(f"{own.name!r} is a study; add workers to one study at a time")
            client, specs, lease_s, runs = _study_workers(store, own, places, workers, gin_bindings)
        else:
            opened = open_runs(store, wanted, gin_bindings=gin_bindings)
            client, lease_s = opened.client, opened.lease_s
            specs = _specs(places, wanted, workers, gin_bindings)
            runs = [run.record for run in opened.runs.values()]
        finished = True
        if client.is_active():
            finished = _with_processes(
                client,
                specs,
                places,
                lease_s=lease_s,
                gpus_per_worker=gpus_per_worker,
                tick=_Tell(Changes(store, runs), on_change, None),
                on_interrupt=on_interrupt,
            )
        if not finished:
            raise KeyboardInterrupt
        return account(store, wanted)


# Opening


def _check_workers(workers: int, places: Places) -> None:
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ConfigurationError(f"workers={workers!r}: must be an integer of at least 0")
    if workers and settings.in_worker():
        raise ConfigurationError(
            "workers were asked for in a worker process, which would start workers without end; call it under "
            '`if __name__ == "__main__":`'
        )
    if workers and places.storage == "memory://":
        raise ConfigurationError(
            "storage='memory://' exists in this process only, where worker processes cannot see it; use "
            "workers=0, or leave storage= out"
        )


def _open_store(places: Places) -> "Store":
    from phyla.store import open_store

    return open_store(places.storage)


def _lock(places: Places, run: str) -> Any:
    from phyla.watcher import Lock

    return Lock(places.watch_lock(run), run)


def _config(
    target: Target,
    suites: tuple[Suite, ...],
    places: Places,
    kind: str,
    options: Mapping[str, Any],
    following: "Following",
    snapshot_dir: str | Path | None,
    lease_s: float,
) -> "RunConfig":
    from phyla.launchers.runs import RunConfig

    snapshots = Path(snapshot_dir).expanduser().absolute() / target.name if snapshot_dir else None
    config = RunConfig(
        suites=suites,
        lease_s=lease_s,
        outputs=str(places.outputs(target.name)),
        snapshots=str(snapshots or places.snapshots(target.name)),
        gin_root=str(target.directory or Path.cwd()),
        checkpoints="" if target.study is None else str(places.checkpoints(target.study.name)),
        kind=kind,
        options=dict(options),
        following=following,
    )
    config.format()
    if lease_s <= 0:
        raise ConfigurationError(f"lease_s={lease_s!r}: must be above 0")
    return config


def _create(
    store: "Store", target: Target, config: "RunConfig", name_of: Callable[[Callable[..., Any]], str]
) -> None:
    """Create a run, or let an existing one go on with these settings."""
    try:
        raw: JsonObject = config.to_json(name_of)
    except NotImportable as error:
        raise NotImportable(f"{error} (in a suite)") from error
    kind = RunKind.DIRECTORY if target.study is None else RunKind.STUDY
    location = str(target.directory or "")
    study = None if target.study is None else target.study.id
    record = store.create_run(target.name, kind, raw, study=study, location=location)
    if (record.kind, record.study, record.location) != (kind, study, location) or not record.config:
        what = record.location or f"study number {record.study}"
        raise RunChanged(
            f"run {target.name!r} in {store.url} is that of {what}, not of {location or target.name}; give "
            "this one another name (on the command line: --name)"
        )
    if record.config != raw or record.state is not RunState.FOLLOWING:
        store.set_run_config(record.id, raw)


def _opened(
    store: "Store", targets: Sequence[Target], suites: tuple[Suite, ...], workers: int, gin: Sequence[str]
) -> "OpenedRuns":
    from phyla.launchers.runs import open_runs

    names = [target.name for target in targets]
    # With worker processes the suites must be found by name, and are: better now than in each worker.
    here = {} if workers else dict.fromkeys(names, suites)
    return open_runs(store, names, suites=here, gin_bindings=gin)


def _lose_the_dead(store: "Store", opened: "OpenedRuns") -> None:
    """Take back at once what workers of this machine held that are dead."""
    from phyla.worker import is_alive_here

    for run in opened.runs.values():
        with store.evaluations(run.record) as reader:
            holders = {attempt.worker for attempt in reader.running_evaluations()}
        for holder in holders:
            if is_alive_here(holder) is False:
                why = "its process was gone when the run was resumed"
                run.controller.lose_worker(holder, why, counts=False)


def _followers(store: "Store", opened: "OpenedRuns", targets: Sequence[Target], places: Places) -> list[Any]:
    from phyla.watcher import StudyWatcher, Watcher

    found: list[Any] = []
    for run, target in zip(opened.runs.values(), targets, strict=True):
        best = places.best(target.name)
        if target.directory is not None:
            watcher = Watcher(
                run.controller,
                target.directory,
                run.config.format(),
                run=run.record,
                snapshots=Path(run.config.snapshots),
                best=best,
                following=run.config.following,
            )
            found.append((watcher, target.directory))
        else:
            assert target.study is not None
            follower = StudyWatcher(
                run.controller,
                store,
                target.study.id,
                run=run.record,
                checkpoints=Path(run.config.checkpoints),
                best=best,
                once=run.config.following.once,
            )
            found.append((follower, None))
    return found


# Working


@final
class _Tell:
    """Tells what happened, often enough for a person, and seldom enough for the store."""

    def __init__(self, changes: Changes, on_change: Callable[[Change], None], follow: "Follow | None") -> None:
        self._changes = changes
        self._on_change = on_change
        self._follow = follow
        self._next = 0.0

    def __call__(self, *, last: bool = False) -> None:
        if self._follow is not None and self._follow.error is not None and not last:
            raise self._follow.error
        before = time.monotonic()
        if before < self._next and not last:
            return
        with contextlib.suppress(*(() if last else (StoreBusy,))):
            for change in self._changes.new():
                self._on_change(change)
        after = time.monotonic()
        self._next = after + max(TELL_EVERY_S, SHARE * (after - before))


def _awaiting(run: RunRecord, what: str) -> Change:
    event = EvalEvent(run=run.id, kind="awaiting", message=what, created_at=settings.system_clock())
    return Change(run=run.name, kind="event", event=event)


def _specs(places: Places, runs: Sequence[str], workers: int, gin: Sequence[str]) -> "list[WorkerSpec]":
    from phyla.launchers import WorkerSpec

    return [
        WorkerSpec(
            study="",
            runs=tuple(runs),
            storage=places.storage,
            checkpoints="",
            work_root=str(places.work(runs[0])),
            train=None,
            setup=None,
            index=index,
            beat_file="",
            python_path=tuple(entry or str(Path.cwd()) for entry in sys.path),
            kinds=("evaluate",),
            gin_bindings=tuple(gin),
        )
        for index in range(workers)
    ]


def _study_workers(
    store: "Store", run: RunRecord, places: Places, workers: int, gin: Sequence[str]
) -> "tuple[WorkClient, list[WorkerSpec], float, list[RunRecord]]":
    """Return what it takes to evaluate for a study of ours."""
    from phyla.checkpoints import LocalCheckpoints
    from phyla.controller import from_config
    from phyla.local_client import LocalClient

    study = store.find_study(run.name)
    if study is None:
        raise StudyNotFound(f"there is no study {run.name!r} in {store.url}")
    rules = from_config(study.config)
    repository = LocalCheckpoints(places.checkpoints(study.name))
    client = LocalClient(store, study, rules, repository, collects=False)
    specs = [
        replace(
            spec,
            study=study.name,
            runs=(),
            checkpoints=str(places.checkpoints(study.name)),
            setup=None if study.config.get("setup") is None else str(study.config["setup"]),
            outputs=str(places.outputs(study.name)),
        )
        for spec in _specs(places, [study.name], workers, gin)
    ]
    return client, specs, rules.lease_s, [run]


def _with_processes(
    client: "WorkClient",
    specs: "Sequence[WorkerSpec]",
    places: Places,
    *,
    lease_s: float,
    gpus_per_worker: float,
    tick: Callable[[], None],
    on_interrupt: Callable[[], None],
) -> bool:
    from phyla.launchers import LocalLauncher, gpu_environments

    launcher = LocalLauncher(
        client,
        specs,
        environments=gpu_environments(len(specs), gpus_per_worker),
        logs=places.logs(specs[0].study or specs[0].runs[0]),
        renew_s=lease_s / 3,
        stall_timeout_s=None,
        on_tick=tick,
        on_interrupt=on_interrupt,
    )
    return launcher.run()


def _in_process(
    opened: "OpenedRuns", places: Places, tick: Callable[[], None], on_interrupt: Callable[[], None]
) -> bool:
    from phyla.worker import Evaluator, Worker, worker_name

    name = worker_name()
    first = next(iter(opened.runs.values()))
    evaluator: Evaluator = Evaluator(
        opened.client,
        opened.run_of,
        work_root=places.work(first.record.name),
        name=name,
        clock=settings.system_clock,
        timer=time.perf_counter,
    )
    worker = Worker(
        opened.client,
        name=name,
        clock=settings.system_clock,
        evaluator=evaluator,
        renew_s=opened.lease_s / 3,
    )
    with interrupts(worker.stop, on_interrupt) as interrupted:
        try:
            worker.run(on_trial=tick, on_idle=tick)
        except BaseException:
            opened.client.lose_worker(name, "its run was interrupted", counts=False)
            raise
    return not interrupted.is_set()
