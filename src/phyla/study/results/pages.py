"""The pages of a study and of a watched run, read from the store, for the dashboard, reports and commands."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from phyla import queries
from phyla.evaluation import Cell
from phyla.formatting import (
    duration,
    fitness,
    format_count,
    format_estimate,
    infeasible,
    lag_words,
    moment,
    number,
    params,
    score,
    short,
    step,
    time_words,
)
from phyla.pages import Fact, Later, Page, Row, Span, Table, Text
from phyla.records import (
    ACTION,
    Checkpoint,
    EvalEvent,
    JobKind,
    Member,
    StudyRecord,
    StudyState,
    TrialRecord,
    escape_name,
    summarize_error,
    with_differences,
)
from phyla.strategies import describe
from phyla.study.results.decision_log import decisions
from phyla.study.results.progress import Progress, lease_s
from phyla.study.results.watched_runs import WatchedRunStatus, standing

if TYPE_CHECKING:
    from phyla.evaluation import GroupValues, SuiteOutline
    from phyla.study.results.evaluations import Evaluations
    from phyla.study.results.results import Results

ROWS = 100
"""Rows of a table; there are links to the others."""
FEW = 20
DECISIONS = 12
STATES = ("complete", "queued", "partial", "skipped", "gone", "quarantined")
STUDY_SECTIONS = (
    *("progress", "phylogeny", "front", "front-trials", "schedules", "schedule", "gains", "selection", "timeline"),
)
EVALUATION_SECTIONS = ("aggregates", "matrix", "lag", "warnings", "causes")


# A study


def study_page(results: "Results", *, first: int = 0, most: int = ROWS) -> Page:
    """Return the page of a study, with the best members from the `first` on."""
    progress = results.progress(first + most, first)
    study, tradeoffs = progress.study, progress.aim.tradeoffs
    later = [name for name in STUDY_SECTIONS if tradeoffs or not name.startswith("front")]
    return Page(
        study=study.name,
        title=study.name,
        state=study.state,
        kind=short(progress.aim.description, 200),
        messages=[*_messages(results, progress)],
        score=score(progress.best.fitness) if progress.best else "",
        lines=[*_lines(results, progress)],
        facts=facts(progress),
        actions=_actions(study, progress.given_up),
        sections=[
            decisions_table(results),
            members_table(progress, progress.members, first),
            _running_table(progress),
            _failed_table(results),
            *map(Later, later),
            _damaged_table(progress.damaged),
            _record_table(results),
        ],
    )


def _messages(results: "Results", progress: Progress) -> Iterator[str]:
    if progress.study.message:
        yield progress.study.message
    if progress.silent_s is not None:
        what = "no worker has renewed its lease"
        if not progress.running:
            what = "no trial is running, and nothing has happened"
        yield f"{what} for {duration(progress.silent_s)}; run it again to go on"
    if progress.damaged:
        yield f"{format_count(len(progress.damaged), 'damaged checkpoint')}, not used any more; the files are kept"
    yield from (f"warning: {finding.text}" for finding in results.findings())
    if results.has_suites:
        yield from waiting_lines(results.evaluations())


def waiting_lines(found: "Evaluations") -> list[str]:
    """Return how many eval tasks wait for a worker with each label."""
    counts: dict[str, int] = {}
    for one in found.waiting():
        counts[one.label] = counts.get(one.label, 0) + one.count
    return [
        f"{format_count(count, 'eval task waits', 'eval tasks wait')} for a worker with label {label!r}; to start "
        f"one: phyla worker FILE --labels {label}"
        for label, count in counts.items()
        if label
    ]


def _lines(results: "Results", progress: Progress) -> Iterator[Row]:
    best, goals = results.best, progress.aim.tradeoffs
    names = ", ".join(goal.metric for goal in goals) or progress.aim.name
    if best is None:
        yield ("no finite fitness yet",)
    else:
        yield (
            f"best {short(names, 60)} {fitness(progress.best)}: ",
            Span(f"trial {best.trial}", f"trials/{best.trial}"),
            " of ",
            Span(f"member {best.member}", f"members/{best.member}"),
            f", step {number(best.checkpoint.step)}",
            f"; {len(progress.front) - 1} more on the Pareto front" if goals else "",
        )
        yield (f"with {params(best.params.flat())}",)
        yield ("checkpoint ", Span(best.checkpoint.where, look="code"))
    spent = results.time_spent()
    if spent.timed:
        yield (f"time of workers: {time_words(spent)}",)
    yield from ((line,) for line in lag_lines(results))


def lag_lines(results: "Results") -> list[str]:
    """Return how far the evaluation of each suite is behind."""
    lags = results.evaluations().lag() if results.has_suites else []
    return [f"evaluation of {lag_words(lag)}" for lag in lags]


def facts(progress: Progress) -> list[Fact]:
    """Return how far a study is in numbers."""
    counts = {state: count for state, count in progress.counts.items() if state != "completed"}
    others = [f"{number(count)} {state}" for state, count in counts.items()]
    others += [f"{len(progress.gone)} held by workers that are gone"] if progress.gone else []
    done = _of(progress.completed, progress.planned_trials)
    given_up = format_count(progress.given_up, "member was", "members were") + " given up"
    left = [Fact("time left", duration(progress.left_s), "at the present pace")] if progress.left_s else []
    return [
        Fact("trials completed", done, ", ".join(others)),
        Fact("steps", _of(progress.spent_steps, progress.total_steps)),
        Fact("members", number(progress.active), given_up if progress.given_up else ""),
        *left,
        Fact("last activity", f"{duration(progress.now - progress.last_activity)} ago"),
        _since(progress.study),
    ]


def _since(study: StudyRecord) -> Fact:
    date, clock = moment(study.created_at)[:-3].split()
    return Fact("since", date, f"{clock} UTC")


def _of(count: int, planned: int | None) -> str:
    return f"{number(count)} of {'?' if planned is None else number(planned)}"


def _actions(study: StudyRecord, given_up: int) -> list[Span]:
    found = [Span("Trials", "trials")]
    found += [Span("Evaluations", "evaluations")] if study.config.get("suites") else []
    found += [Span("Compare with others", f"/compare?study={quote(study.name)}")]
    found += [Span("Stop", "do/stop")] if study.state is StudyState.RUNNING else []
    found += [Span("Resume", "do/resume")] if study.state in (StudyState.STOPPED, StudyState.FAILED) else []
    return found + ([Span("Retry given-up members", "do/retry")] if given_up and _decides(study) else [])


def _decides(study: StudyRecord) -> bool:
    return study.state in (StudyState.RUNNING, StudyState.COMPLETED)


def decisions_table(results: "Results") -> Table:
    """Return what was decided last, and what failed, the newest first."""
    found = decisions(results, limit=DECISIONS)
    return Table(
        name="feed",
        title="Decisions",
        lead="The newest first; members that go on unchanged are left out.",
        columns=("when (UTC)", "=what", ">trial"),
        rows=[(moment(one.at), short(one.words, 240), _trial(one.trial)) for one in found],
        empty="Nothing was decided yet.",
    )


def _trial(trial: int, text: str | None = None) -> Span:
    return Span(str(trial) if text is None else text, f"trials/{trial}")


def members_table(progress: Progress, members: Sequence[Member], first: int = 0) -> Table:
    """Return where members are, how good, with what, and why."""
    front = {trial.id for trial in progress.front}
    # What a member has now may be worse than the best that it had.
    best = {trial.member: fitness(trial) for trial in progress.front}
    if progress.aim.tradeoffs:
        # Those that are on the Pareto front now.
        best = {one.index: "*" for one in members if one.head and one.head.trial in front}
    last = "front" if progress.aim.tradeoffs else ">best"
    end = first + len(members)
    which = f"the best {number(len(members))}" if not first else f"{first + 1} to {end}, by fitness,"
    return Table(
        name="members",
        title="Members",
        lead="The best first.",
        # The widest come last, where no other column has to make room for them.
        columns=(">member", ">steps", ">gen", ">fitness", last, "state", "~hyperparameters", "~last decision"),
        rows=[_member(progress, one, best) for one in members],
        note=f"{which} of {format_count(progress.size, 'member')}" if len(members) < progress.size else "",
        links=[
            *([Span("before", f"?from={max(0, first - ROWS)}")] if first else []),
            *([Span("after", f"?from={end}")] if end < progress.size else []),
        ],
        anchors=True,
    )


def _member(progress: Progress, member: Member, best: Mapping[int, str]) -> Row:
    trial, scored = progress.trials.get(member.index), progress.scored(member)
    odd = scored is not None and scored.fitness is not None and not math.isfinite(scored.fitness)
    return (
        Span(str(member.index), f"members/{member.index}", "winner" if member.index in best else ""),
        f"{number(member.progress)}/{number(progress.member_steps) if progress.member_steps else '?'}",
        _trial(trial.id, str(member.generation)) if trial else str(member.generation),
        Span(fitness(scored), look="odd" if odd else ""),
        best.get(member.index, ""),
        "given up" if member.given_up else progress.doing(member),
        short(params(trial.params), 200) if trial else "-",
        short("; ".join(filter(None, (infeasible(member.head), describe(trial.reason)))), 180) if trial else "-",
    )


def _running_table(progress: Progress) -> Table:
    length_s, rows = lease_s(progress.study.config), list[Row]()
    for one in progress.running:
        left_s, gone = one.expires_at - progress.now, one.job in progress.gone
        silent = duration(progress.now - max(one.claimed_at, one.expires_at - length_s))
        lease = f"renewed {silent} ago"
        if gone and left_s >= 0:
            lease = f"its process is gone; ends in {duration(left_s)}"
        elif left_s < 0:
            lease = f"no progress for {silent}, ran out {duration(-left_s)} ago"
        who, for_s = str(progress.unfinished[one.job].member), duration(progress.now - one.claimed_at)
        rows.append(
            (_trial(one.job), str(one.token), who, one.worker, for_s, Span(lease, look="odd" if gone else ""))
        )
    columns = (">running trial", ">attempt", ">member", "~worker", "for", "=lease")
    return Table(name="running", title="Running", columns=columns, rows=rows)


def _failed_table(results: "Results") -> Table:
    failed = results.failed()
    newest = failed[: -FEW - 1 : -1]
    causes = results.causes(newest)
    return Table(
        name="failed",
        title="What failed",
        lead="Trials that failed for good, and those that are tried again; the newest first.",
        columns=(">failed trial", ">member", ">failures", "state", "=last error"),
        rows=[
            (_trial(one.id), str(one.member), str(one.failures), one.state, _error(one, causes)) for one in newest
        ],
        note=_newest(FEW, len(failed)),
    )


def _error(trial: TrialRecord, causes: Mapping[int, Any]) -> str:
    return short(causes[trial.id].words() if trial.id in causes else summarize_error(trial.error), 400)


def _newest(most: int, count: int) -> str:
    return f"the last {most} of {number(count)}" if count > most else ""


def _damaged_table(damaged: Sequence[Checkpoint]) -> Table:
    return Table(
        name="damaged",
        title="Damaged checkpoints",
        lead="They did not hold what was committed. No trial has started from one since; the files are kept.",
        columns=("damaged checkpoint", ">trial", ">step", "=what"),
        rows=[(one.name, _trial(one.trial or 0), number(one.step), one.error or "") for one in damaged[:ROWS]],
        note=f"the first {ROWS} of {number(len(damaged))}" if len(damaged) > ROWS else "",
    )


def _record_table(results: "Results") -> Table:
    rows: list[tuple[float, Text]] = [
        (one.created_at, one.message) for one in _acts(results._query(queries.events))
    ]
    rows += [
        (one.at, f"{one.name} was changed from {_value(one.before)} to {_value(one.after)}")
        for one in results.changes()[-FEW:]
    ]
    for start, differs in with_differences(results.starts())[-FEW:]:
        facts: Any = start.facts
        what = f"; differs: {short(differs, 160)}" if differs else ""
        where = f"started on {facts['machine']['name']}, commit {start.commit}"
        rows.append(
            (start.at, Span(f"{where}: {short(start.command, 160)}{what}", look="changed" if differs else ""))
        )
    return Table(
        name="record",
        title="Record",
        lead="Who did what, what was changed, and how it was started; the newest first.",
        columns=("when (UTC)", "=what"),
        rows=[(moment(at), what) for at, what in sorted(rows, key=lambda row: -row[0])],
        empty="Nothing yet.",
    )


def _value(value: Any) -> str:
    return short(number(value), 80)


def _acts(events: Iterable[EvalEvent]) -> list[EvalEvent]:
    return [one for one in events if one.kind == ACTION][-FEW:]


def trials_page(study: StudyRecord, trials: Sequence[TrialRecord], count: int) -> Page:
    """Return a page of trials, of which the study has more."""
    note = f"{number(len(trials))} of {format_count(count, 'trial')}" if len(trials) < count else ""
    links = [Span("from the oldest", "?after=0"), *later_link(trials), Span("the newest", "?")]
    section = trials_table(trials, "trials-table", "Trials", anchors=True, note=note, links=links)
    return Page(study=study.name, title=f"Trials of {study.name}", key="trials", sections=[section])


def later_link(trials: Sequence[TrialRecord]) -> list[Span]:
    """Return a link to the trials after some, if there may be more."""
    return [Span("later", f"?after={trials[-1].id}")] if len(trials) == ROWS else []


def trials_table(trials: Iterable[TrialRecord], name: str, title: str, **more: Any) -> Table:
    """Return trials as a table."""
    columns = (">trial", ">member", ">generation", "state", "steps", ">fitness", "=decision", "hyperparameters")
    return Table(name=name, title=title, columns=columns, rows=[*map(_trial_row, trials)], **more)


def _trial_row(trial: TrialRecord) -> Row:
    end = trial.end_step if trial.reached_step is None else trial.reached_step
    return (
        _trial(trial.id),
        Span(str(trial.member), f"members/{trial.member}"),
        str(trial.generation),
        trial.state if trial.kind is JobKind.TRAIN else f"{trial.state} ({trial.kind})",
        f"{number(trial.start_step)} to {number(end)}",
        fitness(trial),
        short(summarize_error(trial.error) if trial.error else describe(trial.reason), 180),
        short(params(trial.params), 120),
    )


# A watched run, and the evaluation of a study


def run_page(found: "Evaluations") -> Page:
    """Return the page of a watched run."""
    one, acts = standing(found), _acts(found.events())
    run, lags = one.run, found.lag()
    watcher = f"watched by {one.watcher}"
    if one.watcher is None:
        watcher = "no process of this machine watches it; the same `phyla watch` command goes on with it"
    bests = [
        f"{best.suite}/{best.metric} {format_estimate(best.value, best.stderr)}" for best in one.best.values()
    ]
    return Page(
        study=run.name,
        title=run.name,
        state=run.state,
        kind=f"evaluation of checkpoints: {where(one)}",
        messages=[*filter(None, [run.message]), *waiting_lines(found)],
        score=bests[0] if bests else "",
        lines=[
            *([] if run.state is StudyState.COMPLETED and one.watcher is None else [(watcher,)]),
            *((f"evaluation of {lag_words(lag)}",) for lag in lags),
        ],
        facts=_run_facts(one),
        actions=[Span("Evaluations", "evaluations")],
        sections=[
            _suites_table(one),
            _quarantined_table(one),
            *map(Later, EVALUATION_SECTIONS),
            *([Table(name="record", title="Record", columns=("when (UTC)", "=what"), rows=[*map(_event, acts)])]),
        ],
    )


def where(one: WatchedRunStatus) -> str:
    """Return where the checkpoints of a watched run are."""
    return escape_name(one.run.location) if one.run.source is None else f"study number {one.run.source}"


def _event(event: EvalEvent) -> Row:
    return moment(event.created_at), short(event.message, 400)


def _run_facts(one: WatchedRunStatus) -> list[Fact]:
    newest = ""
    if one.newest is not None:
        newest = f"the newest is {escape_name(one.newest.name)} at step {step(one.newest.step)}"
        newest += "" if one.step_from is None else f", {one.step_from}"
    counts = {**one.counts, "quarantined": len(one.quarantined)}
    return [
        Fact("checkpoints seen", number(one.checkpoints), newest),
        *(Fact(state, number(counts[state])) for state in STATES if counts.get(state)),
        _since(one.run),
    ]


def counts_words(counts: Mapping[str, int]) -> str:
    """Return how many evaluations are in each state."""
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts.get(state))


def _suites_table(one: WatchedRunStatus) -> Table:
    rows: list[Row] = []
    for suite in one.suites:
        best = one.best.get(suite.name)
        told: Row = ("-", "-", "-")
        if best is not None:
            told = (
                format_estimate(best.value, best.stderr),
                step(best.step),
                escape_name(best.where) + (" (gone)" if best.gone else ""),
            )
        rows.append((suite.name, counts_words(one.evaluations[suite.name]) or "-", suite.objective or "-", *told))
    columns = ("suite", "=evaluations", "~objective", ">best", ">at step", "~checkpoint")
    return Table(name="suites", title="Suites", columns=columns, rows=rows)


def _quarantined_table(one: WatchedRunStatus) -> Table:
    return Table(
        name="quarantined",
        title="Checkpoints that cannot be evaluated",
        columns=("~quarantined", ">step", "=why"),
        rows=[
            (escape_name(bad.name), step(bad.step), summarize_error(bad.error)) for bad in one.quarantined[-FEW:]
        ],
        note=_newest(FEW, len(one.quarantined)),
    )


def evaluations_page(found: "Evaluations") -> Page:
    """Return what suites found on the newest checkpoints."""
    once = [cell for cell in found.cells(last=FEW) if cell.replicate == 0]
    run, suites = found.run, found.suites
    tables = [_suite_table(found, one, [cell for cell in once if cell.suite == one.name]) for one in suites]
    later = [] if run.watched else [Later(name) for name in EVALUATION_SECTIONS]
    title = f"Evaluations of {run.name}"
    return Page(study=run.name, title=title, key="evaluations", sections=[*tables, *later])


def _suite_table(found: "Evaluations", suite: "SuiteOutline", cells: Sequence[Cell]) -> Table:
    tasks = dict.fromkeys(task.name for task in suite.tasks)
    values = {one.seen.id: one for one in found.values(suite.name, last=FEW) if one.group.replicate == 0}
    seen = sorted({cell.seen.id: cell.seen for cell in cells}.values(), key=lambda one: -one.number)
    known = {(cell.seen.id, cell.task): _cell(cell) for cell in cells}
    objective, again = suite.objective, quote(suite.name)
    aim = f" Its objective is {objective}; the best checkpoint has a star." if objective else ""
    rows: list[Row] = []
    for one in seen:
        name = Span(short(escape_name(one.name), 40), f"trials/{one.trial}" if one.trial is not None else "")
        head = [_aggregate(values.get(one.id), objective)] if objective else []
        link = f"do/evaluate?checkpoint={one.id}&suite={again}"
        last: Text = Span("evaluate again", link) if one.usable else ""
        at = number(one.step) if one.step >= 0 else "?"
        rows.append((at, name, *head, *(known.get((one.id, task), "-") for task in tasks), last))
    return Table(
        name=f"suite-{found.suites.index(suite) + 1}",
        title=f"Suite {suite.name}",
        lead=f"The newest {FEW} checkpoints.{aim}",
        columns=(">step", "checkpoint", *([f">{objective}"] if objective else []), *tasks, ""),
        rows=rows,
        empty="No checkpoint was seen yet.",
    )


def _aggregate(values: "GroupValues | None", objective: str) -> Text:
    found = values.values.get(objective) if values else None
    if values is None or found is None:
        return "-"
    marks = (" ★" if values.best else "") + (" (partial)" if values.partial else "")
    return Span(format_estimate(found.value, found.stderr) + marks, look="winner" if values.best else "")


def _cell(cell: Cell) -> Text:
    if cell.estimate:
        return format_estimate(cell.estimate.value, cell.estimate.stderr)
    return Span(cell.status, look="odd" if cell.status == "failed" else "")


# Reports


def pages_of(results: "Results") -> list[Page]:
    """Return the pages of a report of a study."""
    newest = results._query(queries.recent, newest=ROWS).trials[-ROWS:][::-1]
    pages = [study_page(results), trials_page(results.study(), newest, sum(results.counts().values()))]
    return [*pages, *([evaluations_page(results.evaluations())] if results.has_suites else [])]
