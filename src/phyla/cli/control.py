"""`phyla stop`, `phyla resume`, `phyla resize` and `phyla change`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from phyla.cli import options
from phyla.cli.output import show as print


def stop(study: options.StudyName, home: options.Home = None, storage: options.Storage = None) -> None:
    """Stop a study: running workers finish their trial and end."""
    from phyla.cli.words import command
    from phyla.study import maintain

    maintenance = maintain(study, home=home, storage=storage)
    maintenance.stop("stopped by a person")
    print(f"stopped {study}: its workers finish their trial and end")
    print(f"let it go on with: {command('resume', study, maintenance.places)}")


def resize(
    study: options.StudyName,
    members: Annotated[int, typer.Argument(min=1, metavar="N", help="Number of members from now on.")],
    fresh: Annotated[
        bool, typer.Option("--fresh", help="New members start fresh, not from the best ones.")
    ] = False,
    home: options.Home = None,
    storage: options.Storage = None,
) -> None:
    """Let the population grow or shrink, also while the study is running."""
    from phyla.cli.words import counted
    from phyla.study import load_study, maintain

    before = maintain(study, home=home, storage=storage).resize(members, newcomers="fresh" if fresh else "best")
    if before == members:
        print(f"{study} has {counted(members, 'member')} already")
        return
    progress = load_study(study, home=home, storage=storage).progress()
    print(f"{study} has {counted(members, 'member')}, it had {before}")
    if progress.planned_trials is not None:
        print(f"it will end with {counted(progress.planned_trials, 'completed trial')}; {progress.completed} are")
    print(f"write population_size={members} into its study file, so that it can be run again")


def change(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="The file that defines the study, as changed.")],
    study: Annotated[
        str | None, typer.Option(help="Name of the study, if the file has several.", show_default=False)
    ] = None,
    home: options.FileHome = None,
    storage: options.FileStorage = None,
) -> None:
    """Give a study the changed settings of its file, also while it is running; train nothing."""
    from phyla.cli.run import chosen_study

    chosen = chosen_study(file, study, home, storage)
    changed = chosen.change()
    for one in changed:
        print(f"{one.name} was changed from {one.before} to {one.after}")
    if changed:
        print(f"{chosen.name} has the settings of {file}; workers that are running go by them from now on")
    else:
        print(f"{chosen.name} has the settings of {file} already")


def resume(study: options.StudyName, home: options.Home = None, storage: options.Storage = None) -> None:
    """Let a stopped or failed study go on; start workers for it with `phyla run`."""
    from phyla.cli.words import command
    from phyla.study import load_study, maintain

    maintenance = maintain(study, home=home, storage=storage)
    resumed = maintenance.resume()
    print(f"{study} may go on" if resumed else f"{study} is running already")
    config: Any = load_study(study, home=home, storage=storage).study().config
    named, _, _ = str(config.get("train") or "").rpartition(":")
    file = named if named.endswith(".py") else "FILE.py"
    print(f"start workers for it with: {command('run', file, maintenance.places)} --study {study}")
