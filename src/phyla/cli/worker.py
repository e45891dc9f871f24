"""`phyla worker`: more workers for a study that is run, or for runs that are watched, elsewhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Exit, Option

from phyla.cli import options
from phyla.cli.feed import ChangeDisplay, finish
from phyla.cli.output import show as print
from phyla.cli.run import chosen_study, studies_of
from phyla.cli.watch_display import Watch
from phyla.cli.words import progress_line

if TYPE_CHECKING:
    from phyla.study import Study


def worker(
    ctx: Context,
    files: Annotated[
        list[str],
        Argument(
            metavar="FILE...",
            help="The study file; or the suite files of a watched run (file.py, file.py:name, module:name, "
            "file.toml); or the name of a watched run all of whose parts are registered plug-ins.",
        ),
    ],
    workers: options.Workers = 2,
    kinds: options.Kinds = options.BOTH,
    study: Annotated[
        str | None, Option(help="Name of the study or watched run, if the file has several.", show_default=False)
    ] = None,
    gpus_per_worker: options.Gpus = 0,
    gin: Annotated[
        list[str] | None,
        Option(help="For watched runs: a gin binding of all workers; several times.", show_default=False),
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
        raise options.interrupted("interrupted; the study goes on without these workers") from None


def _study(ctx: Context, files: list[str], name: str | None) -> "Study | None":
    """Return the study that a file defines; None if the files are not a study file."""
    if len(files) > 1 or Path(files[0]).suffix != ".py":
        return None
    file = Path(files[0])
    return chosen_study(ctx, file, name) if studies_of(file) else None


def _train(study: "Study", workers: int, kinds: str, gpus_per_worker: float) -> None:
    with Watch(study.name) as watch:
        results = study.work(
            workers,
            kinds=options.listed(kinds),
            gpus_per_worker=gpus_per_worker,
            on_progress=watch.progressed,
            on_interrupt=watch.interrupted,
        )
    progress = results.progress()
    print(f"{study.name} is {progress.study.state}: {progress_line(progress, None)}")


def _evaluate(
    ctx: Context, files: list[str], run: str | None, workers: int, gpus_per_worker: float, gin: list[str]
) -> None:
    from phyla.study.watching import evaluate

    # A word that names neither a file nor a module names a run.
    named = len(files) == 1 and ":" not in files[0] and Path(files[0]).suffix not in (".py", ".toml")
    with ChangeDisplay({}) as display:
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
    raise Exit(finish(watched, as_json=False))
