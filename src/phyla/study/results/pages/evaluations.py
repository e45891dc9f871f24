"""The pages of evaluation: a watched run, and the results of suites on checkpoints."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from phyla.evaluation import Cell
from phyla.formatting import format_count, format_estimate, lag_words, number, short, step
from phyla.pages import Fact, Later, Page, Row, Span, Table, Text
from phyla.records import StudyState, escape_name, summarize_error
from phyla.study.results.pages.record import newest_of, record_table, since
from phyla.study.results.watched_runs import WatchedRunStatus, read_run_status

if TYPE_CHECKING:
    from phyla.evaluation import GroupValues, SuiteOutline
    from phyla.study.results.evaluations import Evaluations

FEW = 20
STATES = ("complete", "queued", "partial", "skipped", "gone", "quarantined")
EVALUATION_SECTIONS = ("aggregates", "matrix", "lag", "warnings", "causes")


def run_page(evaluations: "Evaluations") -> Page:
    """Return the page of a watched run."""
    status, lags = read_run_status(evaluations), evaluations.lag()
    run = status.run
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
            record_table(evaluations.notes()),
        ],
    )


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


def format_location(status: WatchedRunStatus) -> str:
    """Return where the checkpoints of a watched run are."""
    return escape_name(status.run.location) if status.run.source is None else f"study number {status.run.source}"


def _run_facts(status: WatchedRunStatus) -> list[Fact]:
    newest = ""
    if status.newest is not None:
        newest = f"the newest is {escape_name(status.newest.name)} at step {step(status.newest.step)}"
        newest += "" if status.step_from is None else f", {status.step_from}"
    counts = {**status.counts, "quarantined": len(status.quarantined)}
    return [
        Fact("checkpoints seen", number(status.checkpoints), newest),
        *(Fact(state, number(counts[state])) for state in STATES if counts.get(state)),
        since(status.run),
    ]


def count_evaluations(counts: Mapping[str, int]) -> str:
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
                count_evaluations(status.evaluations[suite.name]) or "-",
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
        note=newest_of(FEW, len(status.quarantined)),
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
