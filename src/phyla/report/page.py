"""Reports: one HTML file each, made from the templates, that needs nothing else."""

import os
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla.evaluation import CellStatus, causes
from phyla.records import JobState, TrialRecord, shown
from phyla.report import words
from phyla.report.comparison import ALPHA, StudyComparison
from phyla.report.data import StudyData, finite_fitness
from phyla.report.evaluation_data import EvaluationData, measured, step_of
from phyla.report.figures.comparison import curves_figure, finals_figure, sensitivity_figure, time_figure
from phyla.report.figures.fitness import fitness_figure
from phyla.report.figures.front import front_figure
from phyla.report.figures.lineage import lineage_figure
from phyla.report.figures.schedules import schedules_figure
from phyla.report.figures.suites import aggregates_figure, lag_figure, matrix_figure
from phyla.report.figures.timeline import timeline_figure
from phyla.strategies import describe

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from markupsafe import Markup

STUDY_FIGURES = (fitness_figure, schedules_figure, lineage_figure, timeline_figure)
"""What the report of a study shows, the first one above its tables."""
ROWS = 1_000
"""Rows that a table shows."""
WARNINGS = ("regression", "changed-source", "rewound")


@final
@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure of a page: its title and subtitle become a heading."""

    name: str
    title: str
    subtitle: str
    height: int
    json: "Markup"


def write_report(
    data: StudyData, path: str | os.PathLike[str], *, evaluation: EvaluationData | None = None
) -> Path:
    """Write a report of a study, and of the evaluation of its checkpoints, as one HTML file that works offline.

    The file replaces an existing one, and appears complete or not at all; folders on the way are created.

    Raises:
        OSError: the file cannot be written.
    """
    drawn = [_drawn(f"figure-{index}", draw(data)) for index, draw in enumerate(STUDY_FIGURES)]
    if data.time.timed:
        drawn.append(_drawn("times", time_figure({data.study.name: data.time}, data.time.words().capitalize())))
    known = [t for t in data.front if t.checkpoint is not None and data.checkpoint_path(t.checkpoint) is not None]
    return _write(
        "study.html",
        path,
        title=data.study.name,
        now=data.last_moment,
        data=data,
        figures=drawn,
        front=_drawn("figure-front", front_figure(data)) if data.aim.tradeoffs else None,
        kept=data.front if data.checkpoint_paths is None else known,
        members=_members(data),
        evaluation=evaluation,
        **({} if evaluation is None else _suites(evaluation)),
    )


def write_evaluation_report(data: EvaluationData, path: str | os.PathLike[str]) -> Path:
    """Write a report of the evaluation of checkpoints, like `write_report`.

    Raises:
        OSError: the file cannot be written.
    """
    suites = [(one, data.suite(one.group.suite)) for one in data.values if one.best and one.group.replicate == 0]
    best = [(one, suite, found) for one, suite in suites if (found := one.values.get(suite.objective or ""))]
    return _write(
        "evaluation.html",
        path,
        title=data.run.name,
        now=data.now,
        evaluation=data,
        best=best,
        done=data.counts.get(CellStatus.DONE, 0) + data.counts.get(CellStatus.REUSED, 0),
        lacking={status: count for status, count in data.counts.items() if not CellStatus(status).has_value},
        **_suites(data),
    )


def write_comparison_report(comparison: StudyComparison, path: str | os.PathLike[str]) -> Path:
    """Write a report of a comparison, like `write_report`.

    Raises:
        OSError: the file cannot be written.
    """
    groups = comparison.groups
    choose = max if comparison.maximize else min
    times = time_figure(
        {group.name: group.time for group in groups}, "Seconds of all workers and replicates, failed attempts too"
    )
    drawn = {
        "curves": curves_figure(comparison),
        "finals": finals_figure(comparison),
        "sensitivity": sensitivity_figure(comparison),
        "times": times,
    }
    names = " and ".join(group.name for group in groups)
    return _write(
        "comparison.html",
        path,
        title=names if len(groups) < 4 else f"{len(groups)} studies compared",
        now=max(one.data.last_moment for group in groups for one in group.studies),
        comparison=comparison,
        figures={name: _drawn(name, one) for name, one in drawn.items()},
        best=choose(groups, key=lambda group: group.final.median) if len(groups) > 1 else None,
        alpha=ALPHA,
    )


def _members(data: StudyData) -> list[dict[str, Any]]:
    states = {member.index: member.state.value for member in data.members}
    elites = data.lineage.elites()
    rows = []
    for index, trials in list(data.by_member.items())[:ROWS]:
        done = [trial for trial in trials if trial.state is JobState.COMPLETED]
        rows.append(
            {
                "index": index,
                "state": states.get(index, ""),
                "done": done,
                "spent": max((data.spent[trial.id].end or 0 for trial in done), default=0),
                "is_odd": bool(done) and finite_fitness(done[-1]) is None,
                "elite": elites.get(index),
                "decision": _decision(trials[-1], data.aim.name) if trials else "",
            }
        )
    return rows


def _decision(trial: TrialRecord, metric: str) -> str:
    ended_badly = trial.state in (JobState.FAILED, JobState.CANCELLED)
    return describe(trial.reason) + (f" ({words.outcome(trial, metric)})" if ended_badly else "")


def _suites(data: EvaluationData) -> dict[str, Any]:
    names = dict.fromkeys([suite.name for suite in data.suites] + [cell.suite for cell in data.cells])
    drawn = []
    for index, suite in enumerate(names):
        drawn.append(_drawn(f"aggregates-{index}", aggregates_figure(data, suite)))
        drawn.append(_drawn(f"matrix-{index}", matrix_figure(data, suite)))
    return {
        "suite_figures": [*drawn, _drawn("lag", lag_figure(data))],
        "warnings": [event for event in data.events if event.kind in WARNINGS][-ROWS:][::-1],
        "causes": causes(cell for cell in data.cells if cell.replicate == 0),
    }


def _drawn(name: str, figure: "go.Figure") -> Drawn:
    from markupsafe import Markup

    title = unescape(figure.layout.title.text or "")
    subtitle = unescape(figure.layout.title.subtitle.text or "")
    figure.layout.title = None
    figure.layout.margin.t = 44
    figure.layout.height -= 60
    # In a script element only "<" could end it.
    text = Markup(str(figure.to_json()).replace("<", "\\u003c"))
    return Drawn(name, title, subtitle, figure.layout.height, text)


def _write(template: str, path: str | os.PathLike[str], **context: Any) -> Path:
    """Write a page completely or not at all; folders on the way are created."""
    import jinja2
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("phyla.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(ROWS=ROWS, measured=measured, step_of=step_of, plotly=Markup(get_plotlyjs()))
    environment.filters.update(
        add_suffix=str.__add__,
        counted=words.counted,
        duration=words.duration,
        moment=lambda seconds, form: words.moment(seconds).strftime(form),
        number=words.number,
        p_words=words.p_words,
        remove_prefix=str.removeprefix,
        remove_suffix=str.removesuffix,
        score=words.score,
        short=words.short,
        shown=shown,
        step_of=step_of,
    )
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
