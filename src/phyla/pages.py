"""Pages as values: what is shown of a study, as text; a browser, a file, a terminal or a notebook draws them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final


@final
class Span(NamedTuple):
    """Text that leads somewhere, or looks different.

    A link is an address below the study, such as `trials/12`, of the dashboard (`/compare`), or of the same page
    (`?from=100`). What begins with `do/` is only for those who may change something.
    """

    text: str
    link: str = ""
    look: str = ""  # winner, changed, odd or code


Text: TypeAlias = str | Span
Row: TypeAlias = Sequence[Text]


def text_of(parts: Iterable[Text]) -> str:
    """Return parts of a line as one text."""
    return "".join(one if isinstance(one, str) else one.text for one in parts)


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
        name: of the section, in addresses.
        columns: headings; the first character of one may say how it is set, as in `phyla.terminal.table`.
        lead: how to read it.
        note: what it leaves out.
        empty: stands in its place if it has no rows; without that nothing does.
        links: to the rows before and after these.
        anchors: whether the first link of a row leads to what the row is about.
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

    @property
    def texts(self) -> list[list[str]]:
        """Its rows as text."""
        return [[text_of([cell]) for cell in row] for row in self.rows]

    @property
    def looks(self) -> list[str]:
        """What is special about each row; nothing about most."""
        return [next((one.look for one in row if isinstance(one, Span) and one.look), "") for row in self.rows]


@final
@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A section that is a figure, as Plotly's JSON, and the tables behind it; without one the lead says why."""

    name: str
    title: str
    lead: str
    figure: str | None = None
    tables: Sequence[Table] = ()


@final
class Later(NamedTuple):
    """A section that is made from the whole history, and so not at once."""

    name: str


Section: TypeAlias = Table | Drawing
Sections: TypeAlias = Mapping[str, Section]


@final
@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of a study, of a watched run, or of a comparison.

    Attributes:
        study: name of the study.
        key: its address below the study's; empty for the first one.
        title: its heading.
        state: of the study.
        kind: what it is a page of.
        messages: what a person should know first.
        score: the best value.
        lines: about the best one, and about all.
        facts: the numbers.
        actions: where to go from here, and what to do.
        sections: what follows.
    """

    study: str
    title: str
    key: str = ""
    state: str = ""
    kind: str = ""
    messages: Sequence[str] = ()
    score: str = ""
    lines: Sequence[Row] = ()
    facts: Sequence[Fact] = ()
    actions: Sequence[Span] = ()
    sections: Sequence[Table | Later] = ()
