"""`phyla trials`: the trials of a study as a table."""

from typing import TYPE_CHECKING, Annotated, Literal

from typer import Context, Option

from phyla.cli import options
from phyla.cli.output import console, print_json, table
from phyla.cli.output import show as print
from phyla.cli.tree import Shown, drawn
from phyla.cli.words import fitness, infeasible, params
from phyla.errors import UsageError
from phyla.records import JobState, said_by

if TYPE_CHECKING:
    from phyla.study import Results


def trials(
    ctx: Context,
    study: options.StudyName,
    member: Annotated[int | None, Option(help="Only this member's.")] = None,
    state: Annotated[
        JobState | None, Option(help="Only those in this state; those stopped early are cancelled, too.")
    ] = None,
    last: Annotated[int | None, Option(min=1, help="Only the last N of them.")] = None,
    sort: Annotated[Literal["trial", "fitness"], Option(help="By id, or the best first.")] = "trial",
    tree: Annotated[
        str | None,
        Option(
            metavar="best|all|TRIAL",
            help="Draw which trial came from which: the way to the best or to another one, or all of them.",
            show_default=False,
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the trials of a study, or draw them as a tree."""
    from phyla.strategies import describe
    from phyla.study import load_study
    from phyla.study.rows import trial_row

    results = load_study(study, **options.where(ctx))
    if tree is not None:
        if (member, state, last, sort) != (None, None, None, "trial"):
            raise UsageError("--tree excludes --member, --state, --last and --sort")
        _draw(results, tree, as_json=as_json)
        return
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
    if sort == "fitness":
        chosen.sort(key=lambda trial: (trial.order is None, -(trial.order or 0.0), trial.id))
    if as_json:
        print_json([trial_row(trial) for trial in chosen])
        return
    if not chosen:
        print(f"study {study!r} has no such trials" if results.counts() else f"study {study!r} has no trials yet")
        return
    rows = []
    for trial in chosen:
        end = trial.end_step if trial.reached_step is None else trial.reached_step
        text, told = describe(trial.reason), trial.state.value
        if trial.stop_reason is not None:
            # A rule stopped it early: it is not just cancelled.
            text, told = f"{describe(trial.stop_reason)} ({text})", "stopped"
        elif trial.error and trial.state is not JobState.COMPLETED:
            text = f"{said_by(trial.error)} ({text})"
        if infeasible(trial):
            text = f"{infeasible(trial)} ({text})"
        rows.append(
            {
                "trial": trial.id,
                "member": trial.member,
                "gen": trial.generation,
                "state": told if trial.kind == "train" else f"{trial.state} ({trial.kind})",
                "parent": trial.parent,
                "steps": f"{trial.start_step} -> {end}",
                "fitness": fitness(trial),
                "hyperparameters": params(trial.params),
                "decision": text,
            }
        )
    made = table(
        rows,
        right=("trial", "member", "gen", "parent", "fitness"),
        elastic=("hyperparameters", "decision"),
        styles=["red" if trial.state is JobState.FAILED else "" for trial in chosen],
    )
    console().print(made)


def _draw(results: "Results", tree: str, *, as_json: bool) -> None:
    if tree not in ("best", "all") and not tree.isdecimal():
        raise UsageError(f"--tree {tree}: give best, all, or the number of a trial")
    found = results.lineage()
    if tree.isdecimal():
        found.trial(int(tree))
    if as_json:
        print_json(found.to_json())
        return
    if not len(found):
        print(f"study {results.name!r} has no trials yet")
        return
    winner = found.best()
    if tree.isdecimal():
        shown = Shown.around(found, int(tree))
    elif tree == "all" or winner is None:
        shown = Shown.all(found)
    else:
        shown = Shown.winner(found, winner.id)
    console().print(drawn(results.name, found, shown), soft_wrap=True)
