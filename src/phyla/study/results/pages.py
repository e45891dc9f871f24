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
from phyla.study.results.watched_runs import WatchedRunStatus, read_run_status

if TYPE_CHECKING:
    from phyla.evaluation import GroupValues, SuiteOutline
    from phyla.study.results.evaluations import Evaluations
    from phyla.study.results.results import Results

ROWS = 100
"""Rows of a table on one page; links lead to the rest."""
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
        problem = "no worker has renewed its lease"
        if not progress.running:
            problem = "no trial is running, and nothing has happened"
        yield f"{problem} for {duration(progress.silent_s)}; run the study again to resume"
    if progress.damaged:
        yield f"{format_count(len(progress.damaged), 'damaged checkpoint')}, no longer used; the files are kept"
    yield from (f"warning: {finding.text}" for finding in results.findings())
    if results.has_suites:
        yield from waiting_lines(results.evaluations())


def waiting_lines(evaluations: "Evaluations") -> list[str]:
    """Return how many eval tasks wait for a worker with each label."""
    counts: dict[str, int] = {}
    for waiting in evaluations.waiting():
        counts[waiting.label] = counts.get(waiting.label, 0) + waiting.count
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
    """Return the lag of each suite's evaluation."""
    lags = results.evaluations().lag() if results.has_suites else []
    return [f"evaluation of {lag_words(lag)}" for lag in lags]


def facts(progress: Progress) -> list[Fact]:
    """Return the progress of a study in numbers."""
    counts = {state: count for state, count in progress.counts.items() if state != "completed"}
    counts_by_state = [f"{number(count)} {state}" for state, count in counts.items()]
    counts_by_state += [f"{len(progress.gone)} held by workers that are gone"] if progress.gone else []
    done = _of(progress.completed, progress.planned_trials)
    given_up = format_count(progress.given_up, "member was", "members were") + " given up"
    time_left = [Fact("time left", duration(progress.left_s), "at the present pace")] if progress.left_s else []
    return [
        Fact("trials completed", done, ", ".join(counts_by_state)),
        Fact("steps", _of(progress.spent_steps, progress.total_steps)),
        Fact("members", number(progress.active), given_up if progress.given_up else ""),
        *time_left,
        Fact("last activity", f"{duration(progress.now - progress.last_activity)} ago"),
        _since(progress.study),
    ]


def _since(study: StudyRecord) -> Fact:
    date, clock = moment(study.created_at)[:-3].split()
    return Fact("since", date, f"{clock} UTC")


def _of(count: int, planned: int | None) -> str:
    return f"{number(count)} of {'?' if planned is None else number(planned)}"


def _actions(study: StudyRecord, given_up: int) -> list[Span]:
    actions = [Span("Trials", "trials")]
    actions += [Span("Evaluations", "evaluations")] if study.config.get("suites") else []
    actions += [Span("Compare with others", f"/compare?study={quote(study.name)}")]
    actions += [Span("Stop", "do/stop")] if study.state is StudyState.RUNNING else []
    actions += [Span("Resume", "do/resume")] if study.state in (StudyState.STOPPED, StudyState.FAILED) else []
    return actions + ([Span("Retry given-up members", "do/retry")] if given_up and _decides(study) else [])


def _decides(study: StudyRecord) -> bool:
    return study.state in (StudyState.RUNNING, StudyState.COMPLETED)


def decisions_table(results: "Results") -> Table:
    """Return the last decisions and failures, newest first."""
    entries = decisions(results, limit=DECISIONS)
    return Table(
        name="feed",
        title="Decisions",
        lead="Newest first; members that continue unchanged are left out.",
        columns=("when (UTC)", "=what", ">trial"),
        rows=[(moment(entry.at), short(entry.words, 240), _trial(entry.trial)) for entry in entries],
        empty="No decisions yet.",
    )


def _trial(trial: int, text: str | None = None) -> Span:
    return Span(str(trial) if text is None else text, f"trials/{trial}")


def members_table(progress: Progress, members: Sequence[Member], first: int = 0) -> Table:
    """Return the progress, fitness, hyperparameters and last decision of members."""
    front = {trial.id for trial in progress.front}
    # A member's present state may be worse than its best.
    best = {trial.member: fitness(trial) for trial in progress.front}
    if progress.aim.tradeoffs:
        # Members on the Pareto front now.
        best = {member.index: "*" for member in members if member.head and member.head.trial in front}
    last = "front" if progress.aim.tradeoffs else ">best"
    end = first + len(members)
    which = f"the best {number(len(members))}" if not first else f"{first + 1} to {end}, by fitness,"
    return Table(
        name="members",
        title="Members",
        lead="The best first.",
        # The widest columns come last, so that they squeeze no other.
        columns=(">member", ">steps", ">gen", ">fitness", last, "state", "~hyperparameters", "~last decision"),
        rows=[_member(progress, member, best) for member in members],
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
    for attempt in progress.running:
        left_s, gone = attempt.expires_at - progress.now, attempt.job in progress.gone
        silent = duration(progress.now - max(attempt.claimed_at, attempt.expires_at - length_s))
        lease = f"renewed {silent} ago"
        if gone and left_s >= 0:
            lease = f"its process is gone; ends in {duration(left_s)}"
        elif left_s < 0:
            lease = f"no progress for {silent}, ran out {duration(-left_s)} ago"
        job, member, for_s = (
            _trial(attempt.job),
            str(progress.unfinished[attempt.job].member),
            duration(progress.now - attempt.claimed_at),
        )
        rows.append(
            (job, str(attempt.token), member, attempt.worker, for_s, Span(lease, look="odd" if gone else ""))
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
        lead="Trials that failed for good, and trials that are retried; newest first.",
        columns=(">failed trial", ">member", ">failures", "state", "=last error"),
        rows=[
            (_trial(trial.id), str(trial.member), str(trial.failures), trial.state, _error(trial, causes))
            for trial in newest
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
        lead="Their files differ from what was committed. No trial has used them since; the files are kept.",
        columns=("damaged checkpoint", ">trial", ">step", "=what"),
        rows=[
            (checkpoint.name, _trial(checkpoint.trial or 0), number(checkpoint.step), checkpoint.error or "")
            for checkpoint in damaged[:ROWS]
        ],
        note=f"the first {ROWS} of {number(len(damaged))}" if len(damaged) > ROWS else "",
    )


def _record_table(results: "Results") -> Table:
    rows: list[tuple[float, Text]] = [
        (event.created_at, event.message) for event in _acts(results._query(queries.events))
    ]
    rows += [
        (change.at, f"{change.name} was changed from {_value(change.before)} to {_value(change.after)}")
        for change in results.changes()[-FEW:]
    ]
    for start, differs in with_differences(results.starts())[-FEW:]:
        facts: Any = start.facts
        difference = f"; differs: {short(differs, 160)}" if differs else ""
        where = f"started on {facts['machine']['name']}, commit {start.commit}"
        rows.append(
            (
                start.at,
                Span(f"{where}: {short(start.command, 160)}{difference}", look="changed" if differs else ""),
            )
        )
    return Table(
        name="record",
        title="Record",
        lead="Actions, changes of settings, and starts; newest first.",
        columns=("when (UTC)", "=what"),
        rows=[(moment(at), text) for at, text in sorted(rows, key=lambda row: -row[0])],
        empty="Nothing yet.",
    )


def _value(value: Any) -> str:
    return short(number(value), 80)


def _acts(events: Iterable[EvalEvent]) -> list[EvalEvent]:
    return [event for event in events if event.kind == ACTION][-FEW:]


def trials_page(study: StudyRecord, trials: Sequence[TrialRecord], count: int) -> Page:
    """Return one page of a study's trials."""
    note = f"{number(len(trials))} of {format_count(count, 'trial')}" if len(trials) < count else ""
    links = [Span("from the oldest", "?after=0"), *later_link(trials), Span("the newest", "?")]
    section = trials_table(trials, "trials-table", "Trials", anchors=True, note=note, links=links)
    return Page(study=study.name, title=f"Trials of {study.name}", key="trials", sections=[section])


def later_link(trials: Sequence[TrialRecord]) -> list[Span]:
    """Return a link to later trials, if there may be more."""
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


def run_page(evaluations: "Evaluations") -> Page:
    """Return the page of a watched run."""
    status, acts = read_run_status(evaluations), _acts(evaluations.notes())
    run, lags = status.run, evaluations.lag()
    watcher = f"watched by {status.watcher}"
    if status.watcher is None:
        watcher = "no process of this machine watches it; run the same `phyla watch` command again to continue"
    bests = [
        f"{best.suite}/{best.metric} {format_estimate(best.value, best.stderr)}" for best in status.best.values()
    ]
    return Page(
        study=run.name,
        title=run.name,
        state=run.state,
        kind=f"evaluation of checkpoints: {format_location(status)}",
        messages=[*filter(None, [run.message]), *waiting_lines(evaluations)],
        score=bests[0] if bests else "",
        lines=[
            *([] if run.state is StudyState.COMPLETED and status.watcher is None else [(watcher,)]),
            *((f"evaluation of {lag_words(lag)}",) for lag in lags),
        ],
        facts=_run_facts(status),
        actions=[Span("Evaluations", "evaluations")],
        sections=[
            _suites_table(status),
            _quarantined_table(status),
            *map(Later, EVALUATION_SECTIONS),
            *([Table(name="record", title="Record", columns=("when (UTC)", "=what"), rows=[*map(_event, acts)])]),
        ],
    )


def format_location(status: WatchedRunStatus) -> str:
    """Return where the checkpoints of a watched run are."""
    return escape_name(status.run.location) if status.run.source is None else f"study number {status.run.source}"


def _event(event: EvalEvent) -> Row:
    return moment(event.created_at), short(event.message, 400)


def _run_facts(status: WatchedRunStatus) -> list[Fact]:
    newest = ""
    if status.newest is not None:
        newest = f"the newest is {escape_name(status.newest.name)} at step {step(status.newest.step)}"
        newest += "" if status.step_from is None else f", {status.step_from}"
    counts = {**status.counts, "quarantined": len(status.quarantined)}
    return [
        Fact("checkpoints seen", number(status.checkpoints), newest),
        *(Fact(state, number(counts[state])) for state in STATES if counts.get(state)),
        _since(status.run),
    ]


def counts_words(counts: Mapping[str, int]) -> str:
    """Return how many evaluations are in each state."""
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts.get(state))


def _suites_table(status: WatchedRunStatus) -> Table:
    rows: list[Row] = []
    for suite in status.suites:
        best = status.best.get(suite.name)
        best_columns: Row = ("-", "-", "-")
        if best is not None:
            best_columns = (
                format_estimate(best.value, best.stderr),
                step(best.step),
                escape_name(best.where) + (" (gone)" if best.gone else ""),
            )
        rows.append(
            (
                suite.name,
                counts_words(status.evaluations[suite.name]) or "-",
                suite.objective or "-",
                *best_columns,
            )
        )
    columns = ("suite", "=evaluations", "~objective", ">best", ">at step", "~checkpoint")
    return Table(name="suites", title="Suites", columns=columns, rows=rows)


def _quarantined_table(status: WatchedRunStatus) -> Table:
    return Table(
        name="quarantined",
        title="Checkpoints that cannot be evaluated",
        columns=("~quarantined", ">step", "=why"),
        rows=[
            (escape_name(bad.name), step(bad.step), summarize_error(bad.error))
            for bad in status.quarantined[-FEW:]
        ],
        note=_newest(FEW, len(status.quarantined)),
    )


def evaluations_page(evaluations: "Evaluations") -> Page:
    """Return the results of the suites on the newest checkpoints."""
    once = [cell for cell in evaluations.cells(last=FEW) if cell.replicate == 0]
    run, suites = evaluations.run, evaluations.suites
    tables = [
        _suite_table(evaluations, suite, [cell for cell in once if cell.suite == suite.name]) for suite in suites
    ]
    later = [] if run.watched else [Later(name) for name in EVALUATION_SECTIONS]
    title = f"Evaluations of {run.name}"
    return Page(study=run.name, title=title, key="evaluations", sections=[*tables, *later])


def _suite_table(evaluations: "Evaluations", suite: "SuiteOutline", cells: Sequence[Cell]) -> Table:
    tasks = dict.fromkeys(task.name for task in suite.tasks)
    values = {
        aggregates.seen.id: aggregates
        for aggregates in evaluations.values(suite.name, last=FEW)
        if aggregates.group.replicate == 0
    }
    seen = sorted({cell.seen.id: cell.seen for cell in cells}.values(), key=lambda checkpoint: -checkpoint.number)
    known = {(cell.seen.id, cell.task): _cell(cell) for cell in cells}
    objective, again = suite.objective, quote(suite.name)
    aim = f" Its objective is {objective}; the best checkpoint has a star." if objective else ""
    rows: list[Row] = []
    for checkpoint in seen:
        name = Span(
            short(escape_name(checkpoint.name), 40),
            f"trials/{checkpoint.trial}" if checkpoint.trial is not None else "",
        )
        head = [_aggregate(values.get(checkpoint.id), objective)] if objective else []
        link = f"do/evaluate?checkpoint={checkpoint.id}&suite={again}"
        last: Text = Span("evaluate again", link) if checkpoint.usable else ""
        at = number(checkpoint.step) if checkpoint.step >= 0 else "?"
        rows.append((at, name, *head, *(known.get((checkpoint.id, task), "-") for task in tasks), last))
    return Table(
        name=f"suite-{evaluations.suites.index(suite) + 1}",
        title=f"Suite {suite.name}",
        lead=f"The newest {FEW} checkpoints.{aim}",
        columns=(">step", "checkpoint", *([f">{objective}"] if objective else []), *tasks, ""),
        rows=rows,
        empty="No checkpoints yet.",
    )


def _aggregate(values: "GroupValues | None", objective: str) -> Text:
    estimate = values.values.get(objective) if values else None
    if values is None or estimate is None:
        return "-"
    marks = (" ★" if values.best else "") + (" (partial)" if values.partial else "")
    return Span(format_estimate(estimate.value, estimate.stderr) + marks, look="winner" if values.best else "")


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
