"""The application: every command, how it reads the command line, and how it reports errors.

Commands import slow modules inside their functions, so that `phyla --help` is quick.
"""

import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer import BadParameter, Context, Exit, Option
from typer.core import TyperGroup

import phyla
from phyla import settings, study_modules
from phyla.cli import options
from phyla.cli.check import check
from phyla.cli.evaluations import evaluations
from phyla.cli.export import compare, export, report
from phyla.cli.init import init
from phyla.cli.maintenance import change, delete, doctor, gc, stop
from phyla.cli.pools import down, up, workers
from phyla.cli.run import final, replay, run, watch
from phyla.cli.serve import dashboard, serve, token
from phyla.cli.status import status
from phyla.cli.trials import best, trials
from phyla.cli.worker import worker
from phyla.errors import (
    PhylaError,
    UsageError,
    advice_on,
    hidden_modules,
    is_limit_error,
    is_place_error,
    is_storage_error,
)
from phyla.terminal import flush_output, visible
from phyla.terminal import show as print


class Commands(TyperGroup):
    """The commands; options such as `--home` may come before or after them."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Put the options of `phyla` itself first, wherever they are."""
        first: list[str] = []
        rest: list[str] = []
        words = iter(args)
        for word in words:
            if word == "--":
                if not rest or rest[0] not in options.READS_FILES:
                    rest += [word, *words]
                break
            name, equals, after = word.partition("=")
            if name not in options.PLACES:
                rest.append(word)
                continue
            value = after if equals else next(words, None)
            if value is None:
                ctx.fail(f"Option '{name}' requires an argument.")
            if not value:
                ctx.fail(f"{name} is empty; is its variable unset?")
            first += [name, value]
        return super().parse_args(ctx, [*first, *rest])

    def invoke(self, ctx: Context) -> Any:  # type: ignore[override]
        """Run the command; errors about invalid values begin with the value."""
        try:
            return super().invoke(ctx)
        except BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    name="phyla",
    cls=Commands,
    help="Population based training: run studies, evaluate checkpoints of training jobs, and look at the results.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PANELS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Run": (run, check, watch, stop, change, init, replay, final),
    "Inspect": (status, dashboard, best, trials, evaluations, report, compare),
    "Run on many machines": (worker, up, down, workers, serve),
    "Maintain": (export, token, gc, delete, doctor),
}
for panel, commands in PANELS.items():
    for function in commands:
        epilog = "Also: --home, --storage, --server and --checkpoints; see phyla --help."
        app.command(rich_help_panel=panel, epilog=epilog)(function)


def _print_version(value: bool) -> None:
    if value:
        from phyla import __version__

        print(f"phyla {__version__}")
        raise Exit


@app.callback()
def _options(
    home: Annotated[
        Path | None,
        Option(
            metavar="DIR", help="Directory of studies.", show_default="that of the file, PHYLA_HOME, or .phyla"
        ),
    ] = None,
    storage: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="Database of studies.",
            show_default="SQLite in --home; else that of the file, PHYLA_STORAGE, or SQLite in the home",
        ),
    ] = None,
    server: Annotated[
        str | None, Option(metavar="URL", help="A service instead of a database: its URL, or its service.json.")
    ] = None,
    checkpoints: Annotated[
        str | None,
        Option(
            metavar="DIR|URL",
            help="Where checkpoints are: a directory, or s3://bucket/prefix.",
            show_default="checkpoints in --home; else that of the file, or checkpoints in the home",
        ),
    ] = None,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def format_warnings(commands: list[str]) -> None:
    """Print warnings of phyla without their place in its source, and add the options of this command line."""
    formatted, own = warnings.formatwarning, str(Path(phyla.__file__).parent)

    def form(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        ours = category is UserWarning and Path(filename).is_relative_to(own)
        text = f"warning: {message}\n" if ours else formatted(message, category, filename, lineno, line)
        return visible(options.add_places(text, commands))

    warnings.formatwarning = form


def run_app() -> NoReturn:
    """Run the command line and exit; errors of phyla are one paragraph, others a traceback."""
    names = [function.__name__ for commands in PANELS.values() for function in commands]
    format_warnings(names)
    settings.open_closed_output()
    settings.prepare_output()
    study_modules.begin([""])
    sys.argv += options.file_arguments()
    try:
        try:
            app(study_modules.command_line()[1:], prog_name="phyla")
        finally:
            flush_output()
    except BrokenPipeError:  # the reader has seen enough, as in `| head`
        sys.exit(options.EXIT_FAILED)
    except PhylaError as error:
        print(f"error: {options.add_places(str(error), names)}", file=sys.stderr)
        sys.exit(options.EXIT_USAGE if isinstance(error, UsageError) else options.EXIT_FAILED)
    except Exception as error:  # noqa: BLE001  # last resort: show everything, and how to report it
        # The output may be on the same disk.
        if is_storage_error(error) or is_place_error(error) or is_limit_error(error):
            print(f"error: {str(error) or type(error).__name__}; {advice_on(error)}", file=sys.stderr)
            sys.exit(options.EXIT_FAILED)
        if hidden := hidden_modules():
            print(f"error: {type(error).__name__}: {error}; {hidden}", file=sys.stderr)
            sys.exit(options.EXIT_FAILED)
        print(traceback.format_exc(), file=sys.stderr)
        print(
            "\nerror: this is a bug in phyla, or in a plug-in. Please report it with the text above and the "
            "output of `phyla doctor`.",
            file=sys.stderr,
        )
        sys.exit(options.EXIT_FAILED)
    sys.exit(0)
