"""`phyla worker`: adds workers to studies that run elsewhere."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Exit, Option

from phyla.cli import options
from phyla.cli.pools import worker_command
from phyla.cli.run import chosen_study, finish
from phyla.errors import PhylaError, Preempted
from phyla.records import StudyState
from phyla.terminal import show as print

if TYPE_CHECKING:
    from phyla.study import Study

PAUSE_S = 10.0
"""Seconds between two attempts of a waiting worker."""
START_S = 2.0
"""Seconds that a new process may need to start."""
SUFFIXES = (".py", ".toml")
"""Suffixes of files with studies or suites."""


def worker(
    ctx: Context,
    files: Annotated[
        list[str],
        Argument(
            metavar="FILE...",
            help="The study file, or several, to work for in turn; or the suite files of a watched run "
            "(file.py, file.py:name, module:name, file.toml); or the name of a watched run that consists of "
            "registered plug-ins.",
        ),
    ],
    workers: options.Workers = 2,
    kinds: options.Kinds = options.BOTH,
    study: Annotated[str | None, Option(help="Name of the study or watched run, if the file has several.")] = None,
    gpus_per_worker: options.Gpus = "auto",
    labels: options.Labels = None,
    time_limit: options.TimeLimit = None,
    save_every: options.SaveEvery = None,
    stop_signal: options.StopSignal = None,
    grace: options.Grace = None,
    wait: Annotated[
        bool,
        Option(
            "--wait",
            help="Work for all studies or watched runs of the files in turn; wait for those that are absent or "
            "stopped.",
        ),
    ] = False,
) -> None:
    """Add workers to a study or to watched runs until they end; never create or change one. Ctrl-C stops them.

    Functions and commands come from the file, never from the store. A file that differs from the stored settings
    is rejected, with a list of the differences.
    """
    options.contain_children(workers)
    with options.interruptible(lambda: "interrupted; the study continues without these workers"):
        if wait or _load_studies(Path(files[0])):
            _take_turns(ctx)
            return
        status = _join(ctx, files)
    raise Exit(status)


def _join(ctx: Context, files: Sequence[str]) -> int:
    """Evaluate for the watched runs that have the suites of some files, until they end; return the exit status."""
    from phyla.study.watching.display import ChangeDisplay
    from phyla.study.watching.watch import evaluate

    params = ctx.params
    # An argument that is neither a file nor a module is the name of a run.
    named = len(files) == 1 and ":" not in files[0] and Path(files[0]).suffix not in SUFFIXES
    with options.late_end(params["grace"]) as late, ChangeDisplay({}) as changes:
        watched = evaluate(
            files if named else [] if params["study"] is None else [params["study"]],
            () if named else files,
            params["workers"],
            gpus_per_worker=params["gpus_per_worker"],
            labels=options.split_list(params["labels"]),
            stop_signal=params["stop_signal"],
            grace_s=params["grace"],
            time_limit_s=params["time_limit"],
            on_change=changes.show,
            on_interrupt=late.after(changes.interrupted),
            **options.where(ctx),
        )
    return finish(watched)


def _take_turns(ctx: Context) -> None:
    """Work for the first file; then replace this process, with its loaded modules, to work for the other files."""
    from phyla.study.results.pages.live import progress_line
    from phyla.study.running.display import StudyDisplay

    params: dict[str, Any] = {**options.where(ctx), **ctx.params}
    files, limit_s, wait = params.pop("files"), params.pop("time_limit"), params["wait"]
    began, studies, completed, ended = time.monotonic(), [], 0, False
    with _retry_later(wait):
        studies = _studies(ctx, Path(files[0]), params["study"], wait=wait)
        if not studies:
            _join(ctx, files[:1])
            ended = True
    for study in studies:
        with (
            _retry_later(wait),
            options.late_end(params["grace"]) as late,
            StudyDisplay(study.name) as display,
        ):
            results = study.work(
                params["workers"],
                kinds=options.split_list(params["kinds"]),
                gpus_per_worker=params["gpus_per_worker"],
                labels=options.split_list(params["labels"]),
                stop_signal=params["stop_signal"],
                grace_s=params["grace"],
                time_limit_s=None if limit_s is None else max(1.0, limit_s - (time.monotonic() - began)),
                save_every_s=params["save_every"],
                on_progress=display.progressed,
                on_interrupt=late.after(display.interrupted),
            )
            progress = results.progress(0)
            display.print(f"{study.name} is {progress.study.state}: {progress_line(progress)}")
            completed += progress.study.state is StudyState.COMPLETED
    done = ended or 0 < len(studies) == completed
    next_files = [*files[1:], *([] if done or not wait else files[:1])]
    if not next_files:
        return
    if not done:
        _pause(params["stop_signal"])
    if limit_s is not None:
        limit_s -= time.monotonic() - began + START_S
        if limit_s <= 0:
            raise Preempted("the time limit has passed")
    words = worker_command(next_files, **params, time_limit=limit_s)
    os.execv(words[0], words)


@contextmanager
def _retry_later(wait: bool) -> Iterator[None]:
    """If the worker has to wait, print the error and continue."""
    try:
        yield
    except PhylaError as error:
        if not wait:
            raise
        print(f"trying again in {PAUSE_S:g} s: {error}", file=sys.stderr, flush=True)


def _studies(ctx: Context, file: Path, name: str | None, *, wait: bool) -> "list[Study]":
    """Return the studies to work for; with `wait`, none where the file has only suites of watched runs."""
    studies = _load_studies(file) if wait else []
    if not wait or (studies and name is not None):
        return [chosen_study(ctx, file, name)]
    for study in studies:
        options.apply_places(ctx, study)
    return studies


def _load_studies(file: Path) -> "list[Study]":
    from phyla.study.files.load import load_studies

    return load_studies(file) if file.suffix in SUFFIXES else []


def _pause(stop_signal: str | None) -> None:
    from phyla.study.validation import make_term

    def stop(number: int, frame: object) -> None:
        raise Preempted(f"stopped by {signal.Signals(number).name}")

    for number in make_term(stop_signal, None).signals[1:]:
        signal.signal(number, stop)
    time.sleep(PAUSE_S)
