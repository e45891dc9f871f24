"""What a trial reported of the objective, in a few numbers."""

from dataclasses import dataclass
from typing import final

from phyla.records.report import Report


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The reports of the objective in one attempt so far.

    Attributes:
        count: how many there were.
        mean: their mean; nan once one of them was nan or infinite, and while there is none.
        best: the best finite one; nan while there is none.
        step: highest age of the weights among them.
        part: some of the objective's metrics at one step, not counted while the others are still to be reported.
    """

    count: int
    mean: float
    best: float
    step: int
    part: Report | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where trials are compared: the first report of the objective at or after a multiple of `every` steps.

    Attributes:
        every: distance of the marks, in steps.
        step: the mark, a multiple of `every`.
        at: age of the weights at the report.
        average: mean of the trial's reports up to that one; nan once one of them was nan or infinite.
        best: best finite report up to that one; nan without any.
    """

    every: int
    step: int
    at: int
    average: float
    best: float
