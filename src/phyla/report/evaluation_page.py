"""The report of what was measured of checkpoints, and its sections in the report of a study."""

import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from phyla.evaluation import CellStatus, GroupValues, causes
from phyla.records import RunKind, shown
from phyla.report.aggregates import aggregates_figure
from phyla.report.evaluation import EvaluationData, measured, step_of
from phyla.report.lag import lag_figure, lag_words
from phyla.report.matrix import matrix_figure
from phyla.report.page import ROWS, Cell, Section, document, figure_section, section, table, write_page
from phyla.report.words import moment, short


def write_evaluation_report(
    data: EvaluationData,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    extra_sections: Iterable[Section] = (),
) -> Path:
    """Write a report of what was measured of a run's checkpoints as one HTML file that works offline.

    The file appears complete or not at all; folders on the way are created.

    Args:
        data: the evaluation.
        path: the file; one that exists is replaced.
        title: heading of the report; the default is the run's name.
        extra_sections: what to put at its end.

    Returns:
        The file.

    Raises:
        OSError: the file cannot be written.
    """
    heading = title or data.run.name
    body = (
        evaluation_header(data, heading),
        *evaluation_sections(data),
        *(section(escape(one.title), one.html) for one in extra_sections),
    )
    return write_page(Path(path), document(heading, body, data.now))


def evaluation_sections(data: EvaluationData) -> list[str]:
    """Return the figures and tables of an evaluation."""
    made: list[str] = []
    suites = list(dict.fromkeys([suite.name for suite in data.suites] + [cell.suite for cell in data.cells]))
    for index, suite in enumerate(suites):
        made.append(figure_section(f"aggregates-{index}", aggregates_figure(data, suite)))
        made.append(figure_section(f"matrix-{index}", matrix_figure(data, suite)))
    made.append(figure_section("lag", lag_figure(data)))
    return [*made, *_regressions(data), *_lacking(data)]


def evaluation_header(data: EvaluationData, title: str) -> str:
    """Return the head of a page that is about one run."""
    run, counts = data.run, data.counts
    done = counts.get(CellStatus.DONE, 0) + counts.get(CellStatus.REUSED, 0)
    lacking = sum(counts.values()) - done
    told = ", ".join(f"{count:,} {status}" for status, count in counts.items() if not CellStatus(status).has_value)
    facts = [
        ("checkpoints", f"{len(data.checkpoints):,}", ""),
        ("eval tasks done", f"{done:,}", ""),
        ("without a value", f"{lacking:,}", told),
        ("regressions", f"{sum(event.kind == 'regression' for event in data.events):,}", ""),
        ("since", f"{moment(run.created_at):%Y-%m-%d}", f"{moment(run.created_at):%H:%M} UTC"),
    ]
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd class=small>{escape(more)}</dd></div>"
        for name, value, more in facts
    )
    best = [one for one in data.values if one.best and one.group.replicate == 0]
    top = "".join(_best(data, one) for one in best) or '<p class="score none">no best checkpoint yet</p>'
    behind = "".join(f'<p class="path">{escape(line)}</p>' for line in lag_words(data))
    message = f'<p class="message">{escape(run.message)}</p>' if run.message else ""
    state = escape(data.state or run.state.value)
    where = f" of <code>{escape(shown(run.location))}</code>" if run.kind is RunKind.DIRECTORY else ""
    return f"""<header>
<p class="kind">evaluation of checkpoints{where}</p>
<h1>{escape(title)} <span class="state {state}">{state}</span></h1>
{message}
<div class="summary"><div class="best">{top}{behind}</div><dl>{cells}</dl></div>
</header>"""


def _best(data: EvaluationData, one: GroupValues) -> str:
    objective = data.suite(one.group.suite).objective or ""
    found = one.values.get(objective)
    if found is None:
        return ""
    path = one.seen.path or one.seen.name
    return (
        f'<p class="score">{escape(measured(found.value, found.stderr))}</p>'
        f"<p>best {escape(f'{one.group.suite}/{objective}')}, at {escape(step_of(one.seen))}</p>"
        f'<p class="path">checkpoint <code>{escape(shown(path))}</code></p>'
    )


def _regressions(data: EvaluationData) -> list[str]:
    found = [event for event in data.events if event.kind in ("regression", "changed-source", "rewound")]
    if not found:
        return []
    rows: list[Sequence[Cell]] = [
        [
            (f"{moment(event.created_at):%m-%d %H:%M:%S}", "n"),
            (event.kind, ""),
            (short(event.message, 400), "words"),
        ]
        for event in reversed(found[-ROWS:])
    ]
    lead = "Each checkpoint is compared with the best one before it, eval task by eval task, adjusted by Holm."
    return [
        section("Regressions and warnings", table(["time (UTC)", "what", "message"], ["n", "", ""], rows), lead)
    ]


def _lacking(data: EvaluationData) -> list[str]:
    found = causes(cell for cell in data.cells if cell.replicate == 0)
    if not found:
        return []
    rows: list[Sequence[Cell]] = [
        [
            (cause.status.value, ""),
            (cause.suite, ""),
            (cause.task or "all", ""),
            (f"{len(cause.checkpoints):,}", "n"),
            (", ".join(step_of(seen).removeprefix("step ") for seen in cause.checkpoints[-4:]), "n"),
            (short(cause.why, 300), "words"),
        ]
        for cause in found[:ROWS]
    ]
    head = ["status", "suite", "eval task", "checkpoints", "last at step", "why"]
    lead = "Reasons that differ only in numbers are one row, with the newest of them."
    return [section("Values that are missing, and why", table(head, ["", "", "", "n", "n", ""], rows), lead)]
