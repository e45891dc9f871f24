"""What notebooks show of an object: a short table, and below it the main figure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from phyla.report import formatting

if TYPE_CHECKING:
    import pandas as pd

    from phyla.report.style import Figure

STYLE = 'style="text-align: left; vertical-align: top; white-space: pre-wrap"'


def summary(title: str, *tables: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return tables, of rows of text, as plain text and as HTML that says nothing else."""
    plain, page = [title], [f"<strong>{escape(title)}</strong>"]
    for rows in tables:
        plain += ["  ".join(row) for row in rows]
        cells = ("".join(f"<td {STYLE}>{escape(cell)}</td>" for cell in row) for row in rows)
        page.append(f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>")
    return {"text/plain": "\n".join(plain), "text/html": "".join(page)}


def display(told: Mapping[str, str] | None, figure: "Figure | None" = None) -> None:
    """Show a summary, if any, and below it a figure as Plotly's own data: its HTML may load a foreign script."""
    from IPython import display as ipython

    if told is not None:
        ipython.display(dict(told), raw=True)
    if figure is not None:
        name = formatting.text(figure.layout.title.text or "figure")
        text = {"text/plain": f"[{name}: a front end that knows Plotly shows it; see also write_report()]"}
        drawn: Any = json.loads(figure.to_json() or "{}")
        ipython.display({**text, "application/vnd.plotly.v1+json": drawn}, raw=True)


def dataframe(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a data frame; an ImportError says how to install pandas."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError('dataframe() needs pandas: pip install "phyla[pandas]"') from error
    return pd.DataFrame(list(rows))
