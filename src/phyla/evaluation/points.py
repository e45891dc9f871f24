"""The projection of the ledger that every exporter writes: one number, or one histogram, per step and name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from phyla.evaluation.cells import Cell, GroupValues
from phyla.evaluation.histogram import Histogram
from phyla.evaluation.outline import PERCENTILE
from phyla.evaluation.result import Estimate
from phyla.records import shown

PERCENTILES: Final = (10, 50, 90)
"""Percentiles over eval tasks, for metrics that several of them have."""

ARRAY_BINS = 30


class PointKind(StrEnum):
    """What a point is."""

    SCALAR = "scalar"
    PERCENTILE = "percentile"
    HISTOGRAM = "histogram"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """A histogram as trackers take it.

    Attributes:
        limits: upper end of each bin, rising; the first bin begins at `low`.
        counts: samples in each bin.
        low: the smallest sample.
        high: the largest sample.
        total: sum of the samples.
        squares: sum of their squares.
    """

    limits: tuple[float, ...]
    counts: tuple[float, ...]
    low: float
    high: float
    total: float
    squares: float

    @property
    def n(self) -> float:
        """Number of samples."""
        return sum(self.counts)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One number, or one histogram, that was measured of one checkpoint.

    Attributes:
        step: age of the weights; -1 when it is not known.
        branch: 0, and one more each time training was rewound.
        member: of the population; None outside of a study.
        index: place within the checkpoint, when it holds several models.
        checkpoint: its name.
        number: how many checkpoints were seen before it.
        suite: name of the suite.
        task: name of the eval task; None for an aggregate of the suite.
        name: of the metric, or of the aggregate.
        kind: scalar, percentile or histogram.
        value: the number; None of a histogram.
        stderr: its standard error; None if it is not known.
        n: samples behind it; None if it does not count them.
        bins: the histogram; None of a number.
        written_at: when the checkpoint was written, in seconds since the epoch: the time of the training.
        evaluated_at: when it was measured.
        replicate: 0; above for repeated evaluations of the same checkpoint with other seeds.
        partial: whether the group ended without all of its eval tasks.
    """

    step: int
    branch: int = 0
    member: int | None = None
    index: int = 0
    checkpoint: str
    number: int
    suite: str
    task: str | None
    name: str
    kind: PointKind
    value: float | None = None
    stderr: float | None = None
    n: int | None = None
    bins: Bins | None = None
    written_at: float
    evaluated_at: float
    replicate: int = 0
    partial: bool = False


def point_row(point: Point) -> dict[str, Any]:
    """Return a point as one flat row; the histogram as low, high, limits and counts."""
    bins = point.bins
    return {
        "step": point.step,
        "branch": point.branch,
        "member": point.member,
        "index": point.index,
        "number": point.number,
        "checkpoint": shown(point.checkpoint),
        "suite": point.suite,
        "task": point.task,
        "name": point.name,
        "kind": point.kind.value,
        "value": point.value,
        "stderr": point.stderr,
        "n": point.n,
        "replicate": point.replicate,
        "partial": point.partial,
        "written_at": point.written_at,
        "evaluated_at": point.evaluated_at,
        "low": None if bins is None else bins.low,
        "high": None if bins is None else bins.high,
        "limits": None if bins is None else list(bins.limits),
        "counts": None if bins is None else list(bins.counts),
    }


def cell_points(cell: Cell, member: int | None = None) -> Iterator[Point]:
    """Return the numbers and histograms that an eval task measured; none without a result."""
    for name, estimate in cell.values.items():
        yield Point(
            **_where(cell, member),
            task=cell.task,
            name=name,
            kind=PointKind.PERCENTILE if PERCENTILE.fullmatch(name) else PointKind.SCALAR,
            value=estimate.value,
            stderr=estimate.stderr,
            n=cell.metrics[name].count if name in cell.metrics else None,
            evaluated_at=cell.evaluated_at or cell.seen.seen_at,
        )
    for name, metric in cell.metrics.items():
        if isinstance(metric, Histogram) and metric.count:
            yield _histogram(cell, member, name, _bins(metric))


def array_point(cell: Cell, name: str, array: NDArray[Any], member: int | None = None) -> Point | None:
    """Return the histogram of an array that an eval task saved; None of an array without finite numbers."""
    bins = array_bins(array)
    return None if bins is None else _histogram(cell, member, name, bins)


def group_points(values: GroupValues, cells: Sequence[Cell], member: int | None = None) -> Iterator[Point]:
    """Return the aggregates of a group, and percentiles over its eval tasks where it has none of that name.

    Args:
        values: the aggregates.
        cells: the eval tasks of the group.
        member: of the population.
    """
    found = dict(values.values)
    if not values.partial:
        found = {**_percentiles(cells), **found}
    for name, estimate in found.items():
        yield Point(
            **_where(values, member),
            task=None,
            name=name,
            kind=PointKind.PERCENTILE if PERCENTILE.fullmatch(name) else PointKind.SCALAR,
            value=estimate.value,
            stderr=estimate.stderr,
            evaluated_at=values.group.ended_at or values.group.created_at,
        )


def _where(of: Cell | GroupValues, member: int | None) -> dict[str, Any]:
    seen = of.seen
    return {
        "step": seen.step,
        "branch": seen.branch,
        "member": member,
        "index": seen.index,
        "checkpoint": seen.name,
        "number": seen.number,
        "suite": of.suite if isinstance(of, Cell) else of.group.suite,
        "written_at": seen.written_at,
        "replicate": of.replicate if isinstance(of, Cell) else of.group.replicate,
        "partial": of.partial,
    }


def _histogram(cell: Cell, member: int | None, name: str, bins: Bins) -> Point:
    return Point(
        **_where(cell, member),
        task=cell.task,
        name=name,
        kind=PointKind.HISTOGRAM,
        n=round(bins.n),
        bins=bins,
        evaluated_at=cell.evaluated_at or cell.seen.seen_at,
    )


def _percentiles(cells: Sequence[Cell]) -> Mapping[str, Estimate]:
    measured: dict[str, list[float]] = {}
    for cell in cells:
        for name in cell.metrics:
            if name in cell.values:
                measured.setdefault(name, []).append(cell.values[name].value)
    found: dict[str, Estimate] = {}
    for name, values in measured.items():
        if len(values) > 1:
            with np.errstate(all="ignore"):
                over = np.percentile(np.asarray(values), PERCENTILES)
            found |= {f"{name}_p{p}": Estimate(float(v)) for p, v in zip(PERCENTILES, over, strict=True)}
    return found


def _bins(metric: Histogram) -> Bins:
    """Return a histogram metric without empty bins at its ends.

    Samples below and above its edges get bins of their own.
    """
    limits, counts = [*metric.edges, max(metric.highest, metric.edges[-1])], [*metric.counts]
    filled = [index for index, count in enumerate(counts) if count] or [0]
    limits, counts = limits[filled[0] : filled[-1] + 1], counts[filled[0] : filled[-1] + 1]
    moments = metric.moments
    low, high = (end if np.isfinite(end) else edge for end, edge in _ends(metric))
    mean = moments.mean if np.isfinite(moments.mean) else 0.0
    spread = moments.m2 if moments.m2 is not None and np.isfinite(moments.m2) else 0.0
    return Bins(
        limits=tuple(float(limit) if np.isfinite(limit) else metric.edges[-1] for limit in limits),
        counts=tuple(map(float, counts)),
        low=low,
        high=high,
        total=mean * moments.n,
        squares=spread + mean * mean * moments.n,
    )


def _ends(metric: Histogram) -> Iterator[tuple[float, float]]:
    yield metric.lowest, metric.edges[0]
    yield metric.highest, metric.edges[-1]


def array_bins(array: NDArray[Any]) -> Bins | None:
    """Return the histogram of an array's finite numbers; None if there are none."""
    if array.dtype.kind not in "biuf":
        return None
    flat = array.astype(float).ravel()
    flat = flat[np.isfinite(flat)]
    if flat.size == 0:
        return None
    counts, edges = np.histogram(flat, bins=ARRAY_BINS)
    return Bins(
        limits=tuple(edges[1:].tolist()),
        counts=tuple(counts.astype(float).tolist()),
        low=float(flat.min()),
        high=float(flat.max()),
        total=float(flat.sum()),
        squares=float((flat**2).sum()),
    )
