"""How a study looks in a notebook, once and while it runs."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, final

from phyla.errors import StoreError
from phyla.pages import Table, text_of
from phyla.report import notebook
from phyla.study.results.pages.study import study_page
from phyla.study.results.progress import Throttle

if TYPE_CHECKING:
    from phyla.machine import TrainRules
    from phyla.study.results.results import Results

EVERY_S = 1.0
DECISIONS_SHOWN = 5


def summary(results: "Results") -> dict[str, str]:
    """Return the status of a study as a bundle of MIME types."""
    page = study_page(results, most=0)
    feed = [section for section in page.sections if section.name == "feed" and isinstance(section, Table)]
    rows = [[fact.name, fact.words] for fact in page.facts]
    rows += [["", text] for text in (*page.messages, *map(text_of, page.lines))]
    rows += [row[:2] for section in feed for row in section.texts[:DECISIONS_SHOWN]]
    return notebook.summary(f"{page.title}: {page.state}", rows)


def outline(name: str, rules: "TrainRules") -> dict[str, str]:
    """Return the settings of a study that has not run yet as a bundle of MIME types."""
    rows = [(key, str(getattr(rules, key))) for key in ("objective", "strategy", "space")]
    return notebook.summary(f"{name}: has not run yet", rows)


def cell() -> Any:
    """Return the identity of the running cell; None outside of notebooks."""
    ipython: Any = sys.modules.get("IPython")
    return None if ipython is None else getattr(ipython.get_ipython(), "execution_count", None)


@final
class NotebookCell:
    """Shows the progress of a study in a notebook cell, in place."""

    def __init__(self) -> None:
        self._throttle = Throttle(EVERY_S)
        self._handle: Any = None
        self._results: Results | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._results is not None:
            self.progressed(self._results, at_once=True)
            self._results.shown_in = cell()

    def interrupted(self) -> None:
        """Print nothing: the kernel shows that it was interrupted."""

    def progressed(self, results: "Results", *, at_once: bool = False) -> None:
        """Show the status of the study, if it is time."""
        self._results = results
        # A display must not end a run.
        with suppress(StoreError), self._throttle.turn(at_once=at_once) as due:
            if not due:
                return
            from IPython import display

            if self._handle is None:
                self._handle = display.display(summary(results), raw=True, display_id=True)
            else:
                self._handle.update(summary(results), raw=True)
