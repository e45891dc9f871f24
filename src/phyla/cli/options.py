"""What commands share: options and what they mean, command lines to give next, interruptions."""

import getpass
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

from typer import Argument, BadParameter, Context, Exit, Option

from phyla import settings, study_modules
from phyla.errors import Preempted, UsageError
from phyla.formatting import mask_password, quote_command
from phyla.system.fork_safe_signals import EXIT_INTERRUPTED, EXIT_PREEMPTED
from phyla.terminal import show

if TYPE_CHECKING:
    from phyla.study import Evaluations, Places, Results, Study

EXIT_FAILED = 1
EXIT_USAGE = 2

PLACES = ("--home", "--storage", "--server", "--checkpoints")
"""Options of `phyla` itself, which may also follow the command."""
OF_DATABASE = ("serve", "token")
"""Commands that open the database and are refused through a service."""
READS_FILES = ("run", "worker", "watch", "check", "change", "replay", "up")
"""Commands that read a study file, which sees the words after `--`."""
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
    str, Option(help="What the workers do, where there are suites: train, evaluate, or both.")
]


def gpus(text: str) -> float | str:
    """Read `--gpus-per-worker`."""
    with suppress(ValueError):
        if text == "auto" or float(text) >= 0:
            return text if text == "auto" else float(text)
    raise BadParameter(f"{text!r}: give auto, a whole number, or a fraction such as 0.5")


Gpus: TypeAlias = Annotated[
    Any,
    Option(
        parser=gpus,
        metavar="auto|NUMBER",
        help="GPUs that each worker sees: auto for one each; 0.5 lets two workers share one; 0 shows all to each.",
    ),
]


def labels(text: str) -> str:
    """Check the labels of workers, with commas between; return them without spaces."""
    from phyla.evaluation.suite import check_label

    found = listed(text)
    for label in found:
        check_label(label, f"--labels {text}")
    return ",".join(found)


Labels: TypeAlias = Annotated[
    Any,
    Option(
        parser=labels, metavar="LABELS", help="What eval tasks may ask for with resources.label, as a100,nvlink."
    ),
]


def seconds(text: str) -> float:
    """Read a span of time, in seconds or with units: `90`, `90s`, `10m`, `3h50m`, `1d`."""
    number = r"(\d+\.?\d*|\.\d+)"
    parts = re.fullmatch("".join(f"(?:{number}{unit})?" for unit in "dhms"), text)
    with suppress(ValueError):
        given = [float(part or 0) for part in parts.groups()] if parts else [0.0, 0.0, 0.0, float(text)]
        total = sum(part * unit for part, unit in zip(given, (86400, 3600, 60, 1), strict=False))
        if 0 < total < float("inf"):
            return total
    raise BadParameter(f"{text!r}: give a time above 0, as 90s, 10m, 4h or 3h50m")


def span(text: str, default: str | None = None) -> Any:
    """Return an option that takes a span of time."""
    return Option(parser=seconds, metavar="TIME", help=text, show_default=default or False)


TimeLimit: TypeAlias = Annotated[
    Any,
    span(
        "Stop after this time, as 4h, with exit status 75; begin nothing that would not end in time. "
        "With --launcher: the time of each worker."
    ),
]
Grace: TypeAlias = Annotated[
    Any, span("After Ctrl-C or a signal: time that training has to stop, before it is ended.", "30s")
]
SaveEvery: TypeAlias = Annotated[Any, span("Ask training to save its progress so often, as 10m.")]
LauncherOptions: TypeAlias = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=VALUE",
        help="For the launcher: cpus=4, memory=16G, or what it alone knows, as partition=gpu; several times.",
    ),
]
StopSignal: TypeAlias = Annotated[
    str | None, Option(metavar="SIGNAL", help="A signal that stops it as SIGTERM does, such as USR1.")
]
AsJson: TypeAlias = Annotated[bool, Option("--json", help="Print JSON and nothing else.")]


def where(ctx: Context) -> dict[str, Any]:
    """Return what `--home`, `--storage` or `--server`, and `--checkpoints` say, as keyword arguments."""
    given = ctx.find_root().params
    server, storage = given["server"], given["storage"]
    if server is not None and storage is not None:
        raise UsageError("--server and --storage exclude each other: the service has the store")
    if server is not None:
        if "://" not in server and not server.endswith(".json"):
            raise UsageError(
                f"--server {mask_password(server)}: give a URL such as http://host:8470, or the service.json that "
                "`phyla serve --publish` writes into its home"
            )
        storage = server if "://" in server else f"published:{Path(server).absolute()}"
    return {"home": given["home"], "storage": storage, "checkpoints": given["checkpoints"]}


def places(ctx: Context) -> "Places":
    """Return where studies live."""
    from phyla.study import Places

    return Places.of(**where(ctx))


def database(ctx: Context) -> "Places":
    """Return where studies live, in a home with its own database, whatever service has published itself there."""
    from phyla.store.sqlite_url import sqlite_url

    named = where(ctx)["storage"] or settings.storage()
    return places(ctx) if named else replace(places(ctx), storage=sqlite_url(places(ctx).home / "phyla.db"))


def opened(ctx: Context, name: str) -> "Results | Evaluations":
    """Open a study, or a watched run, by its name."""
    from phyla.study.results.load import open_any

    return open_any(name, places(ctx))


def place(ctx: Context, study: "Study") -> None:
    """Let a study of a file live where the options say."""
    given, said = where(ctx), places(ctx)
    if given["home"] is not None:
        study.places = replace(said, checkpoint_root=said.home / "checkpoints", named=False)
    elif given["storage"] is not None:
        study.places = replace(study.places, storage=given["storage"])
    if given["checkpoints"] is not None:
        study.places = replace(study.places, checkpoint_root=said.checkpoint_root, named=True)


def for_file(*, dashes: bool = False) -> list[str]:
    """Return the words that the command line has for the study file: those after `--`, or from there on."""
    return study_modules.command_line()[len(before_file()) + (1 if dashes else 2) :]


def before_file() -> list[str]:
    """Return the words of the command line that are phyla's."""
    return [*takewhile(lambda word: word != "--", study_modules.command_line()[1:])]


def listed(text: str | None) -> list[str]:
    """Return the words of an option that takes several, with commas between."""
    return [] if text is None else [word.strip() for word in text.split(",")]


def works_here(workers: int) -> None:
    """Let what user code starts in this process end with it, if it works itself, as with worker processes."""
    if not workers:
        from phyla.worker.containment.keeper import end_children_at_exit

        end_children_at_exit()


@contextmanager
def interruptible(told: Callable[[], str]) -> Iterator[None]:
    """When a person interrupts what is done meanwhile, say what that means, and end the command."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        preempted = isinstance(interrupt, Preempted)
        with suppress(OSError):  # the terminal may be gone
            show(f"{interrupt}. {told()}" if preempted else told(), file=sys.stderr)
        raise Exit(EXIT_PREEMPTED if preempted else EXIT_INTERRUPTED) from None


def with_places(text: str, commands: Iterable[str]) -> str:
    """Return a message whose command lines say where studies live as this one does, so that they can be pasted."""
    given, words = list[str](), iter(before_file())
    for word in words:
        if word.partition("=")[0] in PLACES:
            given += [word] if "=" in word else [word, next(words, "")]
    if not given or re.search(r"\bphyla [^\n;()]*--(home|storage|server)\b", text):  # They say so themselves.
        return text
    where = quote_command(map(mask_password, given))
    served = any(re.match(r"--server\b|(--storage=)?https?://", word) for word in given)
    names = [name for name in commands if not (served and name in OF_DATABASE)]
    return re.sub(rf"\bphyla (?=(?:{'|'.join(names)})\b)", lambda _: f"phyla {where} ", text)


def again() -> str:
    """Return the command line of this process, to be given once more; it does not overwrite again."""
    words = [mask_password(word) for word in study_modules.command_line()[1:]]
    for at, word in enumerate(before_file()):
        if word.partition("=")[0] == "--overwrite":
            del words[at : at + (1 if "=" in word else 2)]
            break
    return quote_command(["phyla", *words])


def person() -> str:
    """Return who types the command, for the record of what people did."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a user of a container without a name
        name = f"user {os.getuid()}"
    return f"{name} on {platform.node() or 'this machine'}"
