"""The projection of the ledger that every exporter writes: one number per step and name."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, final

from phyla.evaluation.aggregates import Estimate, percentiles
from phyla.evaluation.matrix import Cell, GroupValues
from phyla.records import escape_name

PERCENTILES: Final = (10, 50, 90)
"""Percentiles over eval tasks, for metrics that several of them have."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One number that was measured of one checkpoint.

    Attributes:
        step: age of the weights; -1 if it is not known.
        branch: 0, and one more each time training was rewound.
        member: of the population; None outside of a study.
        index: place within the checkpoint, if it holds several models.
        number: how many checkpoints were seen before it.
        task: name of the eval task; None for an aggregate of the suite.
        value: the number, with its `stderr` if that is known.
        n: samples behind it; None if it does not count them.
        replicate: 0; above for repeated evaluations of the same checkpoint with other seeds.
        partial: whether the group ended without all of its eval tasks.
        written_at: when the checkpoint was written, in seconds since the epoch: the time of the training.
    """

    step: int
    branch: int = 0
    member: int | None = None
    index: int = 0
    number: int
    checkpoint: str
    suite: str
    task: str | None
    name: str
    value: float
    stderr: float | None = None
    n: int | None = None
    replicate: int = 0
    partial: bool = False
    written_at: float
    evaluated_at: float


def point_row(point: Point) -> dict[str, Any]:
    """Return a point as one flat row."""
    return {**asdict(point), "checkpoint": escape_name(point.checkpoint)}


def cell_points(cell: Cell, member: int | None = None) -> Iterator[Point]:
    """Return the numbers that an eval task measured; none without a result."""
    for name, estimate in cell.values.items():
        yield _point(cell, member, name, estimate, n=cell.metrics[name].count if name in cell.metrics else None)


def group_points(values: GroupValues, cells: Sequence[Cell], member: int | None = None) -> Iterator[Point]:
    """Return the aggregates of a group, and percentiles over its eval tasks where it has none of that name."""
    estimates: dict[str, Estimate] = {}
    if not values.partial:
        for name in dict.fromkeys(name for cell in cells for name in cell.metrics):
            numbers = [cell.values[name].value for cell in cells if name in cell.metrics and name in cell.values]
            if len(numbers) > 1:
                which = zip(PERCENTILES, percentiles(numbers, PERCENTILES), strict=True)
                estimates |= {f"{name}_p{percent}": Estimate(value) for percent, value in which}
    for name, estimate in {**estimates, **values.values}.items():
        yield _point(values, member, name, estimate)


def _point(
    of: Cell | GroupValues, member: int | None, name: str, estimate: Estimate, *, n: int | None = None
) -> Point:
    seen = of.seen
    if isinstance(of, Cell):
        suite, task, replicate, at = of.suite, of.task, of.replicate, of.evaluated_at or seen.created_at
    else:
        suite, task, replicate = of.group.suite, None, of.group.replicate
        at = of.group.ended_at or of.group.created_at
    return Point(
        step=seen.step,
        branch=seen.branch,
        member=member,
        index=seen.index,
        number=seen.number,
        checkpoint=seen.name,
        suite=suite,
        task=task,
        name=name,
        value=estimate.value,
        stderr=estimate.stderr,
        n=n,
        replicate=replicate,
        partial=of.partial,
        written_at=seen.written_at,
        evaluated_at=at,
    )
