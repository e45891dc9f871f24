"""Watch a training job that only writes checkpoints, or another study; evaluate with more workers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyla.evaluation import Suite
from phyla.study.files.load import chosen_suites
from phyla.study.places import Places
from phyla.study.results.watched_runs import Change, Watched

if TYPE_CHECKING:
    from phyla.integrations.trackers import Tracker
    from phyla.supervision.gpus import Gpus
    from phyla.watcher import Following


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
    trackers: "Sequence[str | Tracker]" = (),
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
        trackers: where to log evaluations, as in `Study.run`, perhaps with `#RUN`: the id of an existing run.
        on_alert: a command that is started for each regression that is found; see `phyla.study.watching.alerts`.
        on_change: called in this thread for everything that happens.
        on_interrupt: called for each Ctrl-C or SIGTERM inside the signal handler, so it must be brief.
        home: where studies live, as for `Study`.
        storage: URL of the database, as for `Study`.
        checkpoints: where the checkpoints are, as for `Study`.

    Returns:
        The status of the runs; `complete` tells whether nothing is missing.

    Raises:
        UsageError: an argument is invalid, the run is followed elsewhere, or is another one.
        CheckpointError: there is no such bucket, or it cannot be listed now.
        StudyFailed: worker processes cannot start, or die again and again.
        KeyboardInterrupt: a person stopped it; watch again to resume.
        StoreError: the database failed.
    """
    from phyla.study.running.run import Crew
    from phyla.study.validation import check_gpus, make_term
    from phyla.study.watching.alerts import Outlets, words_of
    from phyla.study.watching.follow import follow
    from phyla.study.watching.runs import Watching
    from phyla.watcher import Following

    devices, term = check_gpus("gpus", gpus), make_term(None, None, grace_s)
    watching = Watching(
        crew=Crew(workers, gpus_per_worker=gpus_per_worker, gpus=devices, term=term, on_interrupt=on_interrupt),
        places=Places.of(home, storage, checkpoints),
        suites=chosen_suites(suites),
        format={"name": format, **(options or {})},
        following=following or Following(),
        snapshot_dir=str(Path(snapshot_dir).expanduser().absolute()) if snapshot_dir else "",
        lease_s=lease_s,
    )
    return follow(watching, paths, name, poll_s, Outlets(tensorboard, trackers, words_of(on_alert)), on_change)


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
    a run are rejected. The workers of a study are started with `Study.work`.

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
    from phyla.study.running.run import Crew
    from phyla.study.validation import check_labels, make_term
    from phyla.study.watching.follow import join

    crew = Crew(
        workers,
        gpus_per_worker=gpus_per_worker,
        labels=check_labels(labels),
        term=make_term(stop_signal, time_limit_s, grace_s),
        on_interrupt=on_interrupt,
    )
    return join(
        [names] if isinstance(names, str) else names,
        suites,
        crew,
        Places.of(home, storage, checkpoints),
        on_change,
    )
