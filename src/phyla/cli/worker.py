"""`phyla worker`: more workers for a study that is run, or for runs that are watched, elsewhere."""

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
    ctx: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="The study file; or the suite files of a watched run (file.py, file.py:name, module:name, "
            "file.toml); or the name of a watched run all of whose parts are registered plug-ins.",
        ),
    ],
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0 trains in this process.")] = 2,
    kinds: options.Kinds = BOTH,
    study: Annotated[
        str | None,
        typer.Option(help="Name of the study or watched run, if the file has several.", show_default=False),
    ] = None,
    gpus_per_worker: options.Gpus = 0,
    gin: Annotated[
        list[str] | None,
        typer.Option(help="For watched runs: a gin binding of all workers; several times.", show_default=False),
    ] = None,
) -> None:
    """Add workers to a study or to watched runs until they end; never make or change one. Ctrl-C stops them.

    Functions and commands come from the file, never from the store. A file that differs from what is stored is
    refused, with what differs.
    """
    chosen = _study(ctx, files, study)
    try:
        if chosen is not None:
            _train(chosen, workers, kinds, gpus_per_worker)
        else:
            _evaluate(ctx, files, study, workers, gpus_per_worker, gin or [])
    except KeyboardInterrupt:
        print("interrupted; the study goes on without these workers", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _study(ctx: typer.Context, files: list[str], name: str | None) -> "Study | None":
    """Return the study that a file defines; None if the files are not a study file."""
    from phyla.cli.run import chosen_study, studies_of

    if len(files) > 1 or Path(files[0]).suffix != ".py":
        return None
    file = Path(files[0])
    return chosen_study(ctx, file, name) if studies_of(file) else None


def _train(study: "Study", workers: int, kinds: str, gpus_per_worker: float) -> None:
    from phyla.cli.watching import Watch
    from phyla.cli.words import progress_line

    with Watch(study.name) as watch:
        results = study.work(
            workers,
            kinds=[kind.strip() for kind in kinds.split(",")],
            gpus_per_worker=gpus_per_worker,
            on_progress=watch.progressed,
            on_interrupt=watch.interrupted,
        )
    progress = results.progress()
    print(f"{study.name} is {progress.study.state}: {progress_line(progress, None)}")


def _evaluate(
    ctx: typer.Context, files: list[str], run: str | None, workers: int, gpus_per_worker: float, gin: list[str]
) -> None:
    from phyla.cli.changes import change_display, finish
    from phyla.study.watching import evaluate

    named = len(files) == 1 and not _names_file(files[0])
    display = change_display({}, as_json=False, alert=False)
    try:
        watched = evaluate(
            files if named else [run] if run is not None else [],
            () if named else files,
            workers,
            gpus_per_worker=gpus_per_worker,
            gin_bindings=gin,
            on_change=display.show,
            on_interrupt=display.interrupted,
            **options.where(ctx),
        )
    finally:
        display.close()
    raise typer.Exit(finish(watched, as_json=False))


def _names_file(text: str) -> bool:
    """Return whether a word names a file or a module, and not a run."""
    return ":" in text or Path(text).suffix in (".py", ".toml")
