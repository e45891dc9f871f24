"""`phyla evaluate`: more workers for runs that are watched."""

import sys
from typing import Annotated

import typer

from phyla.cli import options
from phyla.cli.output import show as print

EXIT_INTERRUPTED = 130


def evaluate(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names of runs.")],
    suite: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SUITES",
            help="What the runs are watched with: file.py, file.py:name, module:name or file.toml; several times.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    home: options.Home = None,
    storage: options.Storage = None,
    checkpoints: options.Checkpoints = None,
    gpus_per_worker: Annotated[
        float, typer.Option(min=0, help="GPUs that each worker sees; 0.5 lets two workers share one.")
    ] = 0,
    gin: Annotated[
        list[str] | None, typer.Option(help="A gin binding of all workers; several times.", show_default=False)
    ] = None,
    alert: Annotated[bool, typer.Option("--alert", help="Print regressions as they are found.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Add workers to watched runs until those end. Ctrl-C stops them; their eval tasks go back to the queue.

    Functions and commands come from the suite files given here, never from the store.
    """
    from phyla.cli.changes import change_display, finish
    from phyla.study.watching import evaluate as add_workers

    display = change_display({}, as_json=as_json, alert=alert)
    try:
        watched = add_workers(
            runs,
            suite or (),
            workers,
            home=home,
            storage=storage,
            checkpoints=checkpoints,
            gpus_per_worker=gpus_per_worker,
            gin_bindings=gin or (),
            on_change=display.show,
            on_interrupt=display.interrupted,
        )
    except KeyboardInterrupt:
        display.close()
        print("Interrupted; eval tasks that were running start over when other workers take them", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        display.close()
    raise typer.Exit(finish(watched, as_json=as_json))
