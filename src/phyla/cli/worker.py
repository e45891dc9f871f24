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
"""Seconds until a worker that waits looks again."""
START_S = 2.0
"""Seconds that a new process may need to begin."""
SUFFIXES = (".py", ".toml")
"""Of files with studies or suites."""


def worker(
    ctx: Context,
    files: Annotated[
        list[str],
        Argument(
            metavar="FILE...",
            help="The study file, or several, to work for in turn; or the suite files of a watched run "
            "(file.py, file.py:name, module:name, file.toml); or the name of a watched run all of whose parts are "
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
            help="Serve all studies, or watched runs, of the files in turn; wait for those that are absent or "
            "stopped.",
        ),
    ] = False,
) -> None:
    """Add workers to a study or to watched runs until they end; never make or change one. Ctrl-C stops them.

    Functions and commands come from the file, never from the store. A file that differs from what is stored is
    refused, with what differs.
    """
    options.works_here(workers)
    with options.interruptible(lambda: "interrupted; the study goes on without these workers"):
        if wait or _defined(Path(files[0])):
            _take_turns(ctx)
            return
        status = _join(ctx, files)
    raise Exit(status)


def _join(ctx: Context, files: Sequence[str]) -> int:
    """Evaluate for the watched runs that have the suites of some files, until they end; return the exit status."""
    from phyla.study.watching.display import ChangeDisplay
    from phyla.study.watching.watch import evaluate

    given = ctx.params
    # A word that names neither a file nor a module names a run.
    named = len(files) == 1 and ":" not in files[0] and Path(files[0]).suffix not in SUFFIXES
    with ChangeDisplay({}) as changes:
        watched = evaluate(
            files if named else [] if given["study"] is None else [given["study"]],
            () if named else files,
            given["workers"],
            gpus_per_worker=given["gpus_per_worker"],
            labels=options.listed(given["labels"]),
            stop_signal=given["stop_signal"],
            grace_s=given["grace"],
            time_limit_s=given["time_limit"],
            on_change=changes.show,
            on_interrupt=changes.interrupted,
            **options.where(ctx),
        )
    return finish(watched)


def _take_turns(ctx: Context) -> None:
    """Work for the first file, then for the others in a process that has not loaded the first one's modules."""
    from phyla.study.running.display import StudyDisplay, progress_line

    given: dict[str, Any] = {**options.where(ctx), **ctx.params}
    files, limit_s, wait = given.pop("files"), given.pop("time_limit"), given["wait"]
    began, found, completed, ended = time.monotonic(), [], 0, False
    with _waiting(wait):
        found = _studies(ctx, Path(files[0]), given["study"], wait=wait)
        if not found:
            _join(ctx, files[:1])
            ended = True
    for each in found:
        with _waiting(wait), StudyDisplay(each.name) as display:
            results = each.work(
                given["workers"],
                kinds=options.listed(given["kinds"]),
                gpus_per_worker=given["gpus_per_worker"],
                labels=options.listed(given["labels"]),
                stop_signal=given["stop_signal"],
                grace_s=given["grace"],
                time_limit_s=None if limit_s is None else max(1.0, limit_s - (time.monotonic() - began)),
                save_every_s=given["save_every"],
                on_progress=display.progressed,
                on_interrupt=display.interrupted,
            )
            progress = results.progress(0)
            display.print(f"{each.name} is {progress.study.state}: {progress_line(progress)}")
            completed += progress.study.state is StudyState.COMPLETED
    done = ended or 0 < len(found) == completed
    left = [*files[1:], *([] if done or not wait else files[:1])]
    if not left:
        return
    if not done:
        _pause(given["stop_signal"])
    if limit_s is not None:
        limit_s -= time.monotonic() - began + START_S
        if limit_s <= 0:
            raise Preempted("the time limit is over")
    words = worker_command(left, **given, time_limit=limit_s)
    os.execv(words[0], words)


@contextmanager
def _waiting(wait: bool) -> Iterator[None]:
    """Say what stands in the way now, and go on, if the worker is to wait for it."""
    try:
        yield
    except PhylaError as error:
        if not wait:
            raise
        print(f"looking again in {PAUSE_S:g} s: {error}", file=sys.stderr, flush=True)


def _studies(ctx: Context, file: Path, name: str | None, *, wait: bool) -> "list[Study]":
    """Return the studies to work for; with `wait`, none where the file has only suites of watched runs."""
    found = _defined(file) if wait else []
    if not wait or (found and name is not None):
        return [chosen_study(ctx, file, name)]
    for each in found:
        options.place(ctx, each)
    return found


def _defined(file: Path) -> "list[Study]":
    from phyla.study.files.load import load_studies

    return load_studies(file) if file.suffix in SUFFIXES else []


def _pause(stop_signal: str | None) -> None:
    from phyla.study.validation import make_term

    def stop(number: int, frame: object) -> None:
        raise Preempted(f"stopped by {signal.Signals(number).name}")

    for number in make_term(stop_signal, None).signals[1:]:
        signal.signal(number, stop)
    time.sleep(PAUSE_S)
