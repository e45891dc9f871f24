"""Output besides lines: tables, strict JSON for programs, files written atomically."""

import csv
import io
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from phyla.errors import UsageError
from phyla.pages import Page, Table, text_of
from phyla.records import strict
from phyla.system.drafts import file_to_replace
from phyla.terminal import LOOKS, UNCUT, console, show, table

WIDE = 160
"""Columns that tables side by side may fill in a file or a pipe."""


def page_width() -> int:
    """Return how many columns tables side by side may fill."""
    width = console().width
    return WIDE if width == UNCUT else width


def print_table(
    headings: Sequence[str],
    rows: Iterable[Iterable[object]],
    styles: Iterable[str | None] = (),
    *,
    gap: bool = False,
) -> None:
    """Print a table, with an empty line before it if `gap`; print nothing without rows."""
    grid = table(headings, rows, styles)
    if grid.rows:
        if gap:
            show()
        console().print(grid)


def print_page(page: Page) -> None:
    """Print a page without the figures of its history, which only a browser shows."""
    if page.state:
        show("; ".join(filter(None, (f"{page.title}: {page.state}", page.kind))))
    for line in (*page.messages, *map(text_of, page.lines)):
        show(line)
    for fact in page.facts:
        show(f"{fact.name}: {fact.words}")
    tables = [section for section in page.sections if isinstance(section, Table) and section.rows]
    for at, section in enumerate(tables):
        show(f"\n{section.title}" if at or page.state else section.title)
        print_section(section)


def print_section(section: Table) -> None:
    """Print a table of a page, in parts where it is too wide, without the columns of links."""
    texts, looks = section.texts, [LOOKS.get(look) for look in section.looks]
    for at, part in enumerate(_parts(section, texts)):
        headings = [section.columns[column] for column in part]
        print_table(headings, ([row[column] for column in part] for row in texts), looks, gap=at > 0)
    if section.note:
        show(section.note)


def _parts(section: Table, texts: Sequence[Sequence[str]]) -> list[list[int]]:
    """Return the columns of each part of a table, of which the first may be repeated."""
    columns = [at for at, heading in enumerate(section.columns) if heading]
    if not section.fixed:
        return [columns]
    widths = {at: 3 + max(len(section.columns[at]), *(len(row[at]) for row in texts)) for at in columns}
    fixed, rest = columns[: section.fixed], columns[section.fixed :]
    room = page_width() - min(sum(widths[at] for at in fixed), page_width() // 2)
    parts: list[list[int]] = [[]]
    for at in rest:
        if parts[-1] and sum(widths[other] for other in (*parts[-1], at)) > room:
            parts.append([])
        parts[-1].append(at)
    return [[*fixed, *part] for part in parts]


def pick(record: object, *names: str, **renamed: str) -> dict[str, Any]:
    """Return attributes of a record by name, or by a new name; an empty dict for None."""
    chosen = {**{name: name for name in names}, **renamed}
    return {name: getattr(record, attribute) for name, attribute in chosen.items()} if record is not None else {}


def to_json(value: Any, indent: int | None = 2) -> str:
    """Return a value as strict JSON: records as objects; paths, nan and infinities as text."""
    return json.dumps(strict(_plain(value)), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as strict JSON."""
    print(to_json(value, indent), flush=True)


def csv_lines(rows: Iterable[Mapping[str, Any]], names: Iterable[str] | None = None) -> Iterator[str]:
    """Yield a heading and rows as lines of CSV; objects and lists are JSON.

    By default, the columns are those of the first row.
    """
    text = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(text, list(names or row), lineterminator="\n")
            writer.writeheader()
        cells = {name: json.dumps(cell) for name, cell in row.items() if isinstance(cell, (Mapping, list, tuple))}
        writer.writerow({**row, **cells})
        yield text.getvalue()
        text.seek(0)
        text.truncate()


def write_file(path: Path, write: Callable[[Path], object], *, replace: bool) -> None:
    """Let a function write a file atomically; keep an existing file unless `replace`."""
    file = file_to_replace(path)
    if file.exists() and not replace:
        raise UsageError(f"{path} exists; delete it first, or choose another name")
    try:
        with tempfile.TemporaryDirectory(prefix=".phyla-", dir=file.parent) as folder:
            written = Path(folder, file.name)
            write(written)
            written.replace(file)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
