"""Pages as HTML, from templates: for the dashboard, and as one self-contained file."""

import os
from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from phyla.formatting import moment, short
from phyla.pages import Page, Section, Table
from phyla.system.drafts import file_to_replace
from phyla.terminal import visible

if TYPE_CHECKING:
    import jinja2

PLOTLY = Path(__file__).parent / "plotly" / "plotly-cartesian.min.js.gz"
"""Plotly's script with only the traces that our figures use, a third of the size; see CONTRIBUTING.md."""
FILTERS = (moment, short)
"""Functions that templates use as filters."""


def write_pages(path: str | os.PathLike[str], pages: Iterable[Page], later: Iterable[Section], now: float) -> Path:
    """Write pages as one HTML file that works offline, with the sections that need the whole history.

    Links between the pages become anchors in the file. The file replaces an existing one atomically; missing
    parent folders are created.

    Raises:
        UsageError: the path is that of a directory, a device or a pipe.
    """
    target = file_to_replace(Path(path))
    pages, sections = [*pages], {section.name: section for section in later}
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
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return Path(path)


def _places(page: Page) -> set[str]:
    """Return the anchors of the rows of a page."""
    tables = [section for section in page.sections if isinstance(section, Table) and section.anchors]
    return {row[0][1] for table in tables for row in table.rows if not isinstance(row[0], str)}


def section_html(section: Section, href: Callable[[str], str | None]) -> str:
    """Return a section of a page as HTML."""
    return environment().get_template("section.html").render(one=section, href=href)


@cache
def environment(*packages: str) -> "jinja2.Environment":
    """Return the templates of these packages and ours; they escape all values, and an unknown name is an error."""
    import jinja2
    from markupsafe import Markup

    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package) for package in (*packages, "phyla.report")]),
        autoescape=True,
        # As on a terminal: a character that reverses the direction of text would turn around what follows it.
        finalize=lambda value: visible(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update({function.__name__: function for function in FILTERS})
    # Only "<" can end a script element.
    templates.filters["json_of"] = lambda text: Markup(text.replace("<", "\\u003c"))
    return templates
