"""Watch a training job that only writes checkpoints, or another study; evaluate with more workers."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyla import plugins, settings
from phyla.errors import ConfigurationError, NotImportable, StoreBusy
from phyla.evaluation import Suite
from phyla.records import EvalEvent, Json, JsonObject
from phyla.study.files.load import chosen_suites, runs_with, suites_of
from phyla.study.places import Places, open_existing
from phyla.study.results.progress import Throttle
from phyla.study.results.watched_runs import Change, RunChanges, Watched, account
from phyla.study.watching.targets import targets_of

if TYPE_CHECKING:
    from phyla.client import Client
    from phyla.study.running.run import Crew
    from phyla.study.watching.runs import Watcher
    from phyla.supervision.gpus import Gpus
    from phyla.watcher import Following, WatchThread
    from phyla.worker import Launch
    from phyla.worker.make import Runs

TELL_EVERY_S = 0.5


def watch(
    paths: str | Path | Sequence[str | Path],
    suites: "Suite | str | Sequence[Suite | str]",
    workers: int = 0,
    *,
    name: str | None = None,
    format: str = "auto",  # noqa: A002 -- the word that users know
    options: Mapping[str, Any] | None = None,
    following: "Following | None" = None,
    snapshot_dir: str | Path | None = None,
    lease_s: float = 60.0,
    poll_s: float = 10.0,
    gpus_per_worker: "Gpus" = "auto",
    gpus: Sequence[str | int] | None = None,
    grace_s: float | None = None,
    tensorboard: str | Path | None = None,
    on_alert: str | Sequence[str] | None = None,
    on_change: Callable[[Change], None] = lambda change: None,
    on_interrupt: Callable[[], None] = lambda: None,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> Watched:
    """Evaluate every checkpoint that a training job writes, or uploads, until it ends.

    A run that exists under its name is resumed; suites that changed are filled in for checkpoints that are
    still there.

    Args:
        paths: directories or URLs (`s3://bucket/prefix`) of checkpoints; or the name of one study of the store.
        suites: what to run on each checkpoint: suites, or texts as `load_suites` takes them.
        workers: worker processes to start; 0 evaluates in this process, where `timeout_s` is not enforced.
        name: of the run; by default made from the path, or the study's with `-watch`.
        format: what checkpoints look like, one of `phyla.watcher.format_names()`.
        options: further options of the format: `step`, `quiet_s`, `marker`, `templates`.
        following: snapshots, how training ends, and the like.
        snapshot_dir: directory for snapshots, on the file system of the checkpoints; by default in the home.
        lease_s: seconds after which a worker that went silent loses its eval task.
        poll_s: longest time between two looks.
        gpus_per_worker: GPUs each worker sees, as in `Study.run`.
        gpus: GPUs for these workers, as `CUDA_VISIBLE_DEVICES` names them; by default all that are visible.
        grace_s: seconds that eval tasks have to stop after a signal, as in `Study.run`.
        tensorboard: TensorBoard's log directory, where event files follow what is evaluated.
        on_alert: a command that is started for each regression that is found; see `phyla.study.watching.alerts`.
        on_change: called in this thread for everything that happens.
        on_interrupt: called for each Ctrl-C or SIGTERM inside the signal handler, so it must be brief.
        home: where studies live, as for `Study`.
        storage: URL of the database, as for `Study`.
        checkpoints: where the checkpoints are, as for `Study`.

    Returns:
        How everything stands; `complete` tells whether nothing is missing.

    Raises:
        UsageError: an argument makes no sense, the run is followed elsewhere, or is another one.
        CheckpointError: there is no such bucket, or it cannot be listed now.
        StudyFailed: worker processes cannot start, or die again and again.
        KeyboardInterrupt: a person stopped it; watch again to resume.
        StoreError: the database failed.
    """
    from phyla.integrations.tensorboard import ours
    from phyla.store import open_store
    from phyla.study.maintaining.recover import take_back
    from phyla.study.running.run import Crew
    from phyla.study.validation import check_tasks, checked_gpus, checked_term
    from phyla.study.watching.alerts import beside, words_of
    from phyla.study.watching.runs import Watching, check_url
    from phyla.watcher import Following, WatchThread, get_format, lock
    from phyla.worker import Launch
    from phyla.worker.make import open_watched

    places = Places.of(home, storage, checkpoints)
    devices = checked_gpus("gpus", gpus)
    term = checked_term(None, None, grace_s)
    crew = Crew(
        workers=workers, gpus_per_worker=gpus_per_worker, gpus=devices, term=term, on_interrupt=on_interrupt
    )
    crew.check(places)
    alert = words_of(on_alert)
    if lease_s <= 0:
        raise ConfigurationError(f"lease_s={lease_s!r}: must be above 0")
    chosen, how = chosen_suites(suites), following or Following()
    check_tasks(chosen, crew.pool)
    get_format(format, **(options or {}))  # raises where there is no such format
    with ExitStack() as stack:
        store = open_store(places.storage)
        stack.callback(store.close)
        targets = targets_of(store, paths, name)
        for target in targets:
            if isinstance(target.directory, str):
                check_url(target.directory, how, snapshot_dir)
            stack.enter_context(lock(places.watch_lock(target.name), target.name))
            if tensorboard is not None:
                ours(target.name, Path(tensorboard))  # raises where they cannot be written
        watching = Watching(
            places=places,
            suites=chosen,
            encoded=_encoded(chosen, portable=bool(workers)),
            format={"name": format, **(options or {})},
            following=how,
            snapshot_dir=str(Path(snapshot_dir).expanduser().absolute()) if snapshot_dir else "",
            lease_s=lease_s,
        )
        for target in targets:
            watching.create(store, target)
        names = [target.name for target in targets]
        client, runs = open_watched(store, dict.fromkeys(names, chosen))
        stack.enter_context(_copying(runs, places))
        launch = stack.enter_context(Launch(places.locks, store.url, names))
        take_back(client, launch)
        for record, _ in runs:
            beside(stack, store, record, places, tensorboard, alert)
        changes = [RunChanges(store, record) for record, _ in runs]
        watchers = watching.watchers(store, client, runs)
        follow = WatchThread(watchers, poll_s=poll_s)
        stack.callback(follow.stop)
        follow.start()
        for change in _awaited(runs, watchers):
            on_change(change)
        tell = _teller(changes, on_change, follow)
        configs: dict[str, JsonObject] = {each: {"suites": watching.encoded} for each in names}
        finished = _work(client, runs, configs, crew, places, launch, tell)
        follow.stop()
        if follow.error is not None:
            raise follow.error
        for change in (change for each in changes for change in each.new()):
            on_change(change)
        follow.tend()
        if not finished:
            raise KeyboardInterrupt
        return account(store, names, places)


def _encoded(suites: Sequence[Suite], *, portable: bool) -> list[Json]:
    """Return suites as they are stored; `portable` where workers import their functions."""
    name_of = plugins.reference if portable else plugins.reference_here
    try:
        return [plugins.encode(suite, name_of) for suite in suites]
    except NotImportable as error:
        raise NotImportable(f"{error} (in a suite)") from error


def _awaited(runs: "Runs", watchers: "Sequence[Watcher]") -> Iterator[Change]:
    """Yield what each directory that has no checkpoint yet is waited for to have."""
    from phyla.watcher import DirectoryWatcher

    for (record, _), watcher in zip(runs, watchers, strict=True):
        awaited = watcher.awaited() if isinstance(watcher, DirectoryWatcher) else None
        if awaited is not None:
            now = settings.system_clock()
            event = EvalEvent(study=record.id, kind="awaiting", message=awaited, created_at=now)
            yield Change(run=record.name, kind="event", event=event)


def evaluate(
    names: str | Sequence[str] = (),
    suites: "Suite | str | Sequence[Suite | str]" = (),
    workers: int = 1,
    *,
    gpus_per_worker: "Gpus" = "auto",
    labels: Sequence[str] = (),
    stop_signal: str | int | None = None,
    grace_s: float | None = None,
    time_limit_s: float | None = None,
    on_change: Callable[[Change], None] = lambda change: None,
    on_interrupt: Callable[[], None] = lambda: None,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> Watched:
    """Add workers to runs that are watched, until those end.

    They may be on any machine that sees the store and the files, and may be stopped at any time. They run the
    suites that are given here, never functions or commands that the store names; suites that differ from those of
    a run are refused. The workers of a study are started with `Study.work`.

    Args:
        names: of the runs; without any, those whose suites are given as they are stored, and of these the ones
            that have not ended.
        suites: what the runs are watched with: suites, or texts as `load_suites` takes them.
        workers: worker processes to start; at least 1. The other arguments are those of `watch`.
        gpus_per_worker: GPUs each worker sees.
        labels: what eval tasks may ask for with `resources={"label": ...}`.
        stop_signal: a signal that stops them as SIGTERM does, as in `Study.run`.
        grace_s: seconds that they have to stop after a signal, as in `Study.run`.
        time_limit_s: seconds that they may last, as in `Study.run`.
        on_change: called for everything that happens.
        on_interrupt: called for each Ctrl-C or SIGTERM.
        home: where studies live, as for `Study`.
        storage: URL of the database, as for `Study`.
        checkpoints: where the checkpoints are, as for `Study`.

    Raises:
        StudyNotFound: there is no such run.
        ConfigurationError: a run is that of a study, or has a suite that was not given.
        RunChanged: a suite differs from that of the run; `StudyChanged` where it was changed meanwhile.
        StudyFailed: worker processes cannot start, or die again and again.
        KeyboardInterrupt: a person stopped it; `Preempted` where a signal or the end of its time did.
    """
    from phyla.store import hold_on
    from phyla.study.running.run import Crew
    from phyla.study.validation import checked_labels, checked_term
    from phyla.worker import Launch
    from phyla.worker.make import check_suites, open_watched

    places = Places.of(home, storage, checkpoints)
    term = checked_term(stop_signal, time_limit_s, grace_s)
    crew = Crew(
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        labels=checked_labels(labels),
        term=term,
        on_interrupt=on_interrupt,
    )
    crew.check(places)
    if not workers:
        raise ConfigurationError("workers=0: evaluate() starts worker processes, so it needs at least 1")
    wanted = [names] if isinstance(names, str) else list(names)
    if not wanted and not suites:
        raise ConfigurationError("evaluate() needs the name of a run, or its suites")
    with ExitStack() as stack:
        store = open_existing(f"watched run{''.join(f' {name!r}' for name in wanted)}", places)
        stack.callback(store.close)
        hold_on(store)
        wanted = wanted or runs_with(store, chosen_suites(suites))
        given = {name: suites_of(store, name, suites) for name in wanted}
        client, runs = open_watched(store, given)
        configs: dict[str, JsonObject] = {
            name: {"suites": [plugins.encode(suite) for suite in many]} for name, many in given.items()
        }
        check_suites(runs, configs)
        stack.enter_context(_copying(runs, places))
        if client.is_active():
            launch = stack.enter_context(Launch(places.locks, store.url, wanted))
            tell = _teller([RunChanges(store, record) for record, _ in runs], on_change)
            if not _work(client, runs, configs, crew, places, launch, tell):
                raise KeyboardInterrupt
        return account(store, wanted, places)


def _copying(runs: "Runs", places: Places) -> contextlib.AbstractContextManager[None]:
    """Let workers keep copies of what is on an object store where this process would."""
    remote = any("://" in record.location for record, _ in runs)
    return settings.environment({"PHYLA_CACHE": str(settings.cache() or places.home / "cache")} if remote else {})


def _teller(
    changes: Sequence[RunChanges], on_change: Callable[[Change], None], follow: "WatchThread | None" = None
) -> Callable[[], None]:
    """Return what tells what happened, often enough for a person, and seldom enough for the store."""
    throttle = Throttle(TELL_EVERY_S)

    def tell() -> None:
        if follow is not None and follow.error is not None:
            raise follow.error
        with throttle.turn() as due, contextlib.suppress(StoreBusy):
            for change in (change for each in changes for change in each.new()) if due else ():
                on_change(change)

    return tell


def _work(
    client: "Client",
    runs: "Runs",
    configs: Mapping[str, JsonObject],
    crew: "Crew",
    places: Places,
    launch: "Launch",
    on_tick: Callable[[], None],
) -> bool:
    """Evaluate until the runs end; return False when a person interrupted it."""
    from phyla.study.running.run import work
    from phyla.worker.make import lease_of, watched_worker
    from phyla.worker.spec import WorkerSpec

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
