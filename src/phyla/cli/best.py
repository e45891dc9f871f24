"""`phyla best`: the best trial of a study."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from phyla.cli import options
from phyla.cli.output import show as print

if TYPE_CHECKING:
    from phyla.study import Best, Evaluations, Results


def best(
    study: options.StudyName,
    suite: Annotated[
        str | None,
        typer.Option(help="The best checkpoint of this suite, also of a watched run.", show_default="none"),
    ] = None,
    home: options.Home = None,
    storage: options.Storage = None,
    checkpoints: options.Checkpoints = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the best trial: fitness, checkpoint, hyperparameters and how they changed on the way.

    With a Pareto objective: the front, one row per trial, and the schedule of the best in the first goal. With
    --suite: the best checkpoint by that suite's objective.
    """
    from phyla.cli.output import print_json
    from phyla.errors import StudyNotFound
    from phyla.study import load_evaluations, load_study

    if suite is not None:
        _of_suite(load_evaluations(study, home=home, storage=storage, checkpoints=checkpoints), suite, as_json)
        return
    results = load_study(study, home=home, storage=storage, checkpoints=checkpoints)
    found = results.best
    if as_json:
        if found is None:
            print_json(None)
            return
        print_json(
            {
                "study": study,
                "metric": results.metric,
                "fitness": found.fitness,
                **_row(found),
                "schedule": results.schedule(found.trial).to_json(),
                **({"front": [_row(one) for one in results.front()]} if results.aim.tradeoffs else {}),
            }
        )
        return
    if found is None:
        raise StudyNotFound(
            f"study {study!r} has no completed trial that is feasible and has a finite fitness yet"
        )
    if results.aim.tradeoffs:
        _print_front(results)
    print("\n".join(best_lines(results)))


def _row(found: "Best") -> dict[str, Any]:
    where = found.checkpoint
    return {
        "trial": found.trial,
        "member": found.member,
        "values": dict(found.values),
        "checkpoint": {
            "name": where.name,
            "path": str(where.path),
            "found": where.path.exists(),
            "index": where.index,
            "step": where.step,
            "digest": where.digest,
            "size_bytes": where.size_bytes,
        },
        "params": found.params.flat(),
        "metrics": dict(found.metrics),
    }


def _print_front(results: "Results") -> None:
    from phyla.cli.output import add_row, console, table
    from phyla.cli.words import counted, number, params
    from phyla.study.places import shown

    names = [goal.metric for goal in results.aim.tradeoffs]
    front = results.front()
    print(f"Pareto front: {results.aim.description}; {counted(len(front), 'trial')}")
    right = ("trial", "member", "step", *names)
    made = table(
        "trial",
        "member",
        "step",
        *names,
        "hyperparameters",
        "checkpoint",
        right=right,
        elastic=("hyperparameters",),
    )
    for one in front:
        where = one.checkpoint
        index = f", index {where.index}" if where.index else ""
        values = [number(one.values[name]) for name in names]
        place = f"{shown(where.path)}{index}"
        add_row(made, one.trial, one.member, where.step, *values, params(one.params.flat()), place)
    console().print(made)
    print()


def _of_suite(evaluations: "Evaluations", suite: str, as_json: bool) -> None:
    from phyla.cli.output import print_json
    from phyla.cli.words import value
    from phyla.errors import StudyNotFound
    from phyla.study.places import shown

    found = evaluations.best(suite)
    if as_json:
        print_json(
            None
            if found is None
            else {
                "run": evaluations.name,
                "suite": suite,
                "metric": found.metric,
                "value": found.value,
                "stderr": found.stderr,
                "values": {name: {"value": one.value, "stderr": one.stderr} for name, one in found.values.items()},
                "trial": found.trial,
                "checkpoint": {
                    "name": found.checkpoint,
                    "path": str(found.path),
                    "index": found.index,
                    "step": found.step,
                    "branch": found.branch,
                    "gone": found.gone,
                },
            }
        )
        return
    if found is None:
        raise StudyNotFound(f"suite {suite!r} is complete on no checkpoint of {evaluations.name!r} yet")
    index = f", index {found.index}" if found.index else ""
    branch = f", branch {found.branch}" if found.branch else ""
    trial = "" if found.trial is None else f", trial {found.trial}"
    print(f"best {suite}/{found.metric}  {value(found.value, found.stderr)}")
    print(f"checkpoint  {shown(found.path)}{index}")
    print(f"            step {found.step if found.step >= 0 else 'unknown'}{branch}{trial}")
    for name, one in found.values.items():
        if name != found.metric:
            print(f"{name}  {value(one.value, one.stderr)}")


def best_lines(results: "Results") -> list[str]:
    """Return the best trial of a study and the schedule that led to it as lines of text."""
    from phyla.cli.words import number, size
    from phyla.study.places import shown

    found = results.best
    if found is None:
        return ["no trial that is feasible completed with a finite fitness"]
    where = found.checkpoint
    index = f", index {where.index}" if where.index else ""
    others = ", ".join(f"{name} {number(value)}" for name, value in found.values.items() if name != results.metric)
    return [
        f"best {results.metric}  {number(found.fitness)}{f' ({others})' if others else ''}",
        f"trial       {found.trial} of member {found.member}, step {where.step}",
        f"checkpoint  {shown(where.path)}{index} ({size(where.size_bytes)})",
        "schedule",
        *(f"  {line}" for line in results.schedule(found.trial).table().splitlines()),
    ]
