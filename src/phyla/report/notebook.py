"""What notebooks show of an object: a short table, and below it the main figure."""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phyla.report import words
from phyla.report.style import Figure, Table, tables

if TYPE_CHECKING:
    import pandas as pd

STYLE = "text-align: {}; vertical-align: top; white-space: pre-wrap"


def page(title: str, *shown: Table) -> str:
    """Return tables as HTML in which all text is as it is."""
    return f"<strong>{html.escape(title)}</strong>{''.join(map(_table, shown))}"


def _table(one: Table) -> str:
    right = [column.startswith(">") for column in one.columns]
    heads = [column.removeprefix(">") for column in one.columns]
    told = f"<caption>{html.escape(one.title)}</caption>" if one.title else ""
    told += f"<thead>{_row('th', heads, right)}</thead>" if any(heads) else ""
    return f"<table>{told}<tbody>{''.join(_row('td', row, right) for row in one.rows)}</tbody></table>"


def _row(kind: str, cells: Sequence[str], right: Sequence[bool]) -> str:
    sides = ("right" if each else "left" for each in right)
    told = "".join(
        f'<{kind} style="{STYLE.format(side)}">{html.escape(cell)}</{kind}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{told}</tr>"


def text(title: str, *shown: Table) -> str:
    """Return tables as plain text, for a terminal."""
    lines = [title]
    for one in shown:
        lines += [one.title] if one.title else []
        rows = [[column.removeprefix(">") for column in one.columns], *one.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        told = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        lines += [line for line in told if line]
    return "\n".join(lines)


def summary(title: str, *shown: Table) -> dict[str, Any]:
    """Return tables as a bundle of MIME types."""
    return {"text/html": page(title, *shown), "text/plain": text(title, *shown)}


def drawn(figure: Figure) -> dict[str, Any]:
    """Return a figure as a bundle of MIME types; where Plotly's is not known, its tables are shown.

    Nothing of it loads a script. (Plotly's own HTML may load one from another host.)
    """
    name = words.text(figure.layout.title.text or "figure")
    shown = tables(figure)
    return {
        "application/vnd.plotly.v1+json": json.loads(figure.to_json() or "{}"),
        "text/html": f"<details><summary>{html.escape(name)}</summary>{''.join(map(_table, shown))}</details>",
        "text/plain": f"[{name}]",
    }


def display(told: Mapping[str, Any], figure: "Figure | None" = None) -> None:
    """Show a summary, and a figure below it; called by IPython, which is therefore there."""
    from IPython import display as ipython

    for bundle in [told] if figure is None else [told, drawn(figure)]:
        ipython.display(dict(bundle), raw=True)


def dataframe(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a data frame.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError('dataframe() needs pandas: pip install "phyla[pandas]"') from error
    return pd.DataFrame(list(rows))
