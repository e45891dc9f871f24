"""The report: one HTML file that needs nothing else."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape, unescape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, final

from phyla.population import describe
from phyla.records import Json, MemberState, TrialState
from phyla.report.data import StudyData, finite_fitness
from phyla.report.fitness import fitness_figure
from phyla.report.schedules import schedules_figure
from phyla.report.timeline import timeline_figure
from phyla.report.tree import lineage_figure
from phyla.report.words import counted, duration, fate, moment, number, score, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

FIGURES: tuple[Callable[[StudyData], "go.Figure"], ...] = (
    fitness_figure,
    schedules_figure,
    lineage_figure,
    timeline_figure,
)

ROWS = 1_000
"""Rows that a table shows."""

# Scripts are inline and nothing may be loaded; 'unsafe-eval' is what WebGL figures compile with.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)

DRAW = """
for (const holder of document.querySelectorAll("[data-figure]")) {
  const figure = JSON.parse(document.getElementById(holder.dataset.figure).textContent);
  Plotly.newPlot(holder, figure.data, figure.layout, {
    responsive: true, displaylogo: false, displayModeBar: "hover",
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  });
}
"""


@final
@dataclass(frozen=True, slots=True)
class Section:
    """Something to add at the end of a report.

    Attributes:
        title: its heading, as plain text.
        html: its body. It is put in as it is: escape what users wrote.
    """

    title: str
    html: str


Cell: TypeAlias = tuple[str, str]
"""Text of a table's cell and its class."""


def write_report(
    data: StudyData,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    extra_sections: Iterable[Section] = (),
) -> Path:
    """Write a report of a study as one HTML file that works offline.

    The file appears complete or not at all; folders on the way are created.

    Args:
        data: the study.
        path: the file; one that exists is replaced.
        title: heading of the report; the default is the study's name.
        extra_sections: what to put at its end.

    Returns:
        The file.

    Raises:
        OSError: the file cannot be written.
    """
    target = Path(path)
    page = _page(data, title or data.study.name, extra_sections)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(page, encoding="utf-8")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _page(data: StudyData, title: str, extra: Iterable[Section]) -> str:
    from plotly.offline import get_plotlyjs

    drawn = [_figure(index, draw(data)) for index, draw in enumerate(FIGURES)]
    css = files("phyla.report").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(
        (
            _header(data, title),
            _winner(data),
            drawn[0],
            _members(data),
            *drawn[1:],
            *(_section(escape(section.title), section.html) for section in extra),
        )
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">
<title>{escape(title)}</title>
<style>
{css}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<main>
<noscript><p class="message">The figures of this report need JavaScript; its tables do not.</p></noscript>
{body}
</main>
<footer>phyla, {escape(f"{moment(data.last_moment):%Y-%m-%d %H:%M} UTC")}</footer>
<script>{DRAW}</script>
</body>
</html>
"""


def _section(title: str, body: str, lead: str = "") -> str:
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section>\n<h2>{title}</h2>\n{lead}\n{body}\n</section>"


def _figure(index: int, figure: "go.Figure") -> str:
    """Return a figure as a section: its title becomes a heading, so that it is not said twice."""
    title = unescape(figure.layout.title.text or "")
    lead = unescape(figure.layout.title.subtitle.text or "")
    figure.layout.title = None
    figure.layout.margin.t = 44
    figure.layout.height -= 60
    text = str(figure.to_json()).replace("<", "\\u003c")
    look = f'role="img" aria-label="{escape(title)}" style="height:{figure.layout.height}px"'
    body = (
        f'<div class="figure"><div data-figure="figure-{index}" {look}></div></div>\n'
        f'<script type="application/json" id="figure-{index}">{text}</script>'
    )
    return _section(escape(title), body, escape(lead))


def _header(data: StudyData, title: str) -> str:
    study, counts = data.study, data.counts
    failed = counts[TrialState.FAILED]
    unfinished = counts[TrialState.RUNNING] + counts[TrialState.PENDING]
    facts = [
        ("members", f"{study.population_size:,}", ""),
        (
            "trials completed",
            f"{counts[TrialState.COMPLETED]:,}",
            f"{unfinished:,} unfinished" if unfinished else "",
        ),
        ("trials failed", f"{failed:,}", ""),
        ("total steps", f"{data.total_steps:,}", ""),
        ("wall time", duration(data.wall_seconds), f"since {moment(study.created_at):%Y-%m-%d %H:%M} UTC"),
    ]
    aim = f"{'maximise' if data.maximize else 'minimise'} {data.metric}"
    best = data.best
    if best is None:
        top = '<p class="score none">no finite fitness yet</p>'
    else:
        top = (
            f'<p class="score">{escape(score(best.fitness))}</p>'
            f"<p>best {escape(data.metric)}, by trial {best.id} of member {best.member} "
            f"at step {best.reached_step or 0:,}</p>{_checkpoint(data, best.checkpoint)}"
        )
    message = f'<p class="message">{escape(study.message)}</p>' if study.message else ""
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd class=small>{escape(more)}</dd></div>"
        for name, value, more in facts
    )
    return f"""<header>
<p class="kind">population based training, {escape(aim)}</p>
<h1>{escape(title)} <span class="state {escape(study.state.value)}">{escape(study.state.value)}</span></h1>
{message}
<div class="summary"><div class="best">{top}</div><dl>{cells}</dl></div>
</header>"""


def _checkpoint(data: StudyData, name: str | None) -> str:
    if name is None:
        return ""
    path = data.checkpoint_path(name)
    where = f"<code>{escape(path)}</code>" if path else f"<code>{escape(name)}</code>"
    return f'<p class="path">checkpoint {where}</p>'


def _winner(data: StudyData) -> str:
    if data.schedule is None:
        return ""
    names = data.schedule.names()
    changes = data.schedule.changes()
    rows: list[list[Cell]] = []
    before: dict[str, Json] = {}
    for segment in changes[:ROWS]:
        row = [(f"{segment.start_step:,}", "n"), (f"{segment.end_step:,}", "n")]
        for name in names:
            shown = number(segment.params[name]) if name in segment.params else "-"
            changed = bool(before) and before.get(name) != segment.params.get(name)
            row.append((short(shown, 60), "n changed" if changed else "n"))
        rows.append([*row, (f"{segment.member}", "n"), (f"{segment.trial}", "n")])
        before = dict(segment.params)
    head = ["from step", "to step", *names, "member", "trial"]
    times = f"changed {counted(len(changes) - 1, 'time')}" if len(changes) > 1 else "never changed"
    lead = (
        f"Hyperparameters that trained the winner's weights, {data.schedule.steps:,} steps in all; "
        f"they {times}. Changed values are set in bold."
    )
    return _section("The winner's schedule", _table(head, ["n"] * len(head), rows), escape(lead))


def _members(data: StudyData) -> str:
    states = {member.index: member for member in data.members}
    elites = data.lineage.elites()
    rows: list[list[Cell]] = []
    for index, trials in list(data.by_member.items())[:ROWS]:
        member = states.get(index)
        done = [trial for trial in trials if trial.state is TrialState.COMPLETED]
        last = trials[-1] if trials else None
        elite = elites.get(index)
        state = member.state.value if member else ""
        if member and member.state is MemberState.WAITING and member.wait_reason:
            state += f" for {member.wait_reason}"
        spent = max((data.spent[trial.id].end or 0 for trial in done), default=0)
        finite = bool(done) and finite_fitness(done[-1]) is not None
        decision = describe(last.reason) if last else ""
        if last and last.state is TrialState.FAILED:
            decision += f" ({fate(last, data.metric)})"
        rows.append(
            [
                (str(index), "n winner" if data.best and data.best.member == index else "n"),
                (state, ""),
                (f"{len(done):,}", "n"),
                (f"{spent:,}", "n"),
                (score(done[-1].fitness) if done else "-", "n" if finite or not done else "n odd"),
                (score(elite.fitness) if elite else "-", "n"),
                (short(decision, 180), "words"),
            ]
        )
    head = [
        "member",
        "state",
        "trials",
        "steps spent",
        f"last {data.metric}",
        f"best {data.metric}",
        "last decision",
    ]
    return _section("Members", _table(head, ["n", "", "n", "n", "n", "n", ""], rows))


def _table(head: Sequence[str], classes: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    top = "".join(f'<th class="{kind}">{escape(name)}</th>' for name, kind in zip(head, classes, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f'<td class="{kind}">{escape(text)}</td>' for text, kind in row) + "</tr>" for row in rows
    )
    return f'<div class="table"><table><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
