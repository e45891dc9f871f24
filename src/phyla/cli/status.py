"""`phyla status`: all studies and watched runs, or how one of them stands."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phyla.cli import options
from phyla.cli.output import show as print

if TYPE_CHECKING:
    from phyla.records import Attempt, Cause, Member, TrialRecord
    from phyla.study import Places, Progress, Results, Standing

FAILED_SHOWN = 10
CHANGES_SHOWN = 5


def status(
    ctx: typer.Context,
    study: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the study, or of the watched run.", show_default="all"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show all studies and watched runs; or one: its members or checkpoints, what is running and what failed."""
    from phyla.cli import watched
    from phyla.study import find_watched, list_studies, list_watched, load_study, standing

    places = options.places(ctx)
    if study is None:
        runs = [standing(run, places) for run in list_watched(**options.stores(ctx))]
        _all(list_studies(**options.stores(ctx)), runs, places, as_json=as_json)
        return
    run = find_watched(study, places)
    if run is not None:
        watched.show(run, standing(run, places), places, as_json=as_json)
    else:
        _one(load_study(study, **options.where(ctx)), as_json=as_json)


def _all(
    studies: "list[Results]",
    runs: "list[Standing]",
    places: "Places",
    *,
    as_json: bool,
) -> None:
    from phyla.cli import watched
    from phyla.cli.output import add_row, console, print_json, table
    from phyla.cli.words import NOTHING, duration, masked, number

    looks = [(results, results.progress(lambda members: ())) for results in studies]
    if as_json:
        print_json([*(_summary(results, progress) for results, progress in looks), *map(watched.summary, runs)])
        return
    if not looks and not runs:
        print(f"no studies yet in {masked(places.storage)}, and no watched runs")
        return
    made = table(
        "study",
        "state",
        "trials",
        "best",
        "metric",
        "last activity",
        right=("trials", "best"),
        elastic=("metric",),
    )
    for results, progress in looks:
        add_row(
            made,
            results.name,
            _standing(progress),
            f"{progress.completed}/{progress.planned_trials or '?'}",
            number(progress.best.fitness) if progress.best else NOTHING,
            results.metric,
            f"{duration(progress.now - progress.last_activity)} ago",
        )
    if looks:
        console().print(made)
    if looks and runs:
        print()
    if runs:
        console().print(watched.runs_table(runs))


def _standing(progress: "Progress") -> str:
    from phyla.cli.words import counted

    words = [str(progress.study.state)]
    if progress.silent_s is not None:
        words.append("no worker")
    if progress.damaged:
        words.append(counted(len(progress.damaged), "damaged checkpoint"))
    return ", ".join(words)


def _one(results: "Results", *, as_json: bool) -> None:
    from phyla.cli.evaluations import lag_line, lag_row
    from phyla.cli.output import console, print_json

    progress = results.progress()
    failed = _failed(results, progress)
    causes = results.causes(failed)
    findings = results.findings()
    lags = results.evaluations().lag() if results.has_suites else []
    spent = results.time_spent()
    if as_json:
        print_json(
            {
                **_summary(results, progress),
                "time_s": {phase.value: seconds for phase, seconds in spent.seconds.items()},
                **({"evaluation": [lag_row(lag) for lag in lags]} if lags else {}),
                "warnings": [{"kind": finding.kind, "text": finding.text} for finding in findings],
                "members": [_member(progress, member) for member in progress.members],
                "attempts": [_attempt(results, progress, attempt) for attempt in progress.running],
                "failed": [
                    {
                        "trial": trial.id,
                        "member": trial.member,
                        "state": trial.state,
                        "failures": trial.failures,
                        "error": trial.error,
                        "cause": causes[trial.id].to_json() if trial.id in causes else None,
                    }
                    for trial in failed
                ],
            }
        )
        return
    out = console()
    for line in _head(results, progress):
        out.print(line, markup=False, soft_wrap=True)
    for finding in findings:
        out.print(f"warning: {finding.text}", markup=False, soft_wrap=True)
    if spent.timed:
        out.print(f"time of workers: {spent.words()}", markup=False, soft_wrap=True)
    for lag in lags:
        out.print(f"evaluation of {lag_line(lag)}", markup=False, soft_wrap=True)
    out.print()
    out.print(members_table(progress, progress.members))
    if progress.running:
        out.print()
        out.print(_running_table(results, progress))
    if failed:
        out.print()
        out.print(_failed_table(failed, causes))
        for trial in failed[-FAILED_SHOWN:]:
            if trial.id in causes:
                out.print(f"trial {trial.id}: {causes[trial.id].words()}", markup=False, soft_wrap=True)


def _head(results: "Results", progress: "Progress") -> list[str]:
    from phyla.cli.words import counted, damage_lines, duration, fitness

    record = progress.study
    lines = [f"{record.name}: {record.state}, last activity {duration(progress.now - progress.last_activity)} ago"]
    if record.message:
        lines.append(record.message)
    if progress.silent_s is not None:
        lines.append(_silence(progress, progress.silent_s))
    others = "".join(f", {count} {state}" for state, count in progress.counts.items() if state != "completed")
    lines.append(
        f"{progress.completed}/{progress.planned_trials or '?'} trials completed{others}; "
        f"{progress.spent_steps}/{progress.total_steps or '?'} steps by {counted(progress.active, 'member')}"
    )
    lines += damage_lines(progress.damaged)
    for change in results.changes()[-CHANGES_SHOWN:]:
        ago = duration(progress.now - change.at)
        lines.append(f"{ago} ago {change.name} was changed from {change.before} to {change.after}")
    if progress.best is not None:
        best = progress.best
        lines.append(
            f"best {_names(results)} {fitness(best)}: trial {best.id} of member {best.member}, "
            f"step {best.reached_step}{_front(results, progress)}"
        )
    return lines


def _silence(progress: "Progress", silent_s: float) -> str:
    from phyla.cli.words import duration

    what = (
        "no worker has renewed its lease" if progress.running else "no trial is running, and nothing has happened"
    )
    return f"{what} for {duration(silent_s)}; run it again to go on"


def _names(results: "Results") -> str:
    return ", ".join(goal.metric for goal in results.aim.tradeoffs) or results.metric


def _front(results: "Results", progress: "Progress") -> str:
    if not results.aim.tradeoffs:
        return ""
    others = len(progress.front) - 1
    return f"; {others} more on the Pareto front: phyla best {results.name}"


def members_table(progress: "Progress", members: "tuple[Member, ...] | list[Member]") -> Any:
    """Return a table of members: where they are, how good, with what, and why."""
    from phyla.cli.output import add_row, table
    from phyla.cli.words import NOTHING, fitness, infeasible, params
    from phyla.strategies import describe

    made = table(
        "member",
        "steps",
        "gen",
        "fitness",
        "",
        "hyperparameters",
        "last decision",
        "state",
        right=("member", "steps", "gen", "fitness"),
        elastic=("hyperparameters", "last decision"),
    )
    best = _best_members(progress)
    for member in members:
        trial = progress.trials.get(member.index)
        add_row(
            made,
            member.index,
            f"{member.progress}/{progress.member_steps or '?'}",
            member.generation,
            fitness(member.head),
            "*" if member.index in best else "",
            params(trial.params) if trial else NOTHING,
            "; ".join(filter(None, (infeasible(member.head), describe(trial.reason)))) if trial else NOTHING,
            _state(member),
            style="bold" if member.index in best else "",
        )
    return made


def _best_members(progress: "Progress") -> set[int]:
    """Return the member of the best trial; with trade-offs those that are on the Pareto front now."""
    if not progress.aim.tradeoffs:
        return {trial.member for trial in progress.front}
    front = {trial.id for trial in progress.front}
    return {member.index for member in progress.members if member.head and member.head.trial in front}


def _state(member: "Member") -> str:
    if member.retired:
        return "retired"
    return member.state


def _running_table(results: "Results", progress: "Progress") -> Any:
    from phyla.cli.output import add_row, table

    made = table("running trial", "attempt", "member", "worker", "for", "lease", right=("attempt", "member"))
    for attempt in progress.running:
        told = _attempt(results, progress, attempt)
        add_row(
            made,
            attempt.trial,
            attempt.token,
            told["member"],
            attempt.worker,
            _ago(told["running_s"]),
            (
                f"no progress for {_ago(told['silent_s'])}, ran out {_ago(-told['lease_left_s'])} ago"
                if told["lease_left_s"] < 0
                else f"renewed {_ago(told['silent_s'])} ago"
            ),
            style="red" if told["lease_left_s"] < 0 else "",
        )
    return made


def _ago(seconds: float) -> str:
    from phyla.cli.words import duration

    return duration(seconds)


def _failed_table(failed: "list[TrialRecord]", causes: "dict[int, Cause]") -> Any:
    from phyla.cli.output import add_row, table
    from phyla.cli.words import first_line

    made = table("failed trial", "member", "failures", "state", "last error", right=("member", "failures"))
    made.columns[-1].no_wrap = False
    for trial in failed[-FAILED_SHOWN:]:
        error = causes[trial.id].error if trial.id in causes else first_line(trial.error)
        add_row(made, trial.id, trial.member, trial.failures, trial.state, error)
    if len(failed) > FAILED_SHOWN:
        made.caption = f"the last {FAILED_SHOWN} of {len(failed)}; all: phyla trials STUDY --state failed"
    return made


def _failed(results: "Results", progress: "Progress") -> "list[TrialRecord]":
    """Return the trials that failed, and those that failed so far and are tried again."""
    from phyla.records import TrialState

    if progress.failed:
        trials = results.trials()
    else:
        trials = list(progress.trials.values())
    finished_well = (TrialState.COMPLETED, TrialState.CANCELLED)
    return [trial for trial in trials if trial.failures and trial.state not in finished_well]


def _summary(results: "Results", progress: "Progress") -> dict[str, Any]:
    best = progress.best
    return {
        "study": results.name,
        "state": progress.study.state,
        "message": progress.study.message,
        "silent_s": progress.silent_s,
        "metric": results.metric,
        "maximize": results.maximize,
        "population_size": progress.active,
        "trials": dict(progress.counts),
        "completed_trials": progress.completed,
        "cancelled_trials": progress.cancelled,
        "planned_trials": progress.planned_trials,
        "spent_steps": progress.spent_steps,
        "total_steps": progress.total_steps,
        "damaged": [
            {"checkpoint": row.name, "trial": row.trial, "step": row.step, "damage": row.damage}
            for row in progress.damaged
        ],
        "best": None
        if best is None
        else {"fitness": best.fitness, "trial": best.id, "member": best.member, "step": best.reached_step},
        **({"front": [trial.id for trial in progress.front]} if results.aim.tradeoffs else {}),
        "changes": [
            {"at": change.at, "name": change.name, "before": change.before, "after": change.after}
            for change in results.changes()
        ],
        "last_activity": datetime.fromtimestamp(progress.last_activity, UTC).isoformat(),
    }


def _member(progress: "Progress", member: "Member") -> dict[str, Any]:
    from phyla.strategies import describe

    trial = progress.trials.get(member.index)
    return {
        "member": member.index,
        "state": member.state,
        "retired": member.retired,
        "progress": member.progress,
        "generation": member.generation,
        "fitness": member.head.fitness if member.head else None,
        **_criteria(member),
        "trial": trial.id if trial else None,
        "params": dict(trial.params) if trial else None,
        "decision": describe(trial.reason) if trial else None,
    }


def _criteria(member: "Member") -> dict[str, Any]:
    """Return what a member was judged by, where that is more than one metric."""
    criteria = member.head.criteria if member.head else None
    return {} if criteria is None else {"criteria": criteria.to_json()}


def _attempt(results: "Results", progress: "Progress", attempt: "Attempt") -> dict[str, Any]:
    owners = {member.current_trial: member.index for member in progress.members}
    return {
        "trial": attempt.trial,
        "token": attempt.token,
        "member": owners.get(attempt.trial),
        "worker": attempt.worker,
        "running_s": progress.now - attempt.claimed_at,
        "silent_s": progress.now - max(attempt.claimed_at, attempt.expires_at - results.lease_s),
        "lease_left_s": attempt.expires_at - progress.now,
    }
