"""`phyla status`: all studies and watched runs, or the state of one."""

import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from phyla.cli import options
from phyla.cli.evaluations import problem_tables
from phyla.cli.output import pick, print_json, print_page, print_table
from phyla.errors import UsageError
from phyla.formatting import (
    format_count,
    size,
)
from phyla.records import StudyState, with_differences
from phyla.terminal import show as print

if TYPE_CHECKING:
    from phyla.records import Attempt, Member
    from phyla.study import Evaluations, Places, Progress, Results, WatchedRunStatus

MEMBERS_SHOWN = 500
CELLS_OF = 20
"""How many of the newest checkpoints of a watched run show their failures."""


def status(
    ctx: Context,
    study: Annotated[
        str | None, Argument(metavar="NAME", help="Name of the study, or of the watched run.", show_default="all")
    ] = None,
    watch: Annotated[bool, Option("--watch", help="Show a study live, wherever it runs.")] = False,
    disk: Annotated[
        bool, Option("--disk", help="Show the disk usage of a study, and why files are kept.")
    ] = False,
    provenance: Annotated[
        bool, Option("--provenance", help="Show each start of a study, and what changed between starts.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show all studies and watched runs; or one, with its members or checkpoints, running jobs and failures."""
    from phyla.study import Results, load_study
    from phyla.study.results.load import list_all
    from phyla.study.results.pages.studies import studies_page
    from phyla.study.results.watched_runs import read_run_status

    if study is None and (disk or provenance or watch):
        option = "--disk" if disk else "--provenance" if provenance else "--watch"
        raise UsageError(f"{option}: name the study, as in phyla status NAME {option}")
    if study is not None and disk:
        _show_disk(study, options.places(ctx), as_json=as_json)
    elif study is not None and provenance:
        _show_provenance(load_study(study, **options.where(ctx)), as_json=as_json)
    elif study is not None and watch:
        if as_json:
            raise UsageError("--watch is for terminals; leave out --json")
        _watch(load_study(study, **options.where(ctx)))
    elif study is not None:
        run = options.open_run(ctx, study)
        show = _show_study if isinstance(run, Results) else _show_run
        show(run, as_json=as_json)  # type: ignore[arg-type]  # of its kind
    if study is not None:
        return
    places, where = options.places(ctx), options.where(ctx)
    known, file = list_all(places), places.sqlite_file
    path = file if where["storage"] else file and where["home"] and file.parent
    if path and not path.exists():
        raise UsageError(f"no studies: {path} does not exist; is it misspelled?")
    studies = [(results, results.progress(0)) for results in known if isinstance(results, Results)]
    runs = [read_run_status(run) for run in known if not isinstance(run, Results)]
    if as_json:
        print_json([*(_study_json(*study) for study in studies), *map(_run_json, runs)])
    else:
        place = places.storage.removeprefix("published:")
        print_page(studies_page([progress for _, progress in studies], runs, place))


def _watch(results: "Results") -> None:
    from phyla.study.running.display import LIVE_EVERY_S, StudyDisplay

    with suppress(KeyboardInterrupt), StudyDisplay(results.name) as display:
        while results.state is StudyState.RUNNING:
            display.progressed(results)
            time.sleep(LIVE_EVERY_S)
    _show_study(results, as_json=False)


def _show_disk(name: str, places: "Places", *, as_json: bool) -> None:
    from phyla.study.maintaining.disk_usage import disk

    uses = disk(name, places)
    if as_json:
        print_json(uses)
        return
    rows = ((use.what, size(use.size_bytes), use.count, use.note) for use in uses if use.count)
    print_table(("what", ">size", ">number", "~note"), rows)


def _show_provenance(results: "Results", *, as_json: bool) -> None:
    from phyla.study.results.findings import date

    rows = with_differences(results.starts())
    if as_json:
        print_json([{**pick(start, "at", "facts", "diff"), "differs": differs} for start, differs in rows])
        return
    if not rows:
        print(f"no start of {results.name} was recorded")
    facts_of_starts: list[dict[str, Any]] = [dict(start.facts) for start, _ in rows]
    print_table(
        ("started", "commit", "machine", "=command", "=changes since the previous start"),
        (
            (date(start.at), start.commit, facts["machine"]["name"], start.command, differs)
            for (start, differs), facts in zip(rows, facts_of_starts, strict=True)
        ),
    )
    for facts in facts_of_starts[-1:]:
        print(
            f"\nthe last start: Python {facts['python']} on {facts['machine']['system']}, in {facts['directory']}"
        )
        print(f"{format_count(len(facts['packages']), 'package')}, variables, and the diff to the commit: --json")


def _study_json(results: "Results", progress: "Progress") -> dict[str, Any]:
    return {
        **pick(progress.study, "state", "message", study="name"),
        **pick(results, "metric", "maximize"),
        **pick(progress, "silent_s", "planned_trials", "spent_steps", "total_steps"),
        **pick(progress, population_size="active", trials="counts", completed_trials="completed"),
        "cancelled_trials": progress.counts.get("cancelled", 0),
        "damaged": [pick(row, "trial", "step", checkpoint="name", damage="error") for row in progress.damaged],
        "best_score": pick(progress.best, "fitness", "member", trial="id", step="reached_step") or None,
        **({"front": [trial.id for trial in progress.front]} if results.aim.tradeoffs else {}),
        "changes": results.changes(),
        "last_activity": datetime.fromtimestamp(progress.last_activity, UTC).isoformat(),
    }


def _show_study(results: "Results", *, as_json: bool) -> None:
    from phyla.study.results.pages.study import study_page

    if not as_json:
        print_page(study_page(results, most=MEMBERS_SHOWN))
        return
    progress, spent, failed = results.progress(), results.time_spent(), results.failed()
    causes = results.causes(failed)
    evaluations = results.evaluations() if results.has_suites else None
    print_json(
        {
            **_study_json(results, progress),
            "time_s": {phase.value: seconds for phase, seconds in spent.seconds.items()},
            **({"evaluation": evaluations.lag(), "waiting": evaluations.waiting()} if evaluations else {}),
            "warnings": [pick(finding, "kind", "text") for finding in results.findings()],
            "members": [_member_json(progress, member) for member in progress.members],
            "attempts": [_attempt_json(results, progress, attempt) for attempt in progress.running],
            "failed": [
                {
                    **pick(trial, "member", "state", "failures", "error", trial="id"),
                    "cause": causes.get(trial.id),
                }
                for trial in failed
            ],
        }
    )


def _member_json(progress: "Progress", member: "Member") -> dict[str, Any]:
    from phyla.strategies import describe

    trial, scored = progress.trials.get(member.index), progress.scored(member)
    return {
        **pick(member, "state", "retired", "progress", "generation", member="index"),
        "fitness": scored and scored.fitness,
        **({"criteria": scored.criteria} if scored and scored.criteria else {}),
        **(pick(trial, "params", trial="id") or {"params": None, "trial": None}),
        "decision": trial and describe(trial.reason),
        "doing": progress.doing(member),
    }


def _attempt_json(results: "Results", progress: "Progress", attempt: "Attempt") -> dict[str, Any]:
    return {
        **pick(attempt, "token", "worker", trial="job"),
        "member": progress.unfinished[attempt.job].member,
        "running_s": progress.now - attempt.claimed_at,
        "silent_s": progress.now - max(attempt.claimed_at, attempt.expires_at - results.lease_s),
        "lease_left_s": attempt.expires_at - progress.now,
        "worker_gone": attempt.job in progress.gone,
    }


# Watched runs


def _run_json(status: "WatchedRunStatus") -> dict[str, Any]:
    return {
        **pick(status.run, "kind", "location", "state", "message", run="name"),
        **pick(status, "watcher", "checkpoints"),
        "newest": status.newest
        and {**pick(status.newest, "name", "step", "written_at"), "step_from": status.step_from},
        "suites": [
            {
                **pick(suite, "name", "objective"),
                "counts": status.evaluations[suite.name],
                "best": pick(
                    status.best.get(suite.name), "value", "stderr", "checkpoint", "gone", "step", path="where"
                )
                or None,
            }
            for suite in status.suites
        ],
        "quarantined": [
            pick(seen, "name", "step", seen_at="created_at", why="error") for seen in status.quarantined
        ],
    }


def _show_run(run: "Evaluations", *, as_json: bool) -> None:
    """Show one watched run: its checkpoints, suites, lag and errors."""
    from phyla.study.results.pages.evaluations import run_page, running_table
    from phyla.study.results.watched_runs import read_run_status

    if as_json:
        events = [pick(event, "kind", "message", "created_at") for event in run.events()]
        print_json(
            {
                **_run_json(read_run_status(run)),
                "evaluation": run.lag(),
                "waiting": run.waiting(),
                "events": events,
            }
        )
        return
    page = run_page(run)
    cells = [cell for cell in run.cells(last=CELLS_OF) if cell.status.value not in ("quarantined", "skipped")]
    print_page(replace(page, sections=[*page.sections, running_table(cells), *problem_tables(run, cells)]))
    print(f"all eval tasks: {run.places.command('evaluations', run.name)}")
