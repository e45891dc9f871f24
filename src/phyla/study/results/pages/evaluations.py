"""The pages of evaluation: a watched run, and the results of suites on checkpoints."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final
from urllib.parse import quote

from phyla.evaluation.matrix import Cell, CellCause, CellStatus, GroupValues, causes
from phyla.evaluation.suite import SuiteOutline
from phyla.formatting import (
    duration,
    format_count,
    format_estimate,
    join_names,
    lag_words,
    moment,
    number,
    short,
    step,
)
from phyla.pages import Fact, Later, Page, Picture, Row, Section, Span, Table, Text
from phyla.records import ACTION, Checkpoint, EvalEvent, StudyState, escape_name, summarize_error
from phyla.study.results.pages.record import newest_of, record_table, since
from phyla.study.results.watched_runs import WatchedRunStatus, read_run_status

if TYPE_CHECKING:
    from phyla.report import EvaluationData
    from phyla.study.results.evaluations import Evaluations

FEW = 20
ROWS = 200
STATES = ("complete", "queued", "partial", "skipped", "gone", "quarantined")
BEST, PARTIAL = "*", "~"
OF_PARTIAL = "not over all eval tasks of the suite, so not to be compared with the others"
AGAIN = (
    "evaluations that failed for good are retried when you restart the watch or the run; while it runs: "
    "phyla evaluations NAME --retry"
)
EVALUATION_SECTIONS = ("aggregates", "matrix", "lag", "warnings", "causes")


def run_page(evaluations: "Evaluations", *, pictures: bool = False) -> Page:
    """Return the page of a watched run; for browsers with a picture."""
    status, lags = read_run_status(evaluations), evaluations.lag()
    run = status.run
    watcher = f"watched by {status.watcher}"
    if status.watcher is None:
        watcher = "no process of this machine watches it; run the same `phyla watch` command again to continue"
    best = next(iter(status.best.values()), None)
    return Page(
        study=run.name,
        title=run.name,
        state=run.state,
        kind=f"evaluation of checkpoints: {format_location(status)}",
        messages=[*filter(None, [run.message]), *waiting_lines(evaluations)],
        pictures=[_run_picture(evaluations)] if pictures else (),
        score=format_estimate(best.value, best.stderr) if best else "",
        lines=[
            *(
                [(f"best {best.metric} of suite {best.suite}, at step {step(best.step)}",)]
                if best and pictures
                else []
            ),
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


def _run_picture(evaluations: "Evaluations") -> Picture:
    from phyla.report.pictures import suites_picture

    newest = evaluations.newest(ROWS)
    return suites_picture(newest.values, evaluations.suites, newest.regressions, newest.members)


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


# The matrix


@final
@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Chosen checkpoints and eval tasks of a run.

    Attributes:
        suites: the chosen suites.
        cells: the outcome of each chosen eval task on each chosen checkpoint, repetitions too.
        values: the aggregates of the suites on these checkpoints.
        last: how many of the newest checkpoints were read; None for all.
    """

    suites: Sequence[SuiteOutline]
    cells: Sequence[Cell]
    values: Sequence[GroupValues]
    last: int | None

    @property
    def counts(self) -> dict[str, int]:
        """How many cells have each status; repetitions do not count."""
        counts = Counter(cell.status for cell in self.cells if cell.replicate == 0)
        return {status.value: counts[status] for status in CellStatus if counts[status]}

    @property
    def is_cut(self) -> bool:
        """Whether older checkpoints may be left out."""
        return self.last is not None and len({cell.seen.id for cell in self.cells}) == self.last


def read_matrix(
    evaluations: "Evaluations",
    suite: str | None = None,
    tasks: Collection[str] = (),
    *,
    last: int | None = FEW,
    missing: bool = False,
) -> Matrix:
    """Read the matrix of a run: some suites, eval tasks and checkpoints, or only those that lack a value."""
    suites = evaluations.suites if suite is None else (evaluations.suite(suite),)
    cells = [cell for cell in evaluations.cells(suite, last=last) if not tasks or cell.task in tasks]
    if missing:
        lacking = {(cell.seen.id, cell.suite) for cell in cells if not cell.status.has_value}
        cells = [cell for cell in cells if (cell.seen.id, cell.suite) in lacking]
    values = [group for outline in suites for group in evaluations.values(outline.name, last=last)]
    return Matrix(suites=suites, cells=cells, values=values, last=last)


def evaluations_page(evaluations: "Evaluations", matrix: Matrix | None = None) -> Page:
    """Return the results of the suites on checkpoints, by default the newest ones."""
    run, matrix = evaluations.run, matrix or read_matrix(evaluations)
    cut = f"the newest {format_count(matrix.last or 0, 'checkpoint')}: " if matrix.is_cut else ""
    counts = ", ".join(f"{number(count)} {status}" for status, count in matrix.counts.items())
    names = {suite.name for suite in matrix.suites}
    return Page(
        study=run.name,
        title=f"Evaluations of {run.name}",
        key="evaluations",
        state=run.state,
        kind=f"{cut}{counts or 'nothing to show'}",
        messages=waiting_lines(evaluations),
        lines=[(lag_words(lag),) for lag in evaluations.lag() if lag.suite in names],
        sections=[
            *(_suite_table(evaluations, suite, matrix) for suite in matrix.suites),
            running_table(matrix.cells),
            *([] if run.watched else map(Later, EVALUATION_SECTIONS)),
        ],
    )


def _suite_table(evaluations: "Evaluations", suite: SuiteOutline, matrix: Matrix) -> Table:
    cells = [cell for cell in matrix.cells if (cell.suite, cell.replicate) == (suite.name, 0)]
    groups = [row for row in matrix.values if (row.group.suite, row.group.replicate) == (suite.name, 0)]
    values = {row.seen.id: row for row in groups}
    seen = sorted({cell.seen.id: cell.seen for cell in cells}.values(), key=lambda checkpoint: -checkpoint.number)
    known = {(cell.seen.id, cell.task): _cell(cell) for cell in cells}
    tasks = dict.fromkeys(cell.task for cell in cells)
    lacking = {cell.seen.id for cell in cells if cell.partial or not cell.status.has_value}
    rows: list[Row] = []
    for checkpoint in seen:
        link = f"do/evaluate?checkpoint={checkpoint.id}&suite={quote(suite.name)}"
        rows.append(
            (
                *_checkpoint(checkpoint),
                *(
                    [_aggregate(values.get(checkpoint.id), suite.objective, partial=checkpoint.id in lacking)]
                    if suite.objective
                    else []
                ),
                *(known.get((checkpoint.id, task), "-") for task in tasks),
                Span("evaluate again", link) if checkpoint.usable else "",
            )
        )
    marks = [f"{BEST} the best"] if any(row.best for row in groups) else []
    marks += [f"{PARTIAL} {OF_PARTIAL}"] if suite.objective and lacking & values.keys() else []
    fixed = (">step", "~checkpoint", *([f">{suite.objective}"] if suite.objective else []))
    return Table(
        name=f"suite-{evaluations.suites.index(suite) + 1}",
        title=f"Suite {suite.name}",
        lead=f"Its objective is {suite.objective}." if suite.objective else "",
        columns=(*fixed, *(f">{task}" for task in tasks), ""),
        rows=rows,
        note="; ".join(marks),
        empty="No checkpoints yet.",
        fixed=len(fixed),
    )


def _checkpoint(checkpoint: Checkpoint) -> tuple[Text, Text]:
    """Return the step of a checkpoint, with its branch, and its name."""
    at = number(checkpoint.step) if checkpoint.step >= 0 else "?"
    name = escape_name(checkpoint.name) + (f"[{checkpoint.index}]" if checkpoint.index else "")
    link = "" if checkpoint.trial is None else f"trials/{checkpoint.trial}"
    return f"{at}@{checkpoint.branch}" if checkpoint.branch else at, Span(short(name, 100), link)


def _aggregate(values: GroupValues | None, objective: str, *, partial: bool) -> Text:
    estimate = values.values.get(objective) if values else None
    if values is None or estimate is None:
        return "-"
    marks = f"{BEST if values.best else ''}{PARTIAL if partial else ''}"
    text = format_estimate(estimate.value, estimate.stderr)
    return Span(f"{marks}{text}", look="winner" if values.best else "")


def _cell(cell: Cell) -> Text:
    if cell.estimate:
        return format_estimate(cell.estimate.value, cell.estimate.stderr)
    if cell.status.has_value:
        return "unread" if cell.unread else "saved" if cell.files else "done"
    done = f" {cell.shards_done}/{cell.shards}" if cell.shards_done else ""
    return Span(f"{cell.status}{done}", look="odd" if cell.status is CellStatus.FAILED else "")


def running_table(cells: Sequence[Cell]) -> Table:
    """Return the eval tasks that run, with how long they have been running."""
    claimed = [(cell.running_s, cell) for cell in cells if cell.running_s is not None]
    return Table(
        name="running",
        title="Running",
        lead="The longest first, so that eval tasks that hang show.",
        columns=(">step", "~checkpoint", "suite", "eval task", ">for", "~worker"),
        rows=[
            (*_checkpoint(cell.seen), cell.suite, cell.task, duration(seconds), cell.worker or "-")
            for seconds, cell in sorted(claimed, key=lambda pair: -pair[0])[:FEW]
        ],
        note=f"the first {FEW} of {number(len(claimed))}" if len(claimed) > FEW else "",
    )


def evaluation_history(data: "EvaluationData") -> Iterator[Section]:
    """Yield the sections that need the whole history of a run's evaluation."""
    from phyla.report import evaluation_sections

    yield from evaluation_sections(data)
    yield warnings_table(data.events)
    yield causes_table(data.cells)


def warnings_table(events: Iterable[EvalEvent], most: int = ROWS) -> Table:
    """Return the newest regressions and warnings."""
    warnings = [event for event in events if event.kind not in ("gone", "quarantined", ACTION)]
    return Table(
        name="warnings",
        title="Regressions and warnings",
        lead="A regression is a checkpoint, or the mean of several, worse than the mean of earlier ones by "
        "more than these differ. Each new result may add or withdraw one.",
        columns=("when (UTC)", "what", "=message"),
        rows=[
            (moment(event.created_at), event.kind, short(event.message, 400))
            for event in warnings[: -most - 1 : -1]
        ],
        note=newest_of(most, len(warnings)),
        empty="No regressions or warnings.",
    )


def causes_table(cells: Iterable[Cell], most: int = ROWS) -> Table:
    """Return why values are missing, the most urgent reasons first."""
    known = causes(cell for cell in cells if cell.replicate == 0)
    left_out = f"the first {most} of {number(len(known))} rows" if len(known) > most else ""
    failed = any(cause.status is CellStatus.FAILED and cause.tasks for cause in known)
    return Table(
        name="causes",
        title="Missing values",
        lead="Reasons that differ only in numbers share a row, which shows the newest.",
        columns=("state", "suite", "eval task", ">checkpoints", "=the newest", "=why"),
        rows=[_cause(cause) for cause in known[:most]],
        note="; ".join(filter(None, (left_out, AGAIN if failed else ""))),
        empty="No values are missing.",
    )


def _cause(cause: CellCause) -> Row:
    newest = cause.checkpoints[-4:]
    where = ", ".join(escape_name(checkpoint.name) for checkpoint in newest)
    if all(checkpoint.step >= 0 for checkpoint in newest):
        where = f"step {', '.join(number(checkpoint.step) for checkpoint in newest)}"
    count, why = number(len(cause.checkpoints)), short(cause.why or "", 400)
    return (cause.status, cause.suite, join_names(cause.tasks) or "all", count, where, why)
