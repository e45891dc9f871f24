"""`phyla worker`: more workers for a study that somebody runs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phyla.cli import options
from phyla.cli.output import show as print

if TYPE_CHECKING:
    from phyla.study import Study

EXIT_INTERRUPTED = 130
BOTH = "train,evaluate"


def worker(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="The file that defines the study.")],
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0 works in this process.")] = 2,
    kinds: Annotated[
        str, typer.Option(help="What the workers do, where there are suites: train, evaluate, or both.")
    ] = BOTH,
    study: Annotated[
        str | None, typer.Option(help="Name of the study, if the file has several.", show_default=False)
    ] = None,
    home: options.FileHome = None,
    storage: options.FileStorage = None,
    checkpoints: options.Checkpoints = None,
    gpus_per_worker: Annotated[
        float, typer.Option(min=0, help="GPUs that each worker sees; 0.5 lets two workers share one.")
    ] = 0,
) -> None:
    """Add workers to a study until it ends; never make or change one. Ctrl-C stops them.

    Functions and commands come from the study file, never from the store. A file that differs from the stored
    study is refused, with what differs.
    """
    from phyla.cli.run import chosen_study
    from phyla.cli.watching import Watch
    from phyla.cli.words import progress_line

    chosen = chosen_study(file, study, home, storage)
    _place(chosen, checkpoints)
    try:
        with Watch(chosen.name) as watch:
            results = chosen.work(
                workers,
                kinds=[kind.strip() for kind in kinds.split(",")],
                gpus_per_worker=gpus_per_worker,
                on_progress=watch.progressed,
                on_interrupt=watch.interrupted,
            )
    except KeyboardInterrupt:
        print("interrupted; the study goes on without these workers", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    progress = results.progress()
    print(f"{chosen.name} is {progress.study.state}: {progress_line(progress, None)}")


def _place(study: "Study", checkpoints: Path | None) -> None:
    """Let the study's checkpoints be where the option says."""
    from dataclasses import replace

    if checkpoints is not None:
        study.places = replace(study.places, checkpoint_root=checkpoints.expanduser().absolute())
