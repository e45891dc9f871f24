"""Pages as HTML, from the templates: for the dashboard, and as one file that needs nothing else."""

import os
from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from phyla.formatting import duration, format_count, format_estimate, moment, number, params, score, short, size
from phyla.pages import Page, Section, Table
from phyla.records import escape_name

if TYPE_CHECKING:
    import jinja2

PLOTLY = Path(__file__).parent / "plotly" / "plotly-cartesian.min.js.gz"
"""Plotly's script with the traces that our figures have: a third of the whole one. CONTRIBUTING.md updates it."""
FILTERS = (format_count, duration, format_estimate, moment, number, params, score, short, escape_name, size)
"""Functions that templates use as filters."""


def write_pages(path: str | os.PathLike[str], pages: Iterable[Page], later: Iterable[Section], now: float) -> Path:
    """Write pages as one HTML file that works offline, with those sections that are made from the whole history.

    Links between the pages lead to places in the file. It replaces an existing one, and appears complete or not at
    all; folders on the way are created.
    """
    pages, sections = [*pages], {one.name: one for one in later}
    places = {page.key for page in pages if page.key} | {place for page in pages for place in _places(page)}
    file = environment().get_template("file.html")
    text = file.render(
        pages=pages,
        later=sections.get,
        source=lambda name: None,
        href=lambda link: f"#{link}" if link in places else None,
        now=now,
        plotly=b64encode(PLOTLY.read_bytes()).decode(),
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _places(page: Page) -> set[str]:
    """Return what rows of a page are about."""
    tables = [one for one in page.sections if isinstance(one, Table) and one.anchors]
    return {row[0][1] for table in tables for row in table.rows if not isinstance(row[0], str)}


def section_html(section: Section, href: Callable[[str], str | None]) -> str:
    """Return a section of a page as HTML."""
    return environment().get_template("section.html").render(one=section, href=href)


@cache
def environment(*packages: str) -> "jinja2.Environment":
    """Return the templates, also those of other packages; they escape everything, and fail without a name."""
    import jinja2
    from markupsafe import Markup

    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(one) for one in (*packages, "phyla.report")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update({one.__name__: one for one in FILTERS})
    # In a script element only "<" could end it.
    made.filters["json_of"] = lambda text: Markup(text.replace("<", "\\u003c"))
    return made
