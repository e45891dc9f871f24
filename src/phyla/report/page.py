"""What every page is made of: one HTML file that needs nothing else."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape, unescape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, final

from phyla.report.words import moment

if TYPE_CHECKING:
    import plotly.graph_objects as go

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


def write_page(target: Path, page: str) -> Path:
    """Write a page completely or not at all; folders on the way are created."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(page, encoding="utf-8", errors="backslashreplace")  # A path may be no text.
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def document(title: str, sections: Iterable[str], now: float) -> str:
    """Return a page of sections."""
    from plotly.offline import get_plotlyjs

    css = files("phyla.report").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(sections)
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
<footer>phyla, {escape(f"{moment(now):%Y-%m-%d %H:%M} UTC")}</footer>
<script>{DRAW}</script>
</body>
</html>
"""


def section(title: str, body: str, lead: str = "") -> str:
    """Return a section; everything in it is HTML."""
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section>\n<h2>{title}</h2>\n{lead}\n{body}\n</section>"


def figure_section(name: str, figure: "go.Figure") -> str:
    """Return a figure as a section: its title becomes a heading, so that it is not said twice."""
    title = unescape(figure.layout.title.text or "")
    lead = unescape(figure.layout.title.subtitle.text or "")
    figure.layout.title = None
    figure.layout.margin.t = 44
    figure.layout.height -= 60
    text = str(figure.to_json()).replace("<", "\\u003c")
    look = f'role="img" aria-label="{escape(title)}" style="height:{figure.layout.height}px"'
    body = (
        f'<div class="figure"><div data-figure="{escape(name)}" {look}></div></div>\n'
        f'<script type="application/json" id="{escape(name)}">{text}</script>'
    )
    return section(escape(title), body, escape(lead))


def table(head: Sequence[str], classes: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table."""
    top = "".join(f'<th class="{kind}">{escape(name)}</th>' for name, kind in zip(head, classes, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f'<td class="{kind}">{escape(text)}</td>' for text, kind in row) + "</tr>" for row in rows
    )
    return f'<div class="table"><table><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
