"""The data that a figure shows: its lines and points by name, its answer, its notes."""

from typing import Any

from phyla.report import style


def traces(figure: Any, name: str, panel: str = "") -> list[Any]:
    """Return the traces whose name, and the heading of whose panel, contain these."""
    return [trace for trace in figure.data if name in (trace.name or "") and panel in (trace.meta or "")]


def trace(figure: Any, name: str, panel: str = "") -> Any:
    """Return the only such trace."""
    (only,) = traces(figure, name, panel)
    return only


def points(figure: Any, name: str, panel: str = "") -> dict[Any, Any]:
    """Return y by x of the only such trace."""
    drawn = trace(figure, name, panel)
    return dict(zip(drawn.x, drawn.y, strict=True))


def bands(figure: Any) -> list[Any]:
    """Return the bands of all lines."""
    return [trace for trace in figure.data if trace.fill == "toself"]


def rows(axis: Any) -> list[str]:
    """Return the names along an axis."""
    return [label.strip() for label in axis.ticktext]


def segments(xs: Any) -> list[list[float]]:
    """Split a line at its gaps."""
    parts: list[list[float]] = [[]]
    for x in xs:
        if x is None:
            parts.append([])
        else:
            parts[-1].append(x)
    return [part for part in parts if part]


def answer(figure: Any) -> str:
    """Return the subtitle."""
    return str(figure.layout.title.subtitle.text)


def notes(figure: Any) -> str:
    """Return the notes below a figure."""
    return "\n".join(note.text for note in figure.layout.annotations if note.name == style.NOTES)
