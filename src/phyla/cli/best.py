"""`phyla best`: the best trial of a study, or the best checkpoints of a watched run."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from phyla.cli import options
from phyla.cli.output import show as print

if TYPE_CHECKING:
    from phyla.study import Best, BestEvaluation, Evaluations, Results


def best(
    ctx: typer.Context,
    study: options.RunName,
    suite: Annotated[
        str | None,
        typer.Option(
            help="The best checkpoint of this suite.", show_default="of a watched run each that has an objective"
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the best trial: fitness, checkpoint, hyperparameters and how they changed on the way.

    With a Pareto objective: the front, one row per trial, and the schedule of the best in the first goal. With
    --suite, or of a watched run: the best checkpoint by that suite's objective.
    """
    from phyla.cli.output import print_json
    from phyla.errors import StudyNotFound
    from phyla.study import find_watched, load_evaluations, load_study

    if suite is not None:
        found_suite = load_evaluations(study, **options.where(ctx))
        _of_suites(found_suite, [suite], as_json=as_json)
        return
    run = find_watched(study, options.places(ctx))
    if run is not None:
        _of_suites(run, None, as_json=as_json)
        return
    results = load_study(study, **options.where(ctx))
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


def _of_suites(evaluations: "Evaluations", suites: "list[str] | None", *, as_json: bool) -> None:
    """Show the best checkpoint of one suite, or of each that has an objective."""
    from phyla.cli.output import print_json
    from phyla.errors import StudyNotFound

    names = suites or [one.name for one in evaluations.suites if one.objective is not None]
    found = {name: evaluations.best(name) for name in names}
    if as_json:
        rows = [None if one is None else _checkpoint_row(evaluations.name, one) for one in found.values()]
        if suites:
            print_json(rows[0])
        else:
            print_json([row for row in rows if row is not None])
        return
    if not names:
        raise StudyNotFound(
            f"no suite of {evaluations.name!r} has an objective, so none of its checkpoints is the best; give one "
            'such as objective=phyla.Maximize("accuracy_mean")'
        )
    if not any(found.values()):
        what = f"suite {names[0]!r} is" if len(names) == 1 else f"suites {', '.join(map(repr, names))} are"
        raise StudyNotFound(f"{what} complete on no checkpoint of {evaluations.name!r} yet")
    blocks = [
        [f"best {name}  no checkpoint is complete yet"] if one is None else _checkpoint_lines(one)
        for name, one in found.items()
    ]
    print("\n\n".join("\n".join(lines) for lines in blocks))


def _checkpoint_row(run: str, found: "BestEvaluation") -> dict[str, Any]:
    return {
        "run": run,
        "suite": found.suite,
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


def _checkpoint_lines(found: "BestEvaluation") -> list[str]:
    from phyla.cli.words import value
    from phyla.study.places import shown

    index = f", index {found.index}" if found.index else ""
    branch = f", branch {found.branch}" if found.branch else ""
    trial = "" if found.trial is None else f", trial {found.trial}"
    return [
        f"best {found.suite}/{found.metric}  {value(found.value, found.stderr)}",
        f"checkpoint  {shown(found.path)}{index}",
        f"            step {found.step if found.step >= 0 else 'unknown'}{branch}{trial}",
        *(f"{name}  {value(one.value, one.stderr)}" for name, one in found.values.items() if name != found.metric),
    ]


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
