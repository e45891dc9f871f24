"""Watch runs until they end, and add workers to runs that another process watches."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from phyla import plugins, settings
from phyla.client import Client
from phyla.errors import ConfigurationError, StoreBusy
from phyla.evaluation import Suite
from phyla.records import EvalEvent, JsonObject
from phyla.store import Store, hold_on, open_store
from phyla.study.files.load import chosen_suites, runs_with, suites_of
from phyla.study.maintaining.recover import take_back
from phyla.study.places import Places, open_existing
from phyla.study.results.evaluations import Evaluations
from phyla.study.results.progress import Throttle
from phyla.study.results.watched_runs import Change, Watched, read_run_status
from phyla.study.running.run import Crew, work
from phyla.study.watching.alerts import Outlets
from phyla.study.watching.regressions import RegressionFeed
from phyla.study.watching.runs import Watcher, Watching, check_url
from phyla.study.watching.targets import Target, targets_of
from phyla.watcher import DirectoryWatcher, WatchThread, lock
from phyla.worker import Launch
from phyla.worker.make import Runs, check_suites, lease_of, open_watched, watched_worker
from phyla.worker.spec import WorkerSpec

TELL_EVERY_S = 0.5


def follow(
    watching: Watching,
    paths: str | Path | Sequence[str | Path],
    name: str | None,
    poll_s: float,
    outlets: Outlets,
    on_change: Callable[[Change], None],
) -> Watched:
    """Evaluate every checkpoint until the runs end; see `watch`."""
    watching.check()
    places = watching.places
    with ExitStack() as stack:
        store = open_store(places.storage)
        stack.callback(store.close)
        targets = targets_of(store, paths, name, waits=not watching.following.once)
        for target in targets:
            _take(stack, watching, target)
        destinations = outlets.check([target.name for target in targets], places)
        for target in targets:
            watching.create(store, target)
        names = [target.name for target in targets]
        client, runs = open_watched(store, dict.fromkeys(names, watching.suites))
        stack.enter_context(_copying(runs, places))
        launch = stack.enter_context(Launch(places.locks, store.url, names))
        take_back(client, launch)
        for record, _ in runs:
            outlets.start(stack, store, record, places, destinations[record.name])
        changes = [RegressionFeed(Evaluations(store, record, places)) for record, _ in runs]
        thread = _begin(stack, watching, store, client, runs, poll_s, on_change)
        tell = _teller(changes, on_change, thread)
        configs: dict[str, JsonObject] = {name: {"suites": watching.encoded} for name in names}
        finished = _work(client, runs, configs, watching.crew, places, launch, tell)
        thread.stop()
        if thread.error is not None:
            raise thread.error
        _tell_all(changes, on_change)
        thread.tend()
        if not finished:
            raise KeyboardInterrupt
        return _account(store, names, places)


def _account(store: Store, names: Sequence[str], places: Places) -> Watched:
    runs = filter(None, map(store.find_study, names))
    return Watched(tuple(read_run_status(Evaluations(store, run, places)) for run in runs))


def _take(stack: ExitStack, watching: Watching, target: Target) -> None:
    """Make sure that a target can be watched, and that no other process watches it."""
    if isinstance(target.directory, str):
        check_url(target.directory, watching.following, watching.snapshot_dir)
    stack.enter_context(lock(watching.places.watch_lock(target.name), target.name))


def _begin(
    stack: ExitStack,
    watching: Watching,
    store: Store,
    client: Client,
    runs: Runs,
    poll_s: float,
    on_change: Callable[[Change], None],
) -> WatchThread:
    """Look at all runs once, then continue in a thread; log what the watch waits for."""
    watchers = watching.watchers(store, client, runs)
    thread = WatchThread(watchers, poll_s=poll_s)
    stack.callback(thread.stop)
    thread.start()
    for change in _awaited(runs, watchers):
        on_change(change)
    return thread


def _awaited(runs: Runs, watchers: Sequence[Watcher]) -> Iterator[Change]:
    """Yield what each directory that has no checkpoint yet is waited for to have."""
    for (record, _), watcher in zip(runs, watchers, strict=True):
        awaited = watcher.describe_missing() if isinstance(watcher, DirectoryWatcher) else None
        if awaited is not None:
            now = settings.system_clock()
            event = EvalEvent(study=record.id, kind="awaiting", message=awaited, created_at=now)
            yield Change(run=record.name, kind="event", event=event)


def join(
    names: Sequence[str],
    suites: "Suite | str | Sequence[Suite | str]",
    crew: Crew,
    places: Places,
    on_change: Callable[[Change], None],
) -> Watched:
    """Add workers to runs that are watched, until those end; see `evaluate`."""
    crew.check(places)
    if not crew.workers:
        raise ConfigurationError("workers=0: evaluate() starts worker processes, so it needs at least 1")
    if not names and not suites:
        raise ConfigurationError("evaluate() needs the name of a run, or its suites")
    with ExitStack() as stack:
        store = open_existing(f"watched run{''.join(f' {name!r}' for name in names)}", places)
        stack.callback(store.close)
        hold_on(store)
        names = names or runs_with(store, chosen_suites(suites))
        suites_by_run = {name: suites_of(store, name, suites) for name in names}
        client, runs = open_watched(store, suites_by_run)
        configs: dict[str, JsonObject] = {
            name: {"suites": [plugins.encode(suite) for suite in chosen]} for name, chosen in suites_by_run.items()
        }
        check_suites(runs, configs)
        stack.enter_context(_copying(runs, places))
        if client.is_active():
            launch = stack.enter_context(Launch(places.locks, store.url, names))
            feeds = [RegressionFeed(Evaluations(store, record, places)) for record, _ in runs]
            tell = _teller(feeds, on_change)
            if not _work(client, runs, configs, crew, places, launch, tell):
                raise KeyboardInterrupt
        return _account(store, names, places)


def _copying(runs: Runs, places: Places) -> contextlib.AbstractContextManager[None]:
    """Let workers cache objects of an object store where this process would."""
    remote = any("://" in record.location for record, _ in runs)
    return settings.environment({"PHYLA_CACHE": str(settings.cache() or places.home / "cache")} if remote else {})


def _teller(
    changes: Sequence[RegressionFeed], on_change: Callable[[Change], None], thread: WatchThread | None = None
) -> Callable[[], None]:
    """Return a function that reports changes, often enough for a user and seldom enough for the store."""
    throttle = Throttle(TELL_EVERY_S)

    def tell() -> None:
        if thread is not None and thread.error is not None:
            raise thread.error
        with throttle.turn() as due, contextlib.suppress(StoreBusy):
            if due:
                _tell_all(changes, on_change)

    return tell


def _tell_all(changes: Sequence[RegressionFeed], on_change: Callable[[Change], None]) -> None:
    for change in (change for run in changes for change in run.new()):
        on_change(change)


def _work(
    client: Client,
    runs: Runs,
    configs: Mapping[str, JsonObject],
    crew: Crew,
    places: Places,
    launch: Launch,
    on_tick: Callable[[], None],
) -> bool:
    """Evaluate until the runs end; return False when a person interrupted it."""
    name, lease_s = client.record.name, min(lease_of(record) for record, _ in runs)
    spec = WorkerSpec(
        configs=configs,
        watched=True,
        storage=places.storage,
        work_root=str(places.folder("work", name)),
        kinds=("evaluate",),
    )
    here = partial(watched_worker, client, runs, renew_s=lease_s / 3)
    logs = places.folder("logs", name)
    return work(client, crew, spec, here, launch=launch, logs=logs, lease_s=lease_s, on_tick=on_tick)
