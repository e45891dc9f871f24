"""`phyla stop` and `phyla change`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from phyla.cli import options
from phyla.cli.output import show as print


def stop(ctx: typer.Context, study: options.StudyName) -> None:
    """Stop a study: running workers finish their trial and end."""
    from phyla.cli.words import command
    from phyla.study import maintain

    maintenance = maintain(study, **options.where(ctx))
    maintenance.stop("stopped by a person")
    print(f"stopped {study}: its workers finish their trial and end")
    print(
        f"run its study file again to let it go on; without workers of this machine: "
        f"{command('change', study, maintenance.places)}"
    )


def change(
    ctx: typer.Context,
    study: Annotated[
        str, typer.Argument(metavar="FILE.py|STUDY", help="The changed study file; or the name of a study.")
    ],
    population: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Of a study by name: members from now on.", show_default=False),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Members that join start fresh, not from the best ones.")
    ] = False,
    of_file: Annotated[
        str | None,
        typer.Option("--study", help="Name of the study, if the file has several.", show_default=False),
    ] = None,
) -> None:
    """Give a study the changed settings of its file, or another number of members; train nothing.

    A study that was stopped, or has failed, may go on then. Stop its workers before, and start them again after.
    """
    from phyla.errors import UsageError

    if Path(study).suffix == ".py":
        if population is not None:
            raise UsageError(
                f"--population {population}: write population_size={population} into {study}, instead"
            )
        _take_over(ctx, Path(study), of_file, fresh=fresh)
    else:
        _resize(ctx, study, population, fresh=fresh)


def _take_over(ctx: typer.Context, file: Path, name: str | None, *, fresh: bool) -> None:
    from phyla.cli.run import chosen_study

    chosen = chosen_study(ctx, file, name)
    changed = chosen.change(newcomers="fresh" if fresh else "best")
    for one in changed:
        print(f"{one.name} was changed from {one.before} to {one.after}")
    already = "" if changed else " already"
    print(f"{chosen.name} has the settings of {file}{already}")


def _resize(ctx: typer.Context, name: str, population: int | None, *, fresh: bool) -> None:
    from phyla.cli.words import command, counted
    from phyla.study import load_study, maintain

    maintenance = maintain(name, **options.where(ctx))
    if population is not None:
        before = maintenance.resize(population, newcomers="fresh" if fresh else "best")
        if before == population:
            print(f"{name} has {counted(population, 'member')} already")
        else:
            progress = load_study(name, **options.where(ctx)).progress()
            print(f"{name} has {counted(population, 'member')}, it had {before}")
            if progress.planned_trials is not None:
                planned = counted(progress.planned_trials, "completed trial")
                print(f"it will end with {planned}; {progress.completed} are")
            print(f"write population_size={population} into its study file, so that it can be run again")
    if maintenance.resume():
        config: Any = load_study(name, **options.where(ctx)).study().config
        named, _, _ = str(config.get("train") or "").rpartition(":")
        file = named if named.endswith(".py") else "FILE.py"
        again = f"{command('run', file, maintenance.places)} --study {name}"
        print(f"{name} may go on; start workers for it with: {again}")
    elif population is None:
        print(f"{name} is running already; give --population N, or the changed study file, to change it")
