"""The application: every command, and what becomes of errors.

Command modules import what they need inside their functions, so that `phyla --help` is quick.
"""

import io
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from phyla.cli import (
    best,
    compare,
    control,
    doctor,
    evaluate,
    evaluations,
    export,
    gc,
    lineage,
    replay,
    report,
    run,
    simulate,
    status,
    trials,
    watch,
)
from phyla.errors import PhylaError, UsageError

EXIT_FAILED = 1
EXIT_USAGE = 2

app = typer.Typer(
    name="phyla",
    help="Population based training: run studies, watch training jobs, and see what they found.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(run.run)
app.command()(simulate.simulate)
app.command()(replay.replay)
app.command(name="continue")(replay.continue_)
app.command()(watch.watch)
app.command()(evaluate.evaluate)
app.command()(status.status)
app.command()(best.best)
app.command()(compare.compare)
app.command()(lineage.lineage)
app.command()(trials.trials)
app.command()(evaluations.evaluations)
app.command()(export.export)
app.command()(report.report)
app.command()(gc.gc)
app.command()(control.stop)
app.command()(control.resume)
app.command()(control.resize)
app.command()(control.change)
app.command()(doctor.doctor)


def _print_version(value: bool) -> None:
    if value:
        from phyla import __version__

        print(f"phyla {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def run_app() -> NoReturn:
    """Run the command line and exit; errors of ours become one paragraph, others show where they came from."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path may contain bytes that are not text; they are printed as they are.
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        app()
    except PhylaError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)
    except Exception:  # noqa: BLE001  # the last resort: nothing is hidden, and the way to report it is shown
        traceback.print_exc()
        print(
            "\nerror: this is a bug in phyla, or in a plug-in. Please report it with the text above and the "
            "output of `phyla doctor`.",
            file=sys.stderr,
        )
        sys.exit(EXIT_FAILED)
    sys.exit(0)
