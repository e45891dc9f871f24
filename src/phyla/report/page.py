"""Reports: one HTML file each, made from the templates, that needs nothing else."""

import os
from base64 import b64encode
from collections import Counter
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phyla.evaluation import CellStatus
from phyla.evaluation.matrix import causes
from phyla.formatting import counted, duration, lag_words, measured, number, score, time_words
from phyla.records import JobState, shown, with_differences
from phyla.report import formatting, style
from phyla.report.columns import finite_fitness
from phyla.report.compared import ALPHA, ComparedGroups
from phyla.report.data import EvaluationData, StudyData
from phyla.report.figures import COMPARISON_FIGURES, EVALUATION_FIGURES, STUDY_FIGURES
from phyla.report.figures.progress import progress_figure
from phyla.strategies import describe

if TYPE_CHECKING:
    import jinja2

PLOTLY = Path(__file__).parent / "plotly" / "plotly-cartesian.min.js.gz"
"""Plotly's script with the traces that our figures have: a third of the whole one. CONTRIBUTING.md updates it."""
ROWS = 1_000
"""Rows that a table shows."""
WARNINGS = ("regression", "changed-source", "rewound", "same-samples")
FILTERS = (
    counted,
    duration,
    lag_words,
    time_words,
    measured,
    number,
    score,
    formatting.p_words,
    formatting.short,
    formatting.step_of,
)
"""Functions that templates use as filters."""


def write_report(
    data: StudyData,
    path: str | os.PathLike[str],
    *,
    evaluation: EvaluationData | None = None,
    baseline: StudyData | None = None,
) -> Path:
    """Write a report of a study, and of the evaluation of its checkpoints, as one HTML file that works offline.

    The file replaces an existing one, and appears complete or not at all; folders on the way are created. A
    baseline is another study with the same objective: the figure of progress shows it as broken lines.
    """
    return _write(
        "study.html",
        path,
        title=data.study.name,
        now=data.last_moment,
        data=data,
        plots=[
            progress_figure(data, baseline),
            *(draw(data) for name, draw in STUDY_FIGURES.items() if name != "progress"),
        ],
        where=data.best and data.best.checkpoint and (data.path_of(data.best.checkpoint) or data.best.checkpoint),
        kept=[(trial, its) for trial in data.front if (its := data.path_of(trial.checkpoint or ""))],
        starts=with_differences(data.starts)[-ROWS:],
        members=_members(data),
        **({} if evaluation is None else _suites(evaluation)),
    )


def write_evaluation_report(data: EvaluationData, path: str | os.PathLike[str]) -> Path:
    """Write a report of the evaluation of checkpoints, like `write_report`."""
    suites = [(one, data.suite(one.group.suite)) for one in data.values if one.best and one.group.replicate == 0]
    counts = Counter(cell.status for cell in data.cells if cell.replicate == 0)
    return _write(
        "evaluation.html",
        path,
        title=data.run.name,
        now=data.now,
        best=[(one, suite, found) for one, suite in suites if (found := one.values.get(suite.objective or ""))],
        done=counts[CellStatus.DONE] + counts[CellStatus.REUSED],
        lacking={status.value: count for status, count in counts.items() if not status.has_value},
        **_suites(data),
    )


def write_comparison_report(comparison: ComparedGroups, path: str | os.PathLike[str]) -> Path:
    """Write a report of a comparison, like `write_report`."""
    groups = comparison.groups
    choose = max if comparison.maximize else min
    best = choose(groups, key=lambda group: group.final.median) if len(groups) > 1 else None
    names = " and ".join(group.name for group in groups)
    return _write(
        "comparison.html",
        path,
        title=names if len(groups) < 4 else f"{len(groups)} studies compared",
        now=max(one.data.last_moment for group in groups for one in group.studies),
        comparison=comparison,
        plots=[draw(comparison) for draw in COMPARISON_FIGURES.values()],
        winners=["winner" if group is best else "" for group in groups],
        significant=["changed" if test.is_significant else "" for test in comparison.tests],
        alpha=ALPHA,
    )


def _members(data: StudyData) -> list[dict[str, Any]]:
    """Return a row of a table for each of the first members."""
    trials, found = data.trials, []
    steps, size = trials.end - trials.start, data.study.population_size
    done, spent = np.bincount(trials.member, minlength=size), np.bincount(trials.member, steps, size)
    last = dict(zip(trials.member.tolist(), trials.id.tolist(), strict=True))
    states = {member.index: member.state.value for member in data.members}
    ids = sorted({its[index] for index in range(size)[:ROWS] for its in (last, trials.newest) if index in its})
    known = dict(zip(ids, trials.read(ids), strict=True))
    for index in range(size)[:ROWS]:
        newest, completed = known.get(trials.newest.get(index, 0)), known.get(last.get(index, 0))
        decision = describe(newest.reason) if newest else ""
        if newest and newest.state in (JobState.FAILED, JobState.CANCELLED):
            decision += f" ({formatting.outcome(newest, data.aim.name)})"
        row = {
            "index": index,
            "state": states.get(index, ""),
            "trials": int(done[index]),
            "spent": int(spent[index]),
            "last": completed and completed.fitness,
            "best": float(trials.fitness[data.elites[index]]) if index in data.elites else None,
            "is_odd": completed is not None and finite_fitness(completed) is None,
            "decision": decision,
        }
        found.append(row)
    return found


def _suites(data: EvaluationData) -> dict[str, Any]:
    return {
        "evaluation": data,
        "evaluation_plots": [draw(data) for draw in EVALUATION_FIGURES.values()],
        "warnings": [event for event in data.events if event.kind in WARNINGS][-ROWS:][::-1],
        "causes": causes(cell for cell in data.cells if cell.replicate == 0),
    }


def _drawn(figure: style.Figure) -> dict[str, Any]:
    """Return a figure of a page: its title and subtitle become a heading."""
    from markupsafe import Markup

    tables = style.tables(figure)
    title, subtitle = style.take_heading(figure)
    heading = {"title": title, "subtitle": subtitle, "tables": tables}
    # In a script element only "<" could end it.
    return {**heading, "height": figure.layout.height, "json": Markup(figure.to_json().replace("<", "\\u003c"))}


def templates_of(package: str) -> "jinja2.Environment":
    """Return the templates of a package; they escape everything, and fail where a name is missing."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _write(template: str, path: str | os.PathLike[str], **context: Any) -> Path:
    """Write a page completely or not at all; folders on the way are created."""
    environment = templates_of("phyla.report")
    environment.globals.update(ROWS=ROWS, numbers=count(), plotly=b64encode(PLOTLY.read_bytes()).decode())
    environment.filters.update(
        {one.__name__: one for one in FILTERS}, drawn=_drawn, heard=formatting.text, next=next, shown=shown
    )
    environment.filters["moment"] = lambda seconds, form: formatting.moment(seconds).strftime(form)
    environment.filters["to_the_right"] = ">{}".format
    page = environment.get_template(template).render(context)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(page, encoding="utf-8", errors="backslashreplace")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target
