"""`phyla best` and `phyla trials`: the best trial of a study, all of them, and the story of one."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Context, Option

from phyla.cli import options
from phyla.cli.output import picked, print_json, print_table
from phyla.errors import StudyNotFound, UsageError
from phyla.formatting import fitness, format_count, format_estimate, infeasible, number, params, size, step
from phyla.records import JobState, TrialRecord, summarize_error
from phyla.terminal import show as print

if TYPE_CHECKING:
    from phyla.study import Best, BestCheckpoint, BestEvaluation, Evaluations, Event, Results


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
    front, goals = found.front(), found.aim.tradeoffs
    if as_json:
        first = front[0] if front else None
        print_json(
            first
            and {
                **picked(found, "metric", study="name"),
                "fitness": first.fitness,
                **_best_json(first),
                "schedule": found.schedule(first.trial).to_json(),
                **({"front": [_best_json(one) for one in front]} if goals else {}),
            }
        )
        return
    if not front:
        raise StudyNotFound(found.no_best())
    if goals:
        print(f"Pareto front: {found.aim.description}; {format_count(len(front), 'trial')}")
        names = [goal.metric for goal in goals]
        rows = []
        for one in front:
            values = [number(one.values[name], 6) for name in names]
            place, where = (one.trial, one.member, one.checkpoint.step), _place(one.checkpoint)
            rows.append((*place, *values, params(one.params.flat()), where))
        print_table(
            (">trial", ">member", ">step", *(f">{name}" for name in names), "~hyperparameters", "checkpoint"),
            rows,
        )
        print()
    print("\n".join(best_lines(found)))


def _best_json(found: "Best") -> dict[str, Any]:
    where = found.checkpoint
    checkpoint = picked(where, "name", "index", "step", "digest", "size_bytes", path="where")
    return {
        **picked(found, "trial", "member", "values", "metrics"),
        "checkpoint": {**checkpoint, "found": not where.gone},
        "params": found.params.flat(),
    }


def best_lines(results: "Results") -> list[str]:
    """Return the best trial of a study and the schedule that led to it as lines of text."""
    found = results.best
    if found is None:
        return [results.no_best()]
    others = ", ".join(
        f"{name} {number(value, 6)}" for name, value in found.values.items() if name != results.metric
    )
    where = found.checkpoint
    return [
        f"best {results.metric}  {number(found.fitness, 6)}{f' ({others})' if others else ''}",
        f"trial       {found.trial} of member {found.member}, step {where.step}",
        f"checkpoint  {_place(where)}{f' ({size(where.size_bytes)})' if where.size_bytes else ''}",
        "schedule",
        *(f"  {line}" for line in results.schedule(found.trial).table().splitlines()),
    ]


def _place(of: "BestCheckpoint | BestEvaluation") -> str:
    from phyla.study.places import CLIENTS, format_path

    if of.location is None:
        return f"{of.where} {CLIENTS}"
    return f"{format_path(of.location)}{f', index {of.index}' if of.index else ''}"


def _of_suites(evaluations: "Evaluations", suite: str | None, *, as_json: bool) -> None:
    """Show the best checkpoint of one suite, or of each that has an objective."""
    run = evaluations.name
    names = [suite] if suite else [one.name for one in evaluations.suites if one.objective is not None]
    found = {name: evaluations.best(name) for name in names}
    if as_json:
        rows = [
            {
                "run": run,
                **picked(one, "suite", "metric", "value", "stderr", "values", "trial"),
                "checkpoint": picked(one, "index", "step", "branch", "gone", name="checkpoint", path="where"),
            }
            for one in found.values()
            if one is not None
        ]
        print_json((rows[0] if rows else None) if suite else rows)
        return
    if not names:
        raise StudyNotFound(
            f"no suite of {run!r} has an objective, so none of its checkpoints is the best; give one such as "
            'objective=phyla.Maximize("accuracy_mean")'
        )
    if not any(found.values()):
        what = f"suite {names[0]!r} is" if len(names) == 1 else f"suites {', '.join(map(repr, names))} are"
        raise StudyNotFound(f"{what} complete on no checkpoint of {run!r} yet")
    print("\n\n".join(_checkpoint(name, one) for name, one in found.items()))


def _checkpoint(suite: str, found: "BestEvaluation | None") -> str:
    if found is None:
        return f"best {suite}  no checkpoint is complete yet"
    branch = f", branch {found.branch}" if found.branch else ""
    trial = "" if found.trial is None else f", trial {found.trial}"
    others = (one for one in found.values.items() if one[0] != found.metric)
    return "\n".join(
        [
            f"best {found.suite}/{found.metric}  {format_estimate(found.value, found.stderr)}",
            f"checkpoint  {_place(found)}",
            f"            step {step(found.step)}{branch}{trial}",
            *(f"{name}  {format_estimate(one.value, one.stderr)}" for name, one in others),
        ]
    )


def trials(
    ctx: Context,
    study: options.StudyName,
    member: Annotated[int | None, Option(help="Only this member's.")] = None,
    state: Annotated[
        JobState | None, Option(help="Only those in this state; those stopped early are cancelled, too.")
    ] = None,
    last: Annotated[int | None, Option(min=1, help="Only the last N of them.")] = None,
    sort: Annotated[Literal["trial", "fitness"], Option(help="By id, or the best first.")] = "trial",
    story: Annotated[
        int | None, Option(metavar="ID", help="What happened to this trial, in order, and why.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the trials of a study, or tell the story of one."""
    from phyla.study import load_study
    from phyla.study.results.results import trial_row

    results = load_study(study, **options.where(ctx))
    if story is not None:
        if (member, state, last, sort) != (None, None, None, "trial"):
            raise UsageError("--story is about one trial: leave out --member, --state, --last and --sort")
        _tell(results.story(story), as_json=as_json)
        return
    none = f"study {study!r} has no trials yet"
    size = results.study().population_size
    if member is not None and not 0 <= member < size:
        raise UsageError(f"--member {member}: study {study!r} has members 0 to {size - 1}")
    chosen = [one for one in results.trials() if member in (None, one.member) and state in (None, one.state)]
    chosen = chosen[-last:] if last is not None else chosen
    if sort == "fitness":
        chosen.sort(key=lambda trial: (trial.order is None, -(trial.order or 0.0), trial.id))
    if as_json:
        print_json([trial_row(trial) for trial in chosen])
    elif chosen:
        print_table(
            (
                ">trial",
                ">member",
                ">gen",
                "state",
                ">parent",
                "steps",
                ">fitness",
                "~hyperparameters",
                "~decision",
            ),
            map(_row, chosen),
            ["red" if trial.state is JobState.FAILED else "" for trial in chosen],
        )
    else:
        print(f"study {study!r} has no such trials" if results.counts() else none)


def _tell(events: "Sequence[Event]", *, as_json: bool) -> None:
    if as_json:
        print_json(events)
    else:
        print_table(("time", "=what happened"), ((_time(event.at), event.words) for event in events))


def _time(at: float | None) -> str | None:
    return None if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _row(trial: TrialRecord) -> tuple[object, ...]:
    from phyla.strategies import describe

    text, told = describe(trial.reason), trial.state.value
    if trial.stop_reason is not None:
        # A rule stopped it early: it is not just cancelled.
        text, told = f"{describe(trial.stop_reason)} ({text})", "stopped"
    elif trial.error and trial.state is not JobState.COMPLETED:
        text = f"{summarize_error(trial.error)} ({text})"
    if infeasible(trial):
        text = f"{infeasible(trial)} ({text})"
    told = told if trial.kind == "train" else f"{trial.state} ({trial.kind})"
    steps = f"{trial.start_step} -> {_end(trial)}"
    of = (trial.id, trial.member, trial.generation, told, trial.parent, steps)
    return (*of, fitness(trial), params(trial.params), text)


def _end(trial: TrialRecord) -> int:
    return trial.end_step if trial.reached_step is None else trial.reached_step
