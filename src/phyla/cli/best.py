"""`phyla best`: the best trial of a study, or the best checkpoints of a watched run."""

from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from phyla.cli import options
from phyla.cli.output import picked, print_json, print_table
from phyla.cli.output import show as print
from phyla.cli.words import counted, number, params, size, step, value
from phyla.errors import StudyNotFound

if TYPE_CHECKING:
    from phyla.study import Best, BestEvaluation, Evaluations, Results


def best(
    ctx: Context,
    study: options.RunName,
    suite: Annotated[
        str | None,
        Option(help="The best checkpoint of this suite.", show_default="of a run each that has an objective"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the best trial: fitness, checkpoint, hyperparameters and how they changed on the way.

    With a Pareto objective: the front, one row per trial, and the schedule of the best in the first goal. With
    --suite, or of a watched run: the best checkpoint by that suite's objective.
    """
    from phyla.study import Results, load_evaluations

    found = options.opened(ctx, study) if suite is None else load_evaluations(study, **options.where(ctx))
    if not isinstance(found, Results):
        _of_suites(found, suite, as_json=as_json)
        return
    if as_json:
        print_json(found.best and _json(found, found.best))
        return
    if found.best is None:
        raise StudyNotFound(
            f"study {study!r} has no completed trial that is feasible and has a finite fitness yet"
        )
    if found.aim.tradeoffs:
        _print_front(found)
    print("\n".join(best_lines(found)))


def _json(results: "Results", found: "Best") -> dict[str, Any]:
    return {
        **picked(results, "metric", study="name"),
        "fitness": found.fitness,
        **_row(found),
        "schedule": results.schedule(found.trial).to_json(),
        **({"front": [_row(one) for one in results.front()]} if results.aim.tradeoffs else {}),
    }


def _row(found: "Best") -> dict[str, Any]:
    where = found.checkpoint
    checkpoint = picked(where, "name", "path", "index", "step", "digest", "size_bytes")
    return {
        **picked(found, "trial", "member", "values", "metrics"),
        "checkpoint": {**checkpoint, "found": where.path.exists()},
        "params": found.params.flat(),
    }


def _print_front(results: "Results") -> None:
    from phyla.study.places import shown

    names = [goal.metric for goal in results.aim.tradeoffs]
    front = results.front()
    print(f"Pareto front: {results.aim.description}; {counted(len(front), 'trial')}")
    print_table(
        [
            (">trial", one.trial),
            (">member", one.member),
            (">step", one.checkpoint.step),
            *((f">{name}", number(one.values[name])) for name in names),
            ("~hyperparameters", params(one.params.flat())),
            ("checkpoint", f"{shown(one.checkpoint.path)}{_index(one.checkpoint.index)}"),
        ]
        for one in front
    )
    print()


def _of_suites(evaluations: "Evaluations", suite: str | None, *, as_json: bool) -> None:
    """Show the best checkpoint of one suite, or of each that has an objective."""
    names = [suite] if suite else [one.name for one in evaluations.suites if one.objective is not None]
    found = {name: evaluations.best(name) for name in names}
    if as_json:
        rows = [one and _checkpoint_row(evaluations.name, one) for one in found.values()]
        print_json(rows[0] if suite else list(filter(None, rows)))
        return
    if not names:
        raise StudyNotFound(
            f"no suite of {evaluations.name!r} has an objective, so none of its checkpoints is the best; give one "
            'such as objective=phyla.Maximize("accuracy_mean")'
        )
    if not any(found.values()):
        what = f"suite {names[0]!r} is" if len(names) == 1 else f"suites {', '.join(map(repr, names))} are"
        raise StudyNotFound(f"{what} complete on no checkpoint of {evaluations.name!r} yet")
    print("\n\n".join("\n".join(_checkpoint_lines(name, one)) for name, one in found.items()))


def _checkpoint_row(run: str, found: "BestEvaluation") -> dict[str, Any]:
    return {
        "run": run,
        **picked(found, "suite", "metric", "value", "stderr", "values", "trial"),
        "checkpoint": picked(found, "path", "index", "step", "branch", "gone", name="checkpoint"),
    }


def _checkpoint_lines(suite: str, found: "BestEvaluation | None") -> list[str]:
    from phyla.study.places import shown

    if found is None:
        return [f"best {suite}  no checkpoint is complete yet"]
    branch = f", branch {found.branch}" if found.branch else ""
    trial = "" if found.trial is None else f", trial {found.trial}"
    return [
        f"best {found.suite}/{found.metric}  {value(found.value, found.stderr)}",
        f"checkpoint  {shown(found.path)}{_index(found.index)}",
        f"            step {step(found.step)}{branch}{trial}",
        *(f"{name}  {value(one.value, one.stderr)}" for name, one in found.values.items() if name != found.metric),
    ]


def best_lines(results: "Results") -> list[str]:
    """Return the best trial of a study and the schedule that led to it as lines of text."""
    from phyla.study.places import shown

    found = results.best
    if found is None:
        return ["no trial that is feasible completed with a finite fitness"]
    where = found.checkpoint
    others = ", ".join(f"{name} {number(value)}" for name, value in found.values.items() if name != results.metric)
    return [
        f"best {results.metric}  {number(found.fitness)}{f' ({others})' if others else ''}",
        f"trial       {found.trial} of member {found.member}, step {where.step}",
        f"checkpoint  {shown(where.path)}{_index(where.index)} ({size(where.size_bytes)})",
        "schedule",
        *(f"  {line}" for line in results.schedule(found.trial).table().splitlines()),
    ]


def _index(index: int) -> str:
    return f", index {index}" if index else ""
