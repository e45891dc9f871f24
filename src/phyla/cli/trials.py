"""`phyla best` and `phyla trials`: the best trial of a study, all trials, and the story of one."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Context, Option

from phyla.cli import options
from phyla.cli.output import pick, print_json, print_section, print_table
from phyla.errors import StudyNotFound, UsageError
from phyla.formatting import format_count, format_estimate, number, params, step
from phyla.pages import text_of
from phyla.records import JobState
from phyla.terminal import show as print

if TYPE_CHECKING:
    from phyla.study import Best, BestEvaluation, Evaluations, Results


def best(
    ctx: Context,
    study: options.RunName,
    suite: Annotated[
        str | None,
        Option(help="The best checkpoint of this suite.", show_default="each suite with an objective"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the best trial: fitness, checkpoint, and the schedule of hyperparameters that led to it.

    With a Pareto objective: the front, one row per trial, and the schedule of the best in the first goal. With
    --suite, or for a watched run: the best checkpoint by the objective of the suite.
    """
    from phyla.study import Results, load_evaluations

    results = options.open_run(ctx, study) if suite is None else load_evaluations(study, **options.where(ctx))
    if not isinstance(results, Results):
        _print_best_of_suites(results, suite, as_json=as_json)
        return
    front, goals = results.front(), results.aim.tradeoffs
    if as_json:
        first = front[0] if front else None
        print_json(
            first
            and {
                **pick(results, "metric", study="name"),
                "fitness": first.fitness,
                **_best_json(first),
                "schedule": results.schedule(first.trial).to_json(),
                **({"front": [_best_json(row) for row in front]} if goals else {}),
            }
        )
        return
    if not front:
        raise StudyNotFound(results.no_best())
    if goals:
        from phyla.study.results.pages.study import format_checkpoint

        print(f"Pareto front: {results.aim.description}; {format_count(len(front), 'trial')}")
        names = [goal.metric for goal in goals]
        rows = []
        for row in front:
            values = [number(row.values[name], 6) for name in names]
            ids = row.trial, row.member, row.checkpoint.step
            rows.append((*ids, *values, params(row.params.flat()), format_checkpoint(row.checkpoint)))
        print_table(
            (">trial", ">member", ">step", *(f">{name}" for name in names), "~hyperparameters", "checkpoint"),
            rows,
        )
        print()
    print("\n".join(best_lines(results)))


def _best_json(best: "Best") -> dict[str, Any]:
    checkpoint = pick(best.checkpoint, "name", "index", "step", "digest", "size_bytes", path="where")
    return {
        **pick(best, "trial", "member", "values", "metrics", "measurements", "noise", "unclear"),
        "expected": best.expected and pick(best.expected, "value", "low", "high"),
        "luckiest": best.luckiest and pick(best.luckiest, "fitness", "member", trial="id"),
        "checkpoint": {**checkpoint, "found": not best.checkpoint.gone},
        "params": best.params.flat(),
    }


def best_lines(results: "Results") -> list[str]:
    """Return the best trial of a study and the schedule that led to it as lines of text."""
    from phyla.study.results.pages import study

    front = results.front()
    lines, best = [*map(text_of, study.best_lines(results, front))], next(iter(front), None)
    schedule = results.schedule(best.trial).table().splitlines() if best else []
    return lines + (["schedule", *(f"  {line}" for line in schedule)] if best else [])


def _print_best_of_suites(evaluations: "Evaluations", suite: str | None, *, as_json: bool) -> None:
    """Show the best checkpoint of one suite, or of each suite with an objective."""
    from phyla.study.results.pages.models import describe_rivals, rivals_of, without_objective

    run = evaluations.name
    names = [suite] if suite else [outline.name for outline in evaluations.suites if outline.objective is not None]
    best = {name: evaluations.best(name) for name in names}
    rivals = {name: rivals_of(evaluations, row) for name, row in best.items() if row is not None}
    if as_json:
        rows = [
            {
                "run": run,
                **pick(evaluation, "suite", "metric", "value", "stderr", "values", "trial"),
                "rivals": len(rivals[name]),
                "checkpoint": pick(evaluation, "index", "step", "branch", "gone", name="checkpoint", path="where"),
            }
            for name, evaluation in best.items()
            if evaluation is not None
        ]
        print_json((rows[0] if rows else None) if suite else rows)
        return
    if not names:
        raise StudyNotFound(without_objective(run))
    if not any(best.values()):
        subject = f"suite {names[0]!r} is" if len(names) == 1 else f"suites {', '.join(map(repr, names))} are"
        raise StudyNotFound(f"{subject} complete on no checkpoint of {run!r} yet")
    blocks = [
        [f"best {name}  no checkpoint is complete yet"]
        if evaluation is None
        else [*_describe_best(evaluation), *describe_rivals(evaluations, evaluation, rivals[name])]
        for name, evaluation in best.items()
    ]
    print("\n\n".join(map("\n".join, blocks)))


def _describe_best(best: "BestEvaluation") -> list[str]:
    from phyla.study.results.pages.study import format_checkpoint

    branch = f", branch {best.branch}" if best.branch else ""
    trial = "" if best.trial is None else f", trial {best.trial}"
    estimates = ((name, estimate) for name, estimate in best.values.items() if name != best.metric)
    return [
        f"best {best.suite}/{best.metric}  {format_estimate(best.value, best.stderr)}",
        f"checkpoint  {format_checkpoint(best)}",
        f"            step {step(best.step)}{branch}{trial}",
        *(f"{name}  {format_estimate(estimate.value, estimate.stderr)}" for name, estimate in estimates),
    ]


def trials(
    ctx: Context,
    study: options.StudyName,
    member: Annotated[int | None, Option(help="Only trials of this member.")] = None,
    state: Annotated[
        JobState | None,
        Option(help="Only trials in this state; trials that were stopped early are cancelled, too."),
    ] = None,
    last: Annotated[int | None, Option(min=1, help="Only the last N trials.")] = None,
    sort: Annotated[Literal["trial", "fitness"], Option(help="Sort by id, or by fitness, best first.")] = "trial",
    story: Annotated[
        int | None, Option(metavar="ID", help="Show what happened to this trial, in order, and why.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the trials of a study, or show the story of one."""
    from phyla.study import load_study
    from phyla.study.results.pages.trials import story_table, trials_table
    from phyla.study.results.results import trial_row

    results = load_study(study, **options.where(ctx))
    if story is not None:
        if (member, state, last, sort) != (None, None, None, "trial"):
            raise UsageError("--story is about one trial: leave out --member, --state, --last and --sort")
        events = results.story(story)
        print_json(events) if as_json else print_section(story_table(events))
        return
    none = f"study {study!r} has no trials yet"
    size = results.study().population_size
    if member is not None and not 0 <= member < size:
        raise UsageError(f"--member {member}: study {study!r} has members 0 to {size - 1}")
    chosen = [
        trial for trial in results.trials() if member in (None, trial.member) and state in (None, trial.state)
    ]
    chosen = chosen[-last:] if last is not None else chosen
    if sort == "fitness":
        chosen.sort(key=lambda trial: (trial.order is None, -(trial.order or 0.0), trial.id))
    if as_json:
        print_json([trial_row(trial) for trial in chosen])
    elif chosen:
        print_section(trials_table(chosen, "trials", "Trials"))
    else:
        print(f"study {study!r} has no such trials" if results.counts() else none)
