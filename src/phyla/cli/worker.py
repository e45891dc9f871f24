"""`phyla worker`: adds workers to studies that run elsewhere."""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Exit, Option

from phyla.cli import options
from phyla.cli.live import ChangeDisplay, StudyDisplay, progress_line
from phyla.cli.output import show as print
from phyla.cli.run import chosen_study, finish
from phyla.errors import PhylaError, Preempted
from phyla.records import StudyState

if TYPE_CHECKING:
    from phyla.study import Study

PAUSE_S = 10.0
"""Seconds until a worker that waits looks again."""
START_S = 2.0
"""Seconds that a new process may need to begin."""


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
    time_limit: options.TimeLimit = None,
    save_every: options.SaveEvery = None,
    stop_signal: options.StopSignal = None,
    wait: Annotated[
        bool,
        Option(
            "--wait", help="Serve all studies of the files in turn; wait for those that are absent or stopped."
        ),
    ] = False,
    gin: options.Gin = None,
) -> None:
    """Add workers to a study or to watched runs until they end; never make or change one. Ctrl-C stops them.

    Functions and commands come from the file, never from the store. A file that differs from what is stored is
    refused, with what differs.
    """
    from phyla.study.files import load_studies
    from phyla.study.watching import evaluate

    file = Path(files[0])
    given = {
        "--kinds": kinds,
        "--study": study,
        "--gpus-per-worker": gpus_per_worker,
        "--stop-signal": stop_signal,
    }
    if save_every is not None:
        given["--save-every"] = f"{save_every:g}s"
    with options.interruptible(lambda: "interrupted; the study goes on without these workers"):
        if wait or (file.suffix in (".py", ".toml") and load_studies(file)):
            how = {
                "kinds": options.listed(kinds),
                "gpus_per_worker": gpus_per_worker,
                "stop_signal": stop_signal,
                "save_every_s": save_every,
            }
            _take_turns(ctx, files, study, workers, time_limit, given, how, wait=wait)
            return
        # A word that names neither a file nor a module names a run.
        named = len(files) == 1 and ":" not in files[0] and file.suffix not in (".py", ".toml")
        with ChangeDisplay({}) as changes:
            watched = evaluate(
                files if named else [study] if study is not None else [],
                () if named else files,
                workers,
                gpus_per_worker=gpus_per_worker,
                gin_bindings=gin or (),
                stop_signal=stop_signal,
                time_limit_s=time_limit,
                on_change=changes.show,
                on_interrupt=changes.interrupted,
                **options.where(ctx),
            )
    raise Exit(finish(watched, as_json=False))


def _take_turns(
    ctx: Context,
    files: Sequence[str],
    name: str | None,
    workers: int,
    limit_s: float | None,
    given: Mapping[str, Any],
    how: Mapping[str, Any],
    *,
    wait: bool,
) -> None:
    """Work for the first file, then for the others in a process that has not loaded the first one's modules."""
    began, done = time.monotonic(), True
    for each in _studies(ctx, Path(files[0]), name, wait=wait):
        try:
            with StudyDisplay(each.name) as display:
                results = each.work(
                    workers,
                    time_limit_s=_left_s(limit_s, began),
                    on_progress=display.progressed,
                    on_interrupt=display.interrupted,
                    **how,
                )
            progress = results.progress()
            print(f"{each.name} is {progress.study.state}: {progress_line(progress)}", flush=True)
            done = done and progress.study.state is StudyState.COMPLETED
        except PhylaError as error:
            if not wait:
                raise
            print(f"{error}\nlooking again in {PAUSE_S:g} s", file=sys.stderr, flush=True)
            done = False
    left = [*files[1:], *([] if done or not wait else files[:1])]
    if not left:
        return
    if not done:
        _pause(how["stop_signal"])
    words = worker_command(left, {**options.where(ctx), "workers": workers}, given, wait=wait)
    left_s = _left_s(limit_s, began - START_S)
    os.execv(words[0], words if left_s is None else [*words, "--time-limit", f"{left_s:g}s"])


def worker_command(
    files: Sequence[str], where: Mapping[str, Any], given: Mapping[str, Any], *, wait: bool = False
) -> list[str]:
    """Return the words that start `phyla worker` with these options, as far as they have a value."""
    options_given = {**{f"--{name}": value for name, value in where.items()}, **given}
    words = [word for option, value in options_given.items() if value is not None for word in (option, str(value))]
    return [sys.executable, "-P", "-m", "phyla.cli", "worker", *files, *words, *(["--wait"] if wait else [])]


def _studies(ctx: Context, file: Path, name: str | None, *, wait: bool) -> "list[Study]":
    from phyla.study.files import load_studies

    if name is not None or not wait:
        return [chosen_study(ctx, file, name)]
    found = load_studies(file)
    for each in found:
        options.place(ctx, each)
    return found


def _left_s(limit_s: float | None, began: float) -> float | None:
    return None if limit_s is None else max(1.0, limit_s - (time.monotonic() - began))


def _pause(stop_signal: str | None) -> None:
    from phyla.study.checked import checked_term

    def stop(number: int, frame: object) -> None:
        raise Preempted(f"stopped by {signal.Signals(number).name}")

    for number in checked_term(stop_signal, None).signals[1:]:
        signal.signal(number, stop)
    time.sleep(PAUSE_S)
