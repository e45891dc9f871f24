"""Options that commands share, command lines to suggest next, and interruptions."""

import getpass
import math
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from typer import Argument, BadParameter, CallbackParam, Context, Exit, Option

from phyla import settings, study_modules
from phyla.errors import Preempted, UsageError
from phyla.formatting import mask_password, quote_command
from phyla.supervision.term import GRACE_S, STOP_AHEAD_S
from phyla.system.fork_safe_signals import EXIT_INTERRUPTED, EXIT_PREEMPTED
from phyla.system.late_end import LateEnd
from phyla.terminal import show

if TYPE_CHECKING:
    from phyla.study import Evaluations, Places, Results, Study

END_S = 30.0
"""Seconds that a run has to end after its workers."""
AGAIN_S = 5.0
"""Seconds that it has after one more signal."""
EXIT_FAILED = 1
EXIT_USAGE = 2

PLACES = ("--home", "--storage", "--server", "--checkpoints")
"""Options of `phyla` itself, which may also follow the command."""
OF_DATABASE = ("serve", "token")
"""Commands that open the database, and do not work through a service."""
READS_FILES = ("run", "worker", "watch", "check", "change", "replay", "up")
"""Commands that read a study file, which gets the arguments after `--`."""
BOTH = "train,evaluate"
"""What workers do by default."""

StudyName: TypeAlias = Annotated[str, Argument(metavar="STUDY", help="Name of the study.")]
RunName: TypeAlias = Annotated[str, Argument(metavar="NAME", help="Name of the study, or of the watched run.")]
StudyFile: TypeAlias = Annotated[
    Path, Argument(metavar="FILE", help="The file that defines the study: .py or .toml.")
]
Chosen: TypeAlias = Annotated[str | None, Option("--study", help="Name of the study, if the file has several.")]
Workers: TypeAlias = Annotated[int, Option(min=0, help="Worker processes; 0 trains in this process.")]
Kinds: TypeAlias = Annotated[
    str, Option(help="Jobs of the workers, if there are suites: train, evaluate, or both.")
]


def gpus(text: str) -> float | str:
    """Read `--gpus-per-worker`."""
    with suppress(ValueError):
        if text == "auto" or float(text) >= 0:
            return text if text == "auto" else float(text)
    raise BadParameter(f"{text!r}: give auto, an integer, or a fraction such as 0.5")


Gpus: TypeAlias = Annotated[
    Any,
    Option(
        parser=gpus,
        metavar="auto|NUMBER",
        help="GPUs per worker: auto for one each; 0.5 lets two workers share one; 0 shows all to each.",
    ),
]


def labels(text: str) -> str:
    """Check the labels of workers, separated by commas; return them without spaces."""
    from phyla.evaluation.suite import check_label

    names = split_list(text)
    for name in names:
        check_label(name, f"--labels {text}")
    return ",".join(names)


Suites: TypeAlias = Annotated[
    list[str] | None, Option(metavar="SUITES", help="file.py, file.py:name, module:name or file.toml.")
]
HarnessTasks: TypeAlias = Annotated[
    str | None, Option(metavar="TASKS", help="Tasks of lm-evaluation-harness, such as arc_easy,hellaswag.")
]
HarnessSettings: TypeAlias = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=VALUE", help="For these tasks: batch_size, limit, include_path, shards, ...; repeatable."
    ),
]
WatchGpus: TypeAlias = Annotated[
    str | None,
    Option(metavar="GPUS", help="GPUs for these workers, such as 6,7.", show_default="all that are visible"),
]
Labels: TypeAlias = Annotated[
    Any,
    Option(
        parser=labels,
        metavar="LABELS",
        help="Labels that eval tasks request with resources.label, such as a100,nvlink.",
    ),
]


def seconds(text: str) -> float:
    """Parse a duration, in seconds or with units: `90`, `90s`, `10m`, `3h50m`, `1d`."""
    number = r"(\d+\.?\d*|\.\d+)"
    parts = re.fullmatch("".join(f"(?:{number}{unit})?" for unit in "dhms"), text)
    with suppress(ValueError):
        counts = [float(part or 0) for part in parts.groups()] if parts else [0.0, 0.0, 0.0, float(text)]
        total = sum(count * unit for count, unit in zip(counts, (86400, 3600, 60, 1), strict=False))
        if 0 < total < float("inf"):
            return total
    raise BadParameter(f"{text!r}: give a time above 0, such as 90s, 10m, 4h or 3h50m")


def output_name(param: CallbackParam, name: Path | str | None) -> Path | str | None:
    """Refuse `-` as the name of a file to write, which other programs read as standard output."""
    if name is not None and str(name) == "-":
        raise UsageError(f"{param.opts[0]} -: name a file, or leave this option out")
    return name


def time_option(text: str, default: str | None = None) -> Any:
    """Return an option that takes a duration."""
    return Option(parser=seconds, metavar="TIME", help=text, show_default=default or False)


Board: TypeAlias = Annotated[
    Path | None, Option(metavar="DIR", help="Write TensorBoard event files while it runs.")
]
WatchTrackers: TypeAlias = Annotated[
    list[str] | None,
    Option(
        metavar="NAME[=PLACE][#RUN]",
        help="Log to wandb[=PROJECT], mlflow[=URI] or tensorboard[=DIR]; to an existing RUN; repeatable.",
    ),
]
TimeLimit: TypeAlias = Annotated[
    Any,
    time_option(
        "Stop after this time, such as 4h, with exit status 75; start no trial that would not finish in time. "
        "With --launcher: the time limit of each worker."
    ),
]
Grace: TypeAlias = Annotated[
    Any, time_option("Time that training has to stop after Ctrl-C or a signal, before it is killed.", "30s")
]
SaveEvery: TypeAlias = Annotated[Any, time_option("Ask training to save progress at this interval, such as 10m.")]
LauncherOptions: TypeAlias = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=VALUE",
        help="For the launcher: nodes=2, cpus=4, memory=16G, or its own options (partition=gpu); repeatable.",
    ),
]
StopSignal: TypeAlias = Annotated[
    str | None, Option(metavar="SIGNAL", help="A signal that stops the command as SIGTERM does, such as USR1.")
]
AsJson: TypeAlias = Annotated[bool, Option("--json", help="Print only JSON.")]


def where(ctx: Context) -> dict[str, Any]:
    """Return `--home`, `--storage` or `--server`, and `--checkpoints` as keyword arguments."""
    options = ctx.find_root().params
    server, storage = options["server"], options["storage"]
    if server is not None and storage is not None:
        raise UsageError("give --server or --storage, not both: the service has the store")
    if server is not None:
        if "://" not in server and not server.endswith(".json"):
            raise UsageError(
                f"--server {mask_password(server)}: give a URL such as http://host:8470, or the service.json that "
                "`phyla serve --publish` writes into its home"
            )
        storage = server if "://" in server else f"published:{Path(server).absolute()}"
    # A context has options as text: typer converts them for functions only.
    home = None if options["home"] is None else Path(options["home"])
    return {"home": home, "storage": storage, "checkpoints": options["checkpoints"]}


def places(ctx: Context) -> "Places":
    """Return where studies live."""
    from phyla.study import Places

    return Places.of(**where(ctx))


def database(ctx: Context) -> "Places":
    """Return where studies live, with the database of the home, even if a service is published there."""
    from phyla.store.sqlite_url import sqlite_url

    named = where(ctx)["storage"] or settings.storage()
    return places(ctx) if named else replace(places(ctx), storage=sqlite_url(places(ctx).home / "phyla.db"))


def open_run(ctx: Context, name: str) -> "Results | Evaluations":
    """Open a study, or a watched run, by its name."""
    from phyla.study.results.load import open_any

    return open_any(name, places(ctx))


def apply_places(ctx: Context, study: "Study") -> None:
    """Move a study of a file to the places that the options name."""
    options, chosen = where(ctx), places(ctx)
    if options["home"] is not None:
        study.places = replace(chosen, checkpoint_root=chosen.home / "checkpoints", named=False)
    elif options["storage"] is not None:
        study.places = replace(study.places, storage=options["storage"])
    if options["checkpoints"] is not None:
        study.places = replace(study.places, checkpoint_root=chosen.checkpoint_root, named=True)


def file_arguments(*, dashes: bool = False) -> list[str]:
    """Return the arguments for the study file: those after `--`, or with `dashes` from `--` on."""
    return study_modules.command_line()[len(own_arguments()) + (1 if dashes else 2) :]


def own_arguments() -> list[str]:
    """Return the arguments of phyla itself: those before `--`."""
    return [*takewhile(lambda word: word != "--", study_modules.command_line()[1:])]


def split_list(text: str | None) -> list[str]:
    """Split the value of an option at its commas."""
    return [] if text is None else [word.strip() for word in text.split(",")]


def contain_children(workers: int) -> None:
    """End processes that user code starts together with this process, if it trains itself, as workers do."""
    if not workers:
        from phyla.worker.containment.keeper import end_children_at_exit

        end_children_at_exit()


@contextmanager
def interruptible(message: Callable[[], str]) -> Iterator[None]:
    """When the user interrupts the block, print a message and end the command."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        preempted = isinstance(interrupt, Preempted)
        with suppress(OSError):  # the terminal may be gone
            show(f"{interrupt}. {message()}" if preempted else message(), file=sys.stderr)
        raise Exit(EXIT_PREEMPTED if preempted else EXIT_INTERRUPTED) from None


def late_end(grace_s: float | None, *, placed: bool = False) -> LateEnd:
    """Return a guard that ends this process if a signal does not, for example because a database hangs.

    Workers that a launcher `placed` are stopped by their engine. After one signal it may take as long as it needs,
    and after the second as long as a launcher waits for it.
    """
    hangs = "error: this process waits for a database or a disk that does not answer, so it was ended"
    if placed:
        # A launcher waits for at most a minute.
        return LateEnd(
            (math.inf, 60 + END_S, AGAIN_S),
            f"{hangs}. Its pool may still run: see it with `phyla workers`, stop it with `phyla down`",
        )
    # Shortly before a time limit workers have `STOP_AHEAD_S` to save.
    longest_s = max(GRACE_S if grace_s is None else grace_s, STOP_AHEAD_S) + END_S
    return LateEnd(
        (longest_s, AGAIN_S), f"{hangs} with its workers. Their jobs go back to the queue when their leases end"
    )


def add_places(text: str, commands: Iterable[str]) -> str:
    """Add the place options of this command line to the commands in a message, so that they can be pasted."""
    options, words = dict[str, list[str]](), iter(own_arguments())
    for word in words:
        name = word.partition("=")[0]
        if name in PLACES:
            options[name] = [word] if "=" in word else [word, next(words, "")]
    if not options or re.search(
        r"\bphyla [^\n;()]*--(home|storage|server)\b", text
    ):  # The commands have place options already.
        return text
    served = any(re.match(r"--server\b|(--storage[= ])?https?://", " ".join(words)) for words in options.values())
    names = [name for name in commands if not (served and name in OF_DATABASE)]

    def complete(match: re.Match[str]) -> str:
        missing = [
            mask_password(word) for name, words in options.items() if name not in match[1] for word in words
        ]
        return f"phyla {quote_command(missing)} " if missing else match[0]

    # What follows, up to the next command, may have an option.
    return re.sub(rf"\bphyla (?=((?:{'|'.join(names)})\b(?:(?!\bphyla )[^\n;()])*))", complete, text)


def resume_command() -> str:
    """Return the command line that resumes this run: the same, without --overwrite."""
    words = [mask_password(word) for word in study_modules.command_line()[1:]]
    for at, word in enumerate(own_arguments()):
        if word.partition("=")[0] == "--overwrite":
            del words[at : at + (1 if "=" in word else 2)]
            break
    return quote_command(["phyla", *words])


def user_name() -> str:
    """Return the name of the user and the machine, for the record of changes."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a user of a container without a name
        name = f"user {os.getuid()}"
    return f"{name} on {platform.node() or 'this machine'}"
