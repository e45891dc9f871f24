"""`phyla status`: all studies and watched runs, or how one of them stands."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from phyla.cli import options
from phyla.cli.evaluations import print_events, print_waiting, print_whys
from phyla.cli.output import picked, print_json, print_table
from phyla.errors import UsageError
from phyla.formatting import (
    counted,
    duration,
    fitness,
    lag_words,
    masked,
    measured,
    number,
    size,
    step,
    time_words,
)
from phyla.records import Checkpoint, StudyState, said_by, shown, with_differences
from phyla.terminal import console
from phyla.terminal import show as print

if TYPE_CHECKING:
    from phyla.records import Attempt, Member
    from phyla.study import Evaluations, Places, Progress, Results, WatchedRunStatus

FAILED_SHOWN = 10
MEMBERS_SHOWN = 500
CHANGES_SHOWN = 5
DAMAGED_SHOWN = 5
QUARANTINED_SHOWN = 10
STATES = ("complete", "queued", "partial", "skipped", "gone", "quarantined")
CELLS_OF = 20
"""Newest checkpoints of a watched run whose failures are shown."""


def status(
    ctx: Context,
    study: Annotated[
        str | None, Argument(metavar="NAME", help="Name of the study, or of the watched run.", show_default="all")
    ] = None,
    watch: Annotated[bool, Option("--watch", help="Show a study while it runs, whoever trains it.")] = False,
    disk: Annotated[bool, Option("--disk", help="Of one: show what it takes on disk, and what keeps it.")] = False,
    provenance: Annotated[
        bool, Option("--provenance", help="Of one: show how it was started each time, and what changed.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show all studies and watched runs; or one: its members or checkpoints, what is running and what failed."""
    from phyla.study import Results, load_study
    from phyla.study.results.load import list_all
    from phyla.study.results.watched_runs import standing

    if study is None and (disk or provenance or watch):
        option = "--disk" if disk else "--provenance" if provenance else "--watch"
        raise UsageError(f"{option}: name the study, as in phyla status NAME {option}")
    if study is not None and disk:
        _disk(study, options.places(ctx), as_json=as_json)
    elif study is not None and provenance:
        _provenance(load_study(study, **options.where(ctx)), as_json=as_json)
    elif study is not None and watch:
        if as_json:
            raise UsageError("--watch shows a study in a terminal; leave --json out")
        _watch(load_study(study, **options.where(ctx)))
    elif study is not None:
        found = options.opened(ctx, study)
        show = _study if isinstance(found, Results) else _run
        show(found, as_json=as_json)  # type: ignore[arg-type]  # of its kind
    if study is not None:
        return
    places, given = options.places(ctx), options.where(ctx)
    known, file = list_all(places), places.sqlite_file
    named = file if given["storage"] else file and given["home"] and file.parent
    if named and not named.exists():
        raise UsageError(f"there are no studies: {named} does not exist; is the place misspelt?")
    studies = [(one, one.progress(0)) for one in known if isinstance(one, Results)]
    runs = [standing(one) for one in known if not isinstance(one, Results)]
    if as_json:
        print_json([*(_study_json(*one) for one in studies), *map(_run_json, runs)])
    elif not known:
        print(f"no studies yet in {masked(places.storage.removeprefix('published:'))}, and no watched runs")
    else:
        print_table(
            ("study", "state", ">trials", ">best", "~metric", "last activity"),
            (_study_row(*one) for one in studies),
        )
        print_table(
            ("run", "=state", "~directory", ">checkpoints", ">at step", "=evaluations", "~best"),
            map(_run_row, runs),
            gap=bool(studies),
        )


def _watch(results: "Results") -> None:
    from phyla.study.running.display import LIVE_EVERY_S, StudyDisplay

    with suppress(KeyboardInterrupt), StudyDisplay(results.name) as display:
        while results.state is StudyState.RUNNING:
            display.progressed(results)
            time.sleep(LIVE_EVERY_S)
    for line in _study_lines(results, results.progress(0)):
        print(line)


def _disk(name: str, places: "Places", *, as_json: bool) -> None:
    from phyla.study.maintaining.disk_usage import disk

    uses = disk(name, places)
    if as_json:
        print_json(uses)
        return
    rows = ((one.what, size(one.size_bytes), one.count, one.note) for one in uses if one.count)
    print_table(("what", ">size", ">number", "~note"), rows)


def _provenance(results: "Results", *, as_json: bool) -> None:
    from phyla.study.results.findings import date

    rows = with_differences(results.starts())
    if as_json:
        print_json([{**picked(one, "at", "facts", "diff"), "differs": differs} for one, differs in rows])
        return
    if not rows:
        print(f"no start of {results.name} was noted")
    told: list[dict[str, Any]] = [dict(one.facts) for one, _ in rows]
    print_table(
        ("started", "commit", "machine", "=command", "=differs from the start before"),
        (
            (date(one.at), one.commit, facts["machine"]["name"], one.command, differs)
            for (one, differs), facts in zip(rows, told, strict=True)
        ),
    )
    for facts in told[-1:]:
        print(f"\nthe last one: Python {facts['python']} on {facts['machine']['system']}, in {facts['directory']}")
        print(f"{counted(len(facts['packages']), 'package')}, variables, and what differs from the commit: --json")


def _cut(every: Sequence[object], limit: int, how: str) -> str | None:
    return f"the last {limit} of {len(every)}; all: {how}" if len(every) > limit else None


def _study_row(results: "Results", progress: "Progress") -> tuple[object, ...]:
    state = [str(progress.study.state)]
    state += ["no worker"] if progress.silent_s is not None else []
    state += [counted(len(progress.damaged), "damaged checkpoint")] if progress.damaged else []
    trials = f"{progress.completed}/{progress.planned_trials or '?'}"
    best = progress.best and number(progress.best.fitness, 6)
    ago = f"{duration(progress.now - progress.last_activity)} ago"
    return results.name, ", ".join(state), trials, best, results.metric, ago


def _study_json(results: "Results", progress: "Progress") -> dict[str, Any]:
    return {
        **picked(progress.study, "state", "message", study="name"),
        **picked(results, "metric", "maximize"),
        **picked(progress, "silent_s", "planned_trials", "spent_steps", "total_steps"),
        **picked(progress, population_size="active", trials="counts", completed_trials="completed"),
        "cancelled_trials": progress.counts.get("cancelled", 0),
        "damaged": [picked(row, "trial", "step", checkpoint="name", damage="error") for row in progress.damaged],
        "best": picked(progress.best, "fitness", "member", trial="id", step="reached_step") or None,
        **({"front": [trial.id for trial in progress.front]} if results.aim.tradeoffs else {}),
        "changes": results.changes(),
        "last_activity": datetime.fromtimestamp(progress.last_activity, UTC).isoformat(),
    }


def _study(results: "Results", *, as_json: bool) -> None:
    from phyla.study.running.display import foremost, members_table

    progress = results.progress(None if as_json else MEMBERS_SHOWN)
    spent = results.time_spent()
    found = results.evaluations() if results.has_suites else None
    lags = found.lag() if found else []
    failed = results.failed()
    causes = results.causes(failed if as_json else failed[-FAILED_SHOWN:])
    running = [_attempt_json(results, progress, attempt) for attempt in progress.running]
    if as_json:
        print_json(
            {
                **_study_json(results, progress),
                "time_s": {phase.value: seconds for phase, seconds in spent.seconds.items()},
                **({"evaluation": lags, "waiting": found.waiting()} if found else {}),
                "warnings": [picked(finding, "kind", "text") for finding in results.findings()],
                "members": [_member_json(progress, member) for member in progress.members],
                "attempts": running,
                "failed": [
                    {
                        **picked(one, "member", "state", "failures", "error", trial="id"),
                        "cause": causes.get(one.id),
                    }
                    for one in failed
                ],
            }
        )
        return
    for line in _study_lines(results, progress):
        print(line)
    if spent.timed:
        print(f"time of workers: {time_words(spent)}")
    for lag in lags:
        print(f"evaluation of {lag_words(lag)}")
    if found:
        print_waiting(found)
    print()
    members = foremost(progress, MEMBERS_SHOWN, MEMBERS_SHOWN)
    console().print(members_table(progress, members))
    if len(members) < progress.size:
        count, command = counted(progress.size, "member"), results.places.command("status", results.name)
        print(f"the best {len(members)} of {count}; all of them: {command} --json")
    rows = []
    for one in running:
        lease, left_s = f"renewed {duration(one['silent_s'])} ago", one["lease_left_s"]
        if one["worker_gone"] and left_s >= 0:
            lease = f"its process is gone; ends in {duration(left_s)}"
        elif left_s < 0:
            lease = f"no progress for {duration(one['silent_s'])}, ran out {duration(-left_s)} ago"
        rows.append((*map(one.get, ("trial", "token", "member", "worker")), duration(one["running_s"]), lease))
    print_table(
        ("running trial", ">attempt", ">member", "~worker", "for", "=lease"),
        rows,
        ["red" if one["worker_gone"] else "" for one in running],
        gap=True,
    )
    last = failed[-FAILED_SHOWN:]
    errors = [causes[one.id].error if one.id in causes else said_by(one.error) for one in last]
    print_table(
        ("failed trial", ">member", ">failures", "state", "=last error"),
        ((one.id, one.member, one.failures, one.state, error) for one, error in zip(last, errors, strict=True)),
        caption=_cut(failed, FAILED_SHOWN, results.places.command("trials", results.name, "--state", "failed")),
        gap=True,
    )
    for trial in last:
        if trial.id in causes:
            print(f"trial {trial.id}: {causes[trial.id].words()}")


def _study_lines(results: "Results", progress: "Progress") -> Iterator[str]:
    record = progress.study
    yield f"{record.name}: {record.state}, last activity {duration(progress.now - progress.last_activity)} ago"
    if record.message:
        yield record.message
    if progress.silent_s is not None:
        what = "no worker has renewed its lease"
        if not progress.running:
            what = "no trial is running, and nothing has happened"
        yield f"{what} for {duration(progress.silent_s)}; run it again to go on"
    others = "".join(f", {count} {state}" for state, count in progress.counts.items() if state != "completed")
    others += f" ({len(progress.gone)} held by workers that are gone)" if progress.gone else ""
    yield (
        f"{progress.completed}/{progress.planned_trials or '?'} trials completed{others}; "
        f"{progress.spent_steps}/{progress.total_steps or '?'} steps by {counted(progress.active, 'member')}"
    )
    yield from damage_lines(progress.damaged)
    for change in results.changes()[-CHANGES_SHOWN:]:
        ago = duration(progress.now - change.at)
        yield f"{ago} ago {change.name} was changed from {change.before} to {change.after}"
    best, goals = progress.best, results.aim.tradeoffs
    if best is not None:
        names = ", ".join(goal.metric for goal in goals) or results.metric
        best_of = results.places.command("best", results.name)
        others = f"; {len(progress.front) - 1} more on the Pareto front: {best_of}"
        yield (
            f"best {names} {fitness(best)}: trial {best.id} of member {best.member}, "
            f"step {best.reached_step}{others if goals else ''}"
        )
    for finding in results.findings():
        yield f"warning: {finding.text}"


def damage_lines(damaged: Sequence[Checkpoint]) -> Iterator[str]:
    """Yield how many checkpoints are damaged, and what is wrong with them; nothing if none is."""
    if damaged:
        yield f"{counted(len(damaged), 'damaged checkpoint')}, not used any more; the files are kept:"
    yield from (f"  {row.error}" for row in damaged[:DAMAGED_SHOWN])
    if len(damaged) > DAMAGED_SHOWN:
        yield f"  and {len(damaged) - DAMAGED_SHOWN} more"


def _member_json(progress: "Progress", member: "Member") -> dict[str, Any]:
    from phyla.strategies import describe

    trial, scored = progress.trials.get(member.index), progress.scored(member)
    return {
        **picked(member, "state", "retired", "progress", "generation", member="index"),
        "fitness": scored and scored.fitness,
        **({"criteria": scored.criteria} if scored and scored.criteria else {}),
        **(picked(trial, "params", trial="id") or {"params": None, "trial": None}),
        "decision": trial and describe(trial.reason),
        "doing": progress.doing(member),
    }


def _attempt_json(results: "Results", progress: "Progress", attempt: "Attempt") -> dict[str, Any]:
    return {
        **picked(attempt, "token", "worker", trial="job"),
        "member": progress.unfinished[attempt.job].member,
        "running_s": progress.now - attempt.claimed_at,
        "silent_s": progress.now - max(attempt.claimed_at, attempt.expires_at - results.lease_s),
        "lease_left_s": attempt.expires_at - progress.now,
        "worker_gone": attempt.job in progress.gone,
    }


# Watched runs


def _where(one: "WatchedRunStatus") -> str:
    return shown(one.run.location) if one.run.source is None else f"study number {one.run.source}"


def _run_row(one: "WatchedRunStatus") -> tuple[object, ...]:
    best = next(iter(one.best.values()), None)
    told = best and f"{best.suite}/{best.metric} {number(best.value)} at step {step(best.step)}"
    newest = one.newest and step(one.newest.step)
    counts = _counts({**one.counts, "quarantined": len(one.quarantined)})
    return one.run.name, one.state, _where(one), one.checkpoints, newest, counts, told


def _counts(counts: Mapping[str, int]) -> str | None:
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts.get(state)) or None


def _run_json(one: "WatchedRunStatus") -> dict[str, Any]:
    return {
        **picked(one.run, "kind", "location", "state", "message", run="name"),
        **picked(one, "watcher", "checkpoints"),
        "newest": one.newest and {**picked(one.newest, "name", "step", "written_at"), "step_from": one.step_from},
        "suites": [
            {
                **picked(suite, "name", "objective"),
                "counts": one.evaluations[suite.name],
                "best": picked(
                    one.best.get(suite.name), "value", "stderr", "checkpoint", "gone", "step", path="where"
                )
                or None,
            }
            for suite in one.suites
        ],
        "quarantined": [
            picked(seen, "name", "step", seen_at="created_at", why="error") for seen in one.quarantined
        ],
    }


def _run(found: "Evaluations", *, as_json: bool) -> None:
    """Show one watched run: its checkpoints, its suites, how far they are behind, and what went wrong."""
    from phyla.study.results.watched_runs import standing

    one, lags = standing(found), found.lag()
    if as_json:
        events = [picked(event, "kind", "message", "created_at") for event in found.events()]
        print_json({**_run_json(one), "evaluation": lags, "waiting": found.waiting(), "events": events})
        return
    run, newest = one.run, one.newest
    print(f"{run.name}: {run.state}{f', {run.message}' if run.message else ''}; {_where(one)}")
    if one.watcher is not None:
        print(f"watched by {one.watcher}")
    elif run.state is not StudyState.COMPLETED:
        print("no process of this machine watches it; the same `phyla watch` command goes on with it")
    told = f"{counted(one.checkpoints, 'checkpoint')} seen"
    if newest is not None:
        told += f"; the newest is {shown(newest.name)} at step {step(newest.step)}"
        told += "" if one.step_from is None else f", {one.step_from}"
    print(told)
    print(f"every eval task: {found.places.command('evaluations', run.name)}")
    for lag in lags:
        print(f"evaluation of {lag_words(lag)}")
    print_waiting(found)
    suites: list[tuple[object, ...]] = []
    for suite in one.suites:
        counts, best = _counts(one.evaluations[suite.name]), one.best.get(suite.name)
        told_best: tuple[str | None, ...] = (None, None, None)
        if best is not None:
            path = f"{shown(best.where)}{' (gone)' if best.gone else ''}"
            told_best = (measured(best.value, best.stderr), step(best.step), path)
        suites.append((suite.name, counts, suite.objective, *told_best))
    print_table(("suite", "=evaluations", "~objective", ">best", ">at step", "~checkpoint"), suites, gap=True)
    print_table(
        ("~quarantined", ">step", "=why"),
        ((shown(bad.name), step(bad.step), said_by(bad.error)) for bad in one.quarantined[-QUARANTINED_SHOWN:]),
        caption=_cut(one.quarantined, QUARANTINED_SHOWN, "--json"),
        gap=True,
    )
    print()
    print_whys(cell for cell in found.cells(last=CELLS_OF) if cell.status.value not in ("quarantined", "skipped"))
    print_events(found)
