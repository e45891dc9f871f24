"""Watch a training job that only writes checkpoints, or another study; evaluate with more workers."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import plugins, settings
from phyla.errors import (
    ConfigurationError,
    NotImportable,
    RunChanged,
    StoreBusy,
)
from phyla.evaluation import Suite
from phyla.records import EvalEvent, JsonObject, StudyKind, StudyState
from phyla.study.feed import Change, Changes, Watched, account
from phyla.study.opening import open_existing
from phyla.study.places import Places
from phyla.study.suites import chosen_suites, runs_with, suites_of
from phyla.study.targets import Target, check_directories, targets_of
from phyla.study.working import check_workers, work_here

if TYPE_CHECKING:
    from phyla.launchers import WorkerSpec
    from phyla.launchers.watched import WatchConfig, WatchedStudies, WatchedStudy
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
    from phyla.launchers.watched import open_watched
    from phyla.store import open_store
    from phyla.study.leftovers import remove_outputs, take_back
    from phyla.watcher import DirectoryWatcher, Following, Lock, WatchThread
    from phyla.worker import Launch

    places = Places.of(home, storage, checkpoints)
    check_workers(places, workers=workers)
    chosen = chosen_suites(suites)
    how = following or Following()
    with ExitStack() as stack:
        store = open_store(places.storage)
        stack.callback(store.close)
        targets = targets_of(store, paths, name)
        check_directories(targets)
        for target in targets:
            stack.enter_context(Lock(places.watch_lock(target.name), target.name))
        name_of = plugins.reference if workers else plugins.reference_here
        for target in targets:
            config = _config(target, chosen, places, format, options or {}, how, snapshot_dir, lease_s)
            _create(store, target, config, name_of)
        given = {target.name: chosen for target in targets}
        opened = open_watched(store, given, gin_bindings=gin_bindings)
        launch = stack.enter_context(Launch(places.locks, store.url, list(given)))
        for run in opened.studies:
            take_back(store, run.record.id, run.client.lose_worker, launch)
        changes = Changes(store, [run.record for run in opened.studies])
        for run in opened.studies:
            run.sightings.backfill()
            with store.reader(run.record.id) as reader:
                remove_outputs(reader, Path(run.config.outputs))
        watchers = [
            _watcher(store, run, target, places) for run, target in zip(opened.studies, targets, strict=True)
        ]
        follow = WatchThread(watchers, poll_s=poll_s)
        stack.callback(follow.stop)
        follow.start()
        for run, watcher in zip(opened.studies, watchers, strict=True):
            awaited = watcher.awaited() if isinstance(watcher, DirectoryWatcher) else None
            if awaited is not None:
                event = EvalEvent(
                    study=run.record.id, kind="awaiting", message=awaited, created_at=settings.system_clock()
                )
                on_change(Change(run=run.record.name, kind="event", event=event))
        tell = _Tell(changes, on_change, follow)
        if workers:
            specs = _specs(places, given, workers, gin_bindings)
            finished = _supervise(opened, specs, places, launch, gpus_per_worker, tell, on_interrupt)
        else:
            finished = _work_here(opened, launch.worker_name(), places, tell, on_interrupt)
        follow.stop()
        if follow.error is not None:
            raise follow.error
        tell(last=True)
        follow.tend()
        if not finished:
            raise KeyboardInterrupt
        return account(store, list(given))


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
        StudyNotFound: there is no such run.
        ConfigurationError: a run is that of a study, or has a suite that was not given.
        RunChanged: a suite differs from that of the run.
        StudyChanged: the suites of a run were changed meanwhile.
        StudyFailed: worker processes cannot start, or die again and again.
        KeyboardInterrupt: a person stopped it.
        StoreError: the database failed.
    """
    from phyla.launchers.watched import changed_suites, open_watched
    from phyla.worker import Launch

    places = Places.of(home, storage, checkpoints)
    check_workers(places, workers=workers)
    if not workers:
        raise ConfigurationError("workers=0: evaluate() starts worker processes, so it needs at least 1")
    wanted = [names] if isinstance(names, str) else list(names)
    if not wanted and not suites:
        raise ConfigurationError("evaluate() needs the name of a run, or its suites")
    with ExitStack() as stack:
        store = open_existing(f"watched run{''.join(f' {name!r}' for name in wanted)}", places)
        stack.callback(store.close)
        wanted = wanted or runs_with(store, chosen_suites(suites))
        given = {name: suites_of(store, name, suites) for name in wanted}
        opened = open_watched(store, given, gin_bindings=gin_bindings)
        specs = _specs(places, given, workers, gin_bindings)
        why = changed_suites(opened, specs[0].configs)
        if why is not None:
            raise RunChanged(why)
        if opened.client.is_active():
            launch = stack.enter_context(Launch(places.locks, store.url, wanted))
            tell = _Tell(Changes(store, [run.record for run in opened.studies]), on_change, None)
            if not _supervise(opened, specs, places, launch, gpus_per_worker, tell, on_interrupt):
                raise KeyboardInterrupt
        return account(store, wanted)


# Opening


def _config(
    target: Target,
    suites: tuple[Suite, ...],
    places: Places,
    kind: str,
    options: Mapping[str, Any],
    following: "Following",
    snapshot_dir: str | Path | None,
    lease_s: float,
) -> "WatchConfig":
    from phyla.launchers.watched import WatchConfig

    snapshots = Path(snapshot_dir).expanduser().absolute() / target.name if snapshot_dir else None
    config = WatchConfig(
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
    store: "Store", target: Target, config: "WatchConfig", name_of: Callable[[Callable[..., Any]], str]
) -> None:
    """Create a run, or let an existing one go on with these settings."""
    try:
        raw: JsonObject = config.to_json(name_of)
    except NotImportable as error:
        raise NotImportable(f"{error} (in a suite)") from error
    kind = StudyKind.DIRECTORY if target.study is None else StudyKind.STUDY
    location = str(target.directory or "")
    study = None if target.study is None else target.study.id
    record = store.create_study(target.name, raw, kind=kind, location=location, source=study)
    if (record.kind, record.source, record.location) != (kind, study, location):
        what = record.location or f"study number {record.source or record.id}"
        raise RunChanged(
            f"run {target.name!r} in {store.url} is that of {what}, not of {location or target.name}; give "
            "this one another name (on the command line: --name)"
        )
    if record.config != raw or record.state is not StudyState.RUNNING:
        store.set_config(record.id, raw)


def _watcher(
    store: "Store", run: "WatchedStudy", target: Target, places: Places
) -> "DirectoryWatcher | StudyWatcher":
    from phyla.watcher import DirectoryWatcher, StudyWatcher

    best = places.best(target.name)
    if target.directory is not None:
        return DirectoryWatcher(
            run.sightings,
            target.directory,
            run.config.format(),
            run=run.record,
            snapshots=Path(run.config.snapshots),
            best=best,
            following=run.config.following,
        )
    assert target.study is not None
    return StudyWatcher(
        run.sightings,
        store,
        target.study.id,
        run=run.record,
        checkpoints=Path(run.config.checkpoints),
        best=best,
        once=run.config.following.once,
    )


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


def _specs(
    places: Places, suites: Mapping[str, Sequence[Suite]], workers: int, gin: Sequence[str]
) -> "list[WorkerSpec]":
    from phyla.launchers import WorkerSpec

    configs: dict[str, JsonObject] = {
        name: {"suites": [plugins.encode(suite) for suite in many]} for name, many in suites.items()
    }
    return [
        WorkerSpec(
            configs=configs,
            watched=True,
            storage=places.storage,
            work_root=str(places.work(next(iter(suites)))),
            index=index,
            kinds=("evaluate",),
            gin_bindings=tuple(gin),
        )
        for index in range(workers)
    ]


def _supervise(
    opened: "WatchedStudies",
    specs: "Sequence[WorkerSpec]",
    places: Places,
    launch: "Launch",
    gpus_per_worker: float,
    tick: Callable[[], None],
    on_interrupt: Callable[[], None],
) -> bool:
    """Let worker processes evaluate until the runs end; return False when a person interrupted it."""
    from phyla.launchers import get_launcher, gpu_environments

    launcher = get_launcher()(
        opened.client,
        specs,
        launch=launch,
        environments=gpu_environments(len(specs), gpus_per_worker),
        logs=places.logs(specs[0].study),
        renew_s=opened.lease_s / 3,
        stall_timeout_s=None,
        on_tick=tick,
        on_interrupt=on_interrupt,
    )
    return launcher.run()


def _work_here(
    opened: "WatchedStudies",
    name: str,
    places: Places,
    tick: Callable[[], None],
    on_interrupt: Callable[[], None],
) -> bool:
    from phyla.worker import Evaluator, Worker

    evaluator: Evaluator = Evaluator(
        opened.client,
        opened.evaluated,
        work_root=places.work(opened.studies[0].record.name),
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
    return work_here(worker, name, opened.client, on_interrupt, on_trial=tick, on_idle=tick)
