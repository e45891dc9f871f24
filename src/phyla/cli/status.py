"""`phyla status`: all studies and watched runs, or how one of them stands."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from typer import Argument, Context

from phyla.cli import options, watched
from phyla.cli.evaluations import lag_line
from phyla.cli.output import console, picked, print_json, table
from phyla.cli.output import show as print
from phyla.cli.words import counted, damage_lines, duration, fitness, infeasible, masked, number, params
from phyla.records import JobState, said_by

if TYPE_CHECKING:
    from phyla.records import Attempt, Cause, Member, TrialRecord
    from phyla.study import Places, Progress, Results, Standing

FAILED_SHOWN = 10
CHANGES_SHOWN = 5


def status(
    ctx: Context,
    study: Annotated[
        str | None, Argument(metavar="NAME", help="Name of the study, or of the watched run.", show_default="all")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show all studies and watched runs; or one: its members or checkpoints, what is running and what failed."""
    from phyla.study import Results, list_all, standing

    places = options.places(ctx)
    if study is None:
        known = list_all(places)
        runs = [standing(one, places) for one in known if not isinstance(one, Results)]
        _all([one for one in known if isinstance(one, Results)], runs, places, as_json=as_json)
        return
    found = options.opened(ctx, study)
    if isinstance(found, Results):
        _one(found, as_json=as_json)
    else:
        watched.show(found, standing(found, places), places, as_json=as_json)


def _all(studies: "list[Results]", runs: "list[Standing]", places: "Places", *, as_json: bool) -> None:
    looks = [(results, results.progress(lambda members: ())) for results in studies]
    if as_json:
        print_json([*(_summary(results, progress) for results, progress in looks), *map(watched.summary, runs)])
        return
    if not looks and not runs:
        print(f"no studies yet in {masked(places.storage)}, and no watched runs")
        return
    if looks:
        rows = (_line(results, progress) for results, progress in looks)
        console().print(table(rows, right=("trials", "best"), elastic=("metric",)))
    if looks and runs:
        print()
    if runs:
        console().print(watched.runs_table(runs))


def _line(results: "Results", progress: "Progress") -> dict[str, object]:
    state = [str(progress.study.state)]
    state += ["no worker"] if progress.silent_s is not None else []
    state += [counted(len(progress.damaged), "damaged checkpoint")] if progress.damaged else []
    return {
        "study": results.name,
        "state": ", ".join(state),
        "trials": f"{progress.completed}/{progress.planned_trials or '?'}",
        "best": progress.best and number(progress.best.fitness),
        "metric": results.metric,
        "last activity": f"{duration(progress.now - progress.last_activity)} ago",
    }


def _one(results: "Results", *, as_json: bool) -> None:
    progress = results.progress()
    # Those that failed, and those that failed so far and are tried again.
    failed = [
        trial
        for trial in (results.trials() if progress.failed else progress.trials.values())
        if trial.failures and trial.state not in (JobState.COMPLETED, JobState.CANCELLED)
    ]
    causes = results.causes(failed)
    findings = results.findings()
    lags = results.evaluations().lag() if results.has_suites else []
    spent = results.time_spent()
    attempts = [_attempt(results, progress, attempt) for attempt in progress.running]
    if as_json:
        print_json(
            {
                **_summary(results, progress),
                "time_s": {phase.value: seconds for phase, seconds in spent.seconds.items()},
                **({"evaluation": lags} if lags else {}),
                "warnings": [picked(finding, "kind", "text") for finding in findings],
                "members": [_member(progress, member) for member in progress.members],
                "attempts": attempts,
                "failed": [
                    {
                        "trial": trial.id,
                        **picked(trial, "member", "state", "failures", "error"),
                        "cause": causes.get(trial.id),
                    }
                    for trial in failed
                ],
            }
        )
        return
    for line in _head(results, progress):
        print(line)
    for finding in findings:
        print(f"warning: {finding.text}")
    if spent.timed:
        print(f"time of workers: {spent.words()}")
    for lag in lags:
        print(f"evaluation of {lag_line(lag)}")
    print()
    console().print(members_table(progress, progress.members))
    if attempts:
        print()
        console().print(_running_table(attempts))
    if failed:
        print()
        console().print(_failed_table(failed, causes))
        for trial in failed[-FAILED_SHOWN:]:
            if trial.id in causes:
                print(f"trial {trial.id}: {causes[trial.id].words()}")


def _head(results: "Results", progress: "Progress") -> list[str]:
    record = progress.study
    lines = [f"{record.name}: {record.state}, last activity {duration(progress.now - progress.last_activity)} ago"]
    if record.message:
        lines.append(record.message)
    if progress.silent_s is not None:
        what = "no worker has renewed its lease"
        if not progress.running:
            what = "no trial is running, and nothing has happened"
        lines.append(f"{what} for {duration(progress.silent_s)}; run it again to go on")
    others = "".join(f", {count} {state}" for state, count in progress.counts.items() if state != "completed")
    lines.append(
        f"{progress.completed}/{progress.planned_trials or '?'} trials completed{others}; "
        f"{progress.spent_steps}/{progress.total_steps or '?'} steps by {counted(progress.active, 'member')}"
    )
    lines += damage_lines(progress.damaged)
    for change in results.changes()[-CHANGES_SHOWN:]:
        ago = duration(progress.now - change.at)
        lines.append(f"{ago} ago {change.name} was changed from {change.before} to {change.after}")
    best = progress.best
    if best is not None:
        goals = results.aim.tradeoffs
        names = ", ".join(goal.metric for goal in goals) or results.metric
        others = f"; {len(progress.front) - 1} more on the Pareto front: phyla best {results.name}"
        lines.append(
            f"best {names} {fitness(best)}: trial {best.id} of member {best.member}, "
            f"step {best.reached_step}{others if goals else ''}"
        )
    return lines


def members_table(progress: "Progress", members: "Sequence[Member]") -> Table:
    """Return a table of members: where they are, how good, with what, and why."""
    from phyla.strategies import describe

    best = _best_members(progress)

    def row(member: "Member") -> dict[str, object]:
        trial = progress.trials.get(member.index)
        return {
            "member": member.index,
            "steps": f"{member.progress}/{progress.member_steps or '?'}",
            "gen": member.generation,
            "fitness": fitness(member.head),
            "": "*" if member.index in best else "",
            "hyperparameters": trial and params(trial.params),
            "last decision": trial and "; ".join(filter(None, (infeasible(member.head), describe(trial.reason)))),
            "state": "retired" if member.retired else member.state,
        }

    return table(
        map(row, members),
        right=("member", "steps", "gen", "fitness"),
        elastic=("hyperparameters", "last decision"),
        styles=["bold" if member.index in best else "" for member in members],
    )


def _best_members(progress: "Progress") -> set[int]:
    """Return the member of the best trial; with trade-offs those that are on the Pareto front now."""
    if not progress.aim.tradeoffs:
        return {trial.member for trial in progress.front}
    front = {trial.id for trial in progress.front}
    return {member.index for member in progress.members if member.head and member.head.trial in front}


def _running_table(attempts: list[dict[str, Any]]) -> Table:
    rows, styles = [], []
    for told in attempts:
        silent, left_s = duration(told["silent_s"]), told["lease_left_s"]
        ran_out = f"no progress for {silent}, ran out {duration(-left_s)} ago" if left_s < 0 else ""
        rows.append(
            {
                "running trial": told["trial"],
                "attempt": told["token"],
                "member": told["member"],
                "worker": told["worker"],
                "for": duration(told["running_s"]),
                "lease": ran_out or f"renewed {silent} ago",
            }
        )
        styles.append("red" if ran_out else "")
    return table(rows, right=("attempt", "member"), styles=styles)


def _failed_table(failed: "list[TrialRecord]", causes: "dict[int, Cause]") -> Table:
    rows = (
        {
            "failed trial": trial.id,
            **picked(trial, "member", "failures", "state"),
            "last error": causes[trial.id].error if trial.id in causes else said_by(trial.error),
        }
        for trial in failed[-FAILED_SHOWN:]
    )
    made = table(rows, right=("member", "failures"), wrapped=("last error",))
    if len(failed) > FAILED_SHOWN:
        made.caption = f"the last {FAILED_SHOWN} of {len(failed)}; all: phyla trials STUDY --state failed"
    return made


def _summary(results: "Results", progress: "Progress") -> dict[str, Any]:
    best = progress.best
    return {
        "study": results.name,
        **picked(progress.study, "state", "message"),
        "silent_s": progress.silent_s,
        "metric": results.metric,
        "maximize": results.maximize,
        "population_size": progress.active,
        "trials": progress.counts,
        "completed_trials": progress.completed,
        "cancelled_trials": progress.cancelled,
        **picked(progress, "planned_trials", "spent_steps", "total_steps"),
        "damaged": [
            {"checkpoint": row.name, **picked(row, "trial", "step", "damage")} for row in progress.damaged
        ],
        "best": best
        and {"fitness": best.fitness, "trial": best.id, "member": best.member, "step": best.reached_step},
        **({"front": [trial.id for trial in progress.front]} if results.aim.tradeoffs else {}),
        "changes": results.changes(),
        "last_activity": datetime.fromtimestamp(progress.last_activity, UTC).isoformat(),
    }


def _member(progress: "Progress", member: "Member") -> dict[str, Any]:
    from phyla.strategies import describe

    trial, head = progress.trials.get(member.index), member.head
    return {
        "member": member.index,
        **picked(member, "state", "retired", "progress", "generation"),
        "fitness": head.fitness if head else None,
        **({"criteria": head.criteria} if head and head.criteria else {}),
        "trial": trial.id if trial else None,
        "params": trial.params if trial else None,
        "decision": describe(trial.reason) if trial else None,
    }


def _attempt(results: "Results", progress: "Progress", attempt: "Attempt") -> dict[str, Any]:
    owners = {member.current_trial: member.index for member in progress.members}
    return {
        "trial": attempt.job,
        "token": attempt.token,
        "member": owners.get(attempt.job),
        "worker": attempt.worker,
        "running_s": progress.now - attempt.claimed_at,
        "silent_s": progress.now - max(attempt.claimed_at, attempt.expires_at - results.lease_s),
        "lease_left_s": attempt.expires_at - progress.now,
    }
