"""Figures of pages, drawn in a thread and cached until the store changes."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool

from phyla.errors import StudyNotFound
from phyla.pages import Section
from phyla.report.page import section_html
from phyla.report.sections import comparison_sections, study_sections
from phyla.report.style import empty
from phyla.service.changes import News
from phyla.store import Store
from phyla.study.places import Places
from phyla.study.results.compare import compare
from phyla.study.results.evaluations import ROWS, Evaluations
from phyla.study.results.pages.evaluations import evaluation_history
from phyla.study.results.results import Results

KEPT = 20
"""Cached studies and comparisons."""
SHARE = 80
"""Redrawing the same figures takes at most 1 / SHARE of the time."""
Names = tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class _Drawn:
    """Sections of a study as HTML, by name: the change they show, when they were drawn, and how long it took."""

    figures: Mapping[str, str]
    change: int
    at: float
    took_s: float


@final
class Drawings:
    """Redraws figures when the store has changed, at a limited rate."""

    def __init__(self, store: Store, places: Places, news: News) -> None:
        self._store, self._places, self._news = store, places, news
        self._drawn: OrderedDict[Names, _Drawn] = OrderedDict()
        self._tasks: dict[Names, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(1)

    async def get(self, studies: Names, figure: str) -> tuple[str, str]:
        """Return a figure of a study, or of several compared studies, as HTML, and its ETag.

        A cached figure is returned at once, and redrawn in the background if the store has changed.
        """
        drawing, now = self._drawn.get(studies), time.monotonic()
        due = drawing is None or (
            drawing.change != self._news.change and now - drawing.at > SHARE * drawing.took_s
        )
        if due and studies not in self._tasks:
            task = self._tasks[studies] = asyncio.create_task(self._draw(studies))
            task.add_done_callback(lambda _: self._tasks.pop(studies, None))
        if drawing is None:
            await asyncio.shield(self._tasks[studies])
            drawing = self._drawn[studies]
        if figure not in drawing.figures:
            raise StudyNotFound(f"unknown figure {figure!r}; choose one of: {', '.join(drawing.figures)}")
        return f'"{drawing.change}-{drawing.at}"', drawing.figures[figure]

    async def _draw(self, studies: Names) -> None:
        async with self._turn:
            # Plotly loads itself with the first figure, which says nothing of how long the next drawing takes.
            await run_in_threadpool(empty, "", "")
            change, began = self._news.change, time.monotonic()
            figures = await run_in_threadpool(draw, self._store, self._places, studies)
            at = time.monotonic()
            self._drawn[studies] = _Drawn(figures, change, at, at - began)
            self._drawn.move_to_end(studies)
            while len(self._drawn) > KEPT:
                self._drawn.popitem(last=False)


def draw(store: Store, places: Places, studies: Sequence[str]) -> dict[str, str]:
    """Draw all figures of a study, or of several compared studies; return them as HTML by name."""
    sections = _sections(store, places, studies)
    return {section.name: section_html(section, partial(address, studies[0], may=False)) for section in sections}


def address(study: str, link: str, *, may: bool) -> str | None:
    """Return the address of a link on a page of a study; None if the user may not follow it."""
    if link.startswith("do/") and not may:
        return None
    return link if link[:1] in ("/", "?") else f"/studies/{quote(study, safe='')}/{link}"


def _sections(store: Store, places: Places, studies: Sequence[str]) -> Iterator[Section]:
    known = [study for study in map(store.find_study, studies) if study is not None]
    if len(known) != len(studies) or not known:
        raise StudyNotFound(f"unknown study among: {', '.join(studies)}")
    if len(known) > 1:
        yield from comparison_sections(
            compare([Results(store, study, places) for study in known if not study.watched])
        )
        return
    (study,) = known
    if not study.watched:
        yield from study_sections(Results(store, study, places).data())
    if study.watched or study.config.get("suites"):
        yield from evaluation_history(Evaluations(store, study, places).data(last=ROWS))
