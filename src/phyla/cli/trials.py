"""`phyla trials`: the trials of a study as a table."""

from enum import StrEnum
from typing import Annotated

import typer

from phyla.cli import options
from phyla.cli.output import show as print
from phyla.records import TrialState


class Order(StrEnum):
    """What trials are sorted by."""

    TRIAL = "trial"
    FITNESS = "fitness"


def trials(
    study: options.StudyName,
    member: Annotated[int | None, typer.Option(help="Only this member's.")] = None,
    state: Annotated[
        TrialState | None, typer.Option(help="Only those in this state; those stopped early are cancelled, too.")
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last N of them.")] = None,
    sort: Annotated[Order, typer.Option(help="By id, or the best first.")] = Order.TRIAL,
    home: options.Home = None,
    storage: options.Storage = None,
    as_json: options.AsJson = False,
) -> None:
    """List the trials of a study."""
    from phyla.cli.output import add_row, console, print_json, table
    from phyla.cli.words import NOTHING, first_line, fitness, infeasible, params, state_of
    from phyla.errors import UsageError
    from phyla.strategies import describe
    from phyla.study import load_study
    from phyla.study.results import trial_row

    results = load_study(study, home=home, storage=storage)
    size = results.study().population_size
    if member is not None and not 0 <= member < size:
        raise UsageError(f"--member {member}: study {study!r} has members 0 to {size - 1}")
    chosen = [
        trial
        for trial in results.trials()
        if (member is None or trial.member == member) and (state is None or trial.state is state)
    ]
    if last is not None:
        chosen = chosen[-last:]
    if sort is Order.FITNESS:
        chosen.sort(key=lambda trial: (trial.order is None, -(trial.order or 0.0), trial.id))
    if as_json:
        print_json([trial_row(trial) for trial in chosen])
        return
    if not chosen:
        print(f"study {study!r} has no such trials" if results.counts() else f"study {study!r} has no trials yet")
        return
    made = table(
        "trial",
        "member",
        "gen",
        "state",
        "parent",
        "steps",
        "fitness",
        "hyperparameters",
        "decision",
        right=("trial", "member", "gen", "parent", "fitness"),
        elastic=("hyperparameters", "decision"),
    )
    for trial in chosen:
        end = trial.end_step if trial.reached_step is None else trial.reached_step
        text = describe(trial.reason)
        if trial.stop_reason is not None:
            text = f"{describe(trial.stop_reason)} ({text})"
        elif trial.error and trial.state is not TrialState.COMPLETED:
            text = f"{first_line(trial.error)} ({text})"
        if infeasible(trial):
            text = f"{infeasible(trial)} ({text})"
        add_row(
            made,
            trial.id,
            trial.member,
            trial.generation,
            state_of(trial) if trial.kind == "train" else f"{trial.state} ({trial.kind})",
            NOTHING if trial.parent is None else trial.parent,
            f"{trial.start_step} -> {end}",
            fitness(trial),
            params(trial.params),
            text,
            style="red" if trial.state is TrialState.FAILED else "",
        )
    console().print(made)
