"""Watch a training job that only writes checkpoints, or another study; evaluate with more workers."""

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import plugins, settings
from phyla.controller import suites_from
from phyla.errors import (
    ConfigurationError,
    NotImportable,
    RunChanged,
    RunNotFound,
    StoreBusy,
)
from phyla.evaluation import Suite, outlines
from phyla.records import EvalEvent, Json, JsonObject, RunKind, RunRecord, RunState
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
    from phyla.watcher import DirectoryWatcher, Following, StudyWatcher, WatchThread
    from phyla.worker import Launch

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
        format: what checkpoints look like, one of `phyla.watcher.format_names()`.
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
    from phyla.launchers.runs import open_runs
    from phyla.study.liveness import take_back_run
    from phyla.watcher import DirectoryWatcher, Following, WatchThread

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
        given = dict.fromkeys([target.name for target in targets], chosen)
        opened = open_runs(store, list(given), given, gin_bindings=gin_bindings)
        launch = stack.enter_context(_launch(places, store, [target.name for target in targets]))
        for run in opened.runs.values():
            take_back_run(store, run.record, run.controller.lose_worker, launch)
        changes = Changes(store, [run.record for run in opened.runs.values()])
        for run in opened.runs.values():
            run.controller.backfill()
            with store.evaluations(run.record) as reader:
                remove_leftovers(reader, Path(run.config.outputs))
        watchers = _watchers(store, opened, targets, places)
        follow = WatchThread(watchers, poll_s=poll_s)
        stack.callback(follow.stop)
        follow.start()
        for run, watcher in zip(opened.runs.values(), watchers, strict=True):
            awaited = watcher.awaited() if isinstance(watcher, DirectoryWatcher) else None
            if awaited is not None:
                on_change(_awaiting(run.record, awaited))
        tell = _Tell(changes, on_change, follow)
        if workers:
            finished = _with_processes(
                opened.client,
                _specs(places, given, workers, gin_bindings),
                places,
                launch=launch,
                lease_s=opened.lease_s,
                gpus_per_worker=gpus_per_worker,
                tick=tell,
                on_interrupt=on_interrupt,
            )
        else:
            finished = _in_process(opened, launch.worker_name(), places, tell, on_interrupt)
        follow.stop()
        if follow.error is not None:
            raise follow.error
        tell(last=True)
        follow.tend()
        if not finished:
            raise KeyboardInterrupt
        return account(store, [target.name for target in targets])


def evaluate(
    names: str | Sequence[str] = (),
    suites: "Suite | str | Sequence[Suite | str]" = (),
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
    """Add workers to runs that are watched, until those end.

    They may be on any machine that sees the store and the files, and may be stopped at any time. They run the
    suites that are given here, never functions or commands that the store names; suites that differ from those of
    a run are refused. The workers of a study are started with `Study.work`.

    Args:
        names: of the runs; without any, those whose suites are given, and of these the ones that have not ended.
        suites: what the runs are watched with: suites, or texts as `load_suites` takes them.
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
        ConfigurationError: a run is that of a study, or has a suite that was not given.
        RunChanged: a suite differs from that of the run.
        StudyChanged: the suites of a run were changed meanwhile.
        StudyFailed: worker processes cannot start, or die again and again.
        KeyboardInterrupt: a person stopped it.
        StoreError: the database failed.
    """
    from phyla.launchers.runs import changed_suites, open_runs

    places = Places.of(home, storage, checkpoints)
    _check_workers(workers, places)
    if not workers:
        raise ConfigurationError("workers=0: evaluate() starts worker processes, so it needs at least 1")
    wanted = [names] if isinstance(names, str) else list(names)
    if not wanted and not suites:
        raise ConfigurationError("evaluate() needs the name of a run, or its suites")
    file = sqlite_file(places.storage)
    if file is not None and not file.exists():
        raise RunNotFound(
            f"there is no watched run{''.join(f' {name!r}' for name in wanted)}: {file} does not exist; say where "
            "it is with home= or storage= (on the command line: --home, --storage)"
        )
    with ExitStack() as stack:
        store = _open_store(places)
        stack.callback(store.close)
        wanted = wanted or _runs_with(store, chosen_suites(suites))
        given = {name: _suites_of(store, name, suites) for name in wanted}
        opened = open_runs(store, wanted, given, gin_bindings=gin_bindings)
        why = changed_suites(opened, _encoded(given))
        if why is not None:
            raise RunChanged(why)
        finished = True
        if opened.client.is_active():
            finished = _with_processes(
                opened.client,
                _specs(places, given, workers, gin_bindings),
                places,
                launch=stack.enter_context(_launch(places, store, wanted)),
                lease_s=opened.lease_s,
                gpus_per_worker=gpus_per_worker,
                tick=_Tell(Changes(store, [run.record for run in opened.runs.values()]), on_change, None),
                on_interrupt=on_interrupt,
            )
        if not finished:
            raise KeyboardInterrupt
        return account(store, wanted)


# Opening


def _runs_with(store: "Store", suites: Sequence[Suite]) -> list[str]:
    """Return the names of the watched runs whose suites are among these; of these the unended ones, if any.

    Raises:
        RunNotFound: there is none.
    """
    given = {suite.name for suite in suites}
    runs = [run for run in store.runs() if run.config]
    found = [run for run in runs if given >= {suite.name for suite in outlines(run.config)}]
    if not found:
        known = ", ".join(repr(run.name) for run in runs) or "none"
        raise RunNotFound(
            f"{store.url} has no watched run with the suites {', '.join(sorted(given)) or 'none'} alone; it has: "
            f"{known}"
        )
    return [run.name for run in found if run.state is not RunState.ENDED] or [run.name for run in found]


def _suites_of(store: "Store", name: str, given: "Suite | str | Sequence[Suite | str]") -> tuple[Suite, ...]:
    """Return the given suites that a run has; without any, those of its stored ones that name no code."""
    run = store.find_run(name)
    if run is None:
        known = ", ".join(repr(each.name) for each in store.runs()) or "none"
        raise RunNotFound(f"there is no watched run {name!r} in {store.url}; there are: {known}")
    if not run.config:
        raise ConfigurationError(
            f"run {name!r} is that of a study; add workers that evaluate it with: "
            f"phyla worker FILE.py --study {shlex.quote(name)} --kinds evaluate (in Python: study.work())"
        )
    if not given:
        return _stored_suites(run)
    stored = [suite.name for suite in outlines(run.config)]
    chosen = {suite.name: suite for suite in chosen_suites(given)}
    missing = [each for each in stored if each not in chosen]
    if missing:
        raise ConfigurationError(
            f"run {name!r} has the suites {', '.join(stored)}, and {', '.join(missing)} was not given; add the "
            "file that defines it (in Python: to suites=)"
        )
    return tuple(chosen[each] for each in stored)


def _stored_suites(run: RunRecord) -> tuple[Suite, ...]:
    """Return a run's suites from what is stored of them, which names registered plug-ins only.

    Raises:
        ConfigurationError: they name functions or commands.
    """
    try:
        suites = suites_from(run.config)
    except NotImportable as error:
        raise ConfigurationError(
            f"run {run.name!r}: {error}: phyla worker FILE.py (in Python: suites=)"
        ) from error
    for suite in suites:
        for task in suite.tasks:
            if task.command is not None:
                raise ConfigurationError(
                    f"run {run.name!r}: eval task {task.name!r} of suite {suite.name!r} is the command "
                    f"{task.command!r}; phyla runs no command that only the database names, so give the file that "
                    "defines it: phyla worker FILE.py (in Python: suites=)"
                )
    return suites


def _encoded(suites: Mapping[str, Sequence[Suite]]) -> dict[str, list[Json]]:
    return {name: [plugins.encode(suite) for suite in many] for name, many in suites.items()}


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


def _launch(places: Places, store: "Store", names: Sequence[str]) -> "Launch":
    from phyla.worker import Launch

    return Launch(places.locks, store.url, names)


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


def _watchers(
    store: "Store", opened: "OpenedRuns", targets: Sequence[Target], places: Places
) -> "list[DirectoryWatcher | StudyWatcher]":
    from phyla.watcher import DirectoryWatcher, StudyWatcher

    found: list[DirectoryWatcher | StudyWatcher] = []
    for run, target in zip(opened.runs.values(), targets, strict=True):
        best = places.best(target.name)
        if target.directory is not None:
            watcher = DirectoryWatcher(
                run.controller,
                target.directory,
                run.config.format(),
                run=run.record,
                snapshots=Path(run.config.snapshots),
                best=best,
                following=run.config.following,
            )
            found.append(watcher)
        else:
            assert target.study is not None
            found.append(
                StudyWatcher(
                    run.controller,
                    store,
                    target.study.id,
                    run=run.record,
                    checkpoints=Path(run.config.checkpoints),
                    best=best,
                    once=run.config.following.once,
                )
            )
    return found


# Working


@final
class _Tell:
    """Tells what happened, often enough for a person, and seldom enough for the store."""

    def __init__(
        self, changes: Changes, on_change: Callable[[Change], None], follow: "WatchThread | None"
    ) -> None:
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


def _specs(
    places: Places, suites: Mapping[str, Sequence[Suite]], workers: int, gin: Sequence[str]
) -> "list[WorkerSpec]":
    from phyla.launchers import WorkerSpec

    runs, encoded = tuple(suites), _encoded(suites)
    return [
        WorkerSpec(
            study="",
            runs=runs,
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
            suites=encoded,
        )
        for index in range(workers)
    ]


def _with_processes(
    client: "WorkClient",
    specs: "Sequence[WorkerSpec]",
    places: Places,
    *,
    launch: "Launch",
    lease_s: float,
    gpus_per_worker: float,
    tick: Callable[[], None],
    on_interrupt: Callable[[], None],
) -> bool:
    from phyla.launchers import get_launcher, gpu_environments

    launcher = get_launcher()(
        client,
        specs,
        launch=launch,
        environments=gpu_environments(len(specs), gpus_per_worker),
        logs=places.logs(specs[0].study or specs[0].runs[0]),
        renew_s=lease_s / 3,
        stall_timeout_s=None,
        on_tick=tick,
        on_interrupt=on_interrupt,
    )
    return launcher.run()


def _in_process(
    opened: "OpenedRuns",
    name: str,
    places: Places,
    tick: Callable[[], None],
    on_interrupt: Callable[[], None],
) -> bool:
    from phyla.worker import Evaluator, Worker

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
