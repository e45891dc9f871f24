"""The application: every command, and what becomes of errors.

Command modules import what they need inside their functions, so that `phyla --help` is quick.
"""

import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from phyla import settings
from phyla.cli import (
    best,
    compare,
    control,
    doctor,
    evaluations,
    export,
    gc,
    options,
    replay,
    report,
    run,
    simulate,
    status,
    trials,
    watch,
    worker,
)
from phyla.cli.group import Commands
from phyla.cli.output import show as print
from phyla.cli.output import visible
from phyla.errors import PhylaError, UsageError

EXIT_FAILED = 1
EXIT_USAGE = 2

app = typer.Typer(
    name="phyla",
    cls=Commands,
    help="Population based training: run studies, watch training jobs, and see what they found.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PANELS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Run": (run.run, worker.worker, watch.watch, control.change, control.stop, replay.replay, simulate.simulate),
    "Look": (
        status.status,
        best.best,
        trials.trials,
        evaluations.evaluations,
        compare.compare,
        report.report,
        export.export,
    ),
    "Look after": (gc.gc, doctor.doctor),
}
for panel, commands in PANELS.items():
    for function in commands:
        app.command(rich_help_panel=panel, epilog="Also: --home, --storage and --checkpoints; see phyla --help.")(
            function
        )


def _print_version(value: bool) -> None:
    if value:
        from phyla import __version__

        print(f"phyla {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    home: options.Home = None,
    storage: options.Storage = None,
    checkpoints: options.Checkpoints = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def run_app() -> NoReturn:
    """Run the command line and exit; errors of ours become one paragraph, others show where they came from."""
    formatted = warnings.formatwarning
    warnings.formatwarning = lambda *told, **more: visible(formatted(*told, **more))
    settings.escape_output()
    try:
        app()
    except PhylaError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)
    except Exception:  # noqa: BLE001  # the last resort: nothing is hidden, and the way to report it is shown
        print(traceback.format_exc(), file=sys.stderr)
        print(
            "\nerror: this is a bug in phyla, or in a plug-in. Please report it with the text above and the "
            "output of `phyla doctor`.",
            file=sys.stderr,
        )
        sys.exit(EXIT_FAILED)
    sys.exit(0)
