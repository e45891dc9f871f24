"""`phyla status`: all studies and watched runs, or how one of them stands."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from phyla.cli import options
from phyla.cli.evaluations import print_events, print_whys
from phyla.cli.output import picked, print_json, print_page, print_table
from phyla.errors import UsageError
from phyla.formatting import (
    duration,
    format_count,
    mask_password,
    number,
    size,
    step,
)
from phyla.records import StudyState, with_differences
from phyla.terminal import show as print

if TYPE_CHECKING:
    from phyla.records import Attempt, Member
    from phyla.study import Evaluations, Places, Progress, Results, WatchedRunStatus

MEMBERS_SHOWN = 500
CELLS_OF = 20
"""Newest checkpoints of a watched run whose failures are shown."""


def status(
    ctx: Context,
    study: Annotated[
        str | None, Argument(metavar="NAME", help="Name of the study, or of the watched run.", show_default="all")
    ] = None,
    watch: Annotated[bool, Option("--watch", help="Show a study while it runs, on whatever machine.")] = False,
    disk: Annotated[bool, Option("--disk", help="Of one: show what it takes on disk, and what keeps it.")] = False,
    provenance: Annotated[
        bool, Option("--provenance", help="Of one: show how it was started each time, and what changed.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show all studies and watched runs; or one: its members or checkpoints, what is running and what failed."""
    from phyla.study import Results, load_study
    from phyla.study.results.load import list_all
    from phyla.study.results.watched_runs import read_run_status

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
    runs = [read_run_status(one) for one in known if not isinstance(one, Results)]
    if as_json:
        print_json([*(_study_json(*one) for one in studies), *map(_run_json, runs)])
    elif not known:
        print(f"no studies yet in {mask_password(places.storage.removeprefix('published:'))}, and no watched runs")
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
    _study(results, as_json=False)


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
        print(
            f"{format_count(len(facts['packages']), 'package')}, variables, and what differs from the commit: "
            "--json"
        )


def _study_row(results: "Results", progress: "Progress") -> tuple[object, ...]:
    state = [str(progress.study.state)]
    state += ["no worker"] if progress.silent_s is not None else []
    state += [format_count(len(progress.damaged), "damaged checkpoint")] if progress.damaged else []
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
    from phyla.study.results.pages import study_page

    if not as_json:
        print_page(study_page(results, most=MEMBERS_SHOWN))
        return
    progress, spent, failed = results.progress(), results.time_spent(), results.failed()
    causes = results.causes(failed)
    found = results.evaluations() if results.has_suites else None
    print_json(
        {
            **_study_json(results, progress),
            "time_s": {phase.value: seconds for phase, seconds in spent.seconds.items()},
            **({"evaluation": found.lag(), "waiting": found.waiting()} if found else {}),
            "warnings": [picked(finding, "kind", "text") for finding in results.findings()],
            "members": [_member_json(progress, member) for member in progress.members],
            "attempts": [_attempt_json(results, progress, attempt) for attempt in progress.running],
            "failed": [
                {**picked(one, "member", "state", "failures", "error", trial="id"), "cause": causes.get(one.id)}
                for one in failed
            ],
        }
    )


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


def _run_row(one: "WatchedRunStatus") -> tuple[object, ...]:
    from phyla.study.results.pages import counts_words, format_location

    best = next(iter(one.best.values()), None)
    told = best and f"{best.suite}/{best.metric} {number(best.value)} at step {step(best.step)}"
    newest = one.newest and step(one.newest.step)
    counts = counts_words({**one.counts, "quarantined": len(one.quarantined)}) or None
    return one.run.name, one.state, format_location(one), one.checkpoints, newest, counts, told


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
    from phyla.study.results.pages import run_page
    from phyla.study.results.watched_runs import read_run_status

    if as_json:
        one = read_run_status(found)
        events = [picked(event, "kind", "message", "created_at") for event in found.events()]
        print_json({**_run_json(one), "evaluation": found.lag(), "waiting": found.waiting(), "events": events})
        return
    print_page(run_page(found))
    print(f"every eval task: {found.places.command('evaluations', found.name)}\n")
    print_whys(cell for cell in found.cells(last=CELLS_OF) if cell.status.value not in ("quarantined", "skipped"))
    print_events(found)
