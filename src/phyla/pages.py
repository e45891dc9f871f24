"""Pages as values: the content of a study's pages, for browsers, files, terminals and notebooks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final


@final
class Span(NamedTuple):
    """Text with a link or a look.

    A link is an address below the study, such as `trials/12`, of the dashboard (`/compare`), or of the same page
    (`?from=100`). Links that begin with `do/` are only for operators.
    """

    text: str
    link: str = ""
    look: str = ""  # winner, changed, odd, state or code
    svg: str = ""  # replaces the text where SVG can be shown


Text: TypeAlias = str | Span
Row: TypeAlias = Sequence[Text]


def text_of(parts: Iterable[Text]) -> str:
    """Join the parts of a line into one text."""
    return "".join(part if isinstance(part, str) else part.text for part in parts)


@final
class Fact(NamedTuple):
    """A name, a value and a remark."""

    name: str
    value: str
    more: str = ""

    @property
    def words(self) -> str:
        """The value with the remark."""
        return ", ".join(filter(None, (self.value, self.more)))


@final
@dataclass(frozen=True, kw_only=True)
class Table:
    """A section that is a table.

    Attributes:
        name: name of the section in addresses.
        columns: headings; the first character may set the layout, as in `phyla.terminal.table`.
        lead: explains how to read it.
        note: describes what it omits.
        empty: replaces a table without rows; if it is empty too, the section is hidden.
        links: links to the previous and next rows.
        anchors: whether the first link of each row is its anchor.
        fixed: where a display is too narrow, the table may be split; each part then begins with this many columns.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    lead: str = ""
    note: str = ""
    empty: str = ""
    links: Sequence[Span] = ()
    anchors: bool = False
    fixed: int = 0

    @property
    def texts(self) -> list[list[str]]:
        """Its rows as text."""
        return [[text_of([cell]) for cell in row] for row in self.rows]

    @property
    def looks(self) -> list[str]:
        """The look of each row; empty for most."""
        return [next((cell.look for cell in row if isinstance(cell, Span) and cell.look), "") for row in self.rows]


@final
@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A section with a figure, as Plotly's JSON, and its tables; without a figure the lead has the reason."""

    name: str
    title: str
    lead: str
    figure: str | None = None
    tables: Sequence[Table] = ()


@final
class Passage(NamedTuple):
    """A section of preformatted text, such as a traceback."""

    name: str
    title: str
    lead: str
    text: str


@final
class Plot(NamedTuple):
    """A part of a picture: a line of text and an SVG, which has nothing from users that is not escaped."""

    label: str
    svg: str


@final
class Picture(NamedTuple):
    """A figure that opens a page, and needs no script; without plots the lead has the reason."""

    name: str
    title: str
    lead: str
    keys: Sequence[tuple[str, str]] = ()  # looks of lines, and what they mean
    plots: Sequence[Plot] = ()  # from top to bottom
    more: str = ""  # the section with the interactive figure


@final
class Later(NamedTuple):
    """A section that needs the whole history, and is drawn later."""

    name: str


Section: TypeAlias = Table | Drawing | Passage
Sections: TypeAlias = Mapping[str, Section]


@final
@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of a study, of a watched run, or of a comparison.

    Attributes:
        study: name of the study; empty of a page of several.
        key: its address below the study's; empty for the main page.
        title: its heading.
        state: the state of the study.
        kind: the subject of the page.
        messages: important messages; the first is shown above the pictures.
        pictures: what opens the page.
        score: the best value.
        lines: the best trial, and a summary.
        facts: the main numbers.
        actions: links to other pages and actions.
        sections: the content.
    """

    study: str
    title: str
    key: str = ""
    state: str = ""
    kind: str = ""
    messages: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    score: str = ""
    lines: Sequence[Row] = ()
    facts: Sequence[Fact] = ()
    actions: Sequence[Span] = ()
    sections: Sequence[Table | Passage | Later] = ()
