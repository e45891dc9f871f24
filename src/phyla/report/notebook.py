"""The display of an object in a notebook: a short table, then the main figure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phyla.report import formatting
from phyla.report.formatting import escape
from phyla.terminal import visible

if TYPE_CHECKING:
    import pandas as pd

    from phyla.report.style import Figure

STYLE = 'style="text-align: left; vertical-align: top; white-space: pre-wrap"'


def summary(title: str, *tables: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return tables, given as rows of text, as plain text and as equivalent HTML."""
    plain, page = [visible(title)], [f"<strong>{escape(title)}</strong>"]
    for rows in tables:
        plain += [visible("  ".join(row)) for row in rows]
        cells = ("".join(f"<td {STYLE}>{escape(cell)}</td>" for cell in row) for row in rows)
        page.append(f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>")
    return {"text/plain": "\n".join(plain), "text/html": "".join(page)}


def display(texts: Mapping[str, str] | None, figure: "Figure | None" = None) -> None:
    """Show a summary, then a figure as Plotly's JSON, because Plotly's HTML may load an external script."""
    from IPython import display as ipython

    if texts is not None:
        ipython.display(dict(texts), raw=True)
    if figure is not None:
        name = formatting.text(figure.layout.title.text or "figure")
        text = {"text/plain": f"[{name}: use a front end that supports Plotly, or write_report()]"}
        drawn: Any = json.loads(figure.to_json() or "{}")
        ipython.display({**text, "application/vnd.plotly.v1+json": drawn}, raw=True)


def dataframe(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a data frame; raise an ImportError with the install command if pandas is missing."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError('dataframe() needs pandas: pip install "phyla[pandas]"') from error
    return pd.DataFrame(list(rows))
