"""`phyla lineage`: which trial came from which."""

from typing import Annotated

import typer

from phyla.cli import options
from phyla.cli.output import show as print


def lineage(
    study: options.StudyName,
    trial: Annotated[
        int | None, typer.Option(help="Show the way to this trial and what came of it.", show_default="the best")
    ] = None,
    depth: Annotated[
        int | None, typer.Option(min=0, help="Levels of branches to show.", show_default="all")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all trials.")] = False,
    home: options.Home = None,
    storage: options.Storage = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the tree of trials: the way to the best one and the exploits around it, or all of them."""
    from phyla.cli.output import console, print_json
    from phyla.cli.tree import Shown, drawn
    from phyla.errors import UsageError
    from phyla.study import load_study

    if trial is not None and everything:
        raise UsageError("--trial and --all exclude each other")
    results = load_study(study, home=home, storage=storage)
    found = results.lineage()
    if trial is not None:
        found.trial(trial)
    if as_json:
        print_json(found.to_json())
        return
    if not len(found):
        print(f"study {study!r} has no trials yet")
        return
    winner = found.best()
    if trial is not None:
        shown = Shown.around(found, trial)
    elif everything or winner is None:
        shown = Shown.all(found)
    else:
        shown = Shown.winner(found, winner.id)
    console().print(drawn(study, found, shown, depth), soft_wrap=True)
