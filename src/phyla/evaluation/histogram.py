"""Histogram of samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Self, final

import numpy as np

from phyla.errors import ConfigurationError, MetricInvalid, MetricMismatch
from phyla.evaluation.metric import Stored, as_count, as_samples
from phyla.evaluation.statistics import Moments

SHOWN = (10, 50, 90)
"""The percentiles of the summary."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram(Stored):
    """Counts of samples in bins with fixed edges, and their exact moments.

    A bin holds the samples from its lower edge up to but without its upper edge; the last one holds its upper
    edge too. A nan falls into no bin, but makes mean and percentiles nan.

    Attributes:
        edges: at least 2 finite numbers, rising.
        counts: samples below the first edge, in each bin, and above the last edge; all 0 if empty.
        moments: of all samples.
        lowest: the smallest sample that is no nan; infinity if there is none.
        highest: the largest sample that is no nan; minus infinity if there is none.
    """

    edges: Sequence[float]
    counts: Sequence[int] = ()
    moments: Moments = field(default_factory=Moments)
    lowest: float = math.inf
    highest: float = -math.inf

    def __post_init__(self) -> None:
        edges = tuple(float(edge) for edge in self.edges)
        if len(edges) < 2 or not all(map(math.isfinite, edges)) or list(edges) != sorted(set(edges)):
            raise MetricInvalid(f"Histogram(edges={edges!r}): edges are at least 2 finite numbers, rising")
        counts = tuple(as_count(count, "Histogram: a count") for count in self.counts) or (0,) * (len(edges) + 1)
        if len(counts) != len(edges) + 1 or sum(counts) > self.moments.n:
            raise MetricInvalid(
                f"Histogram: {len(counts)} counts, {sum(counts)} in all, do not fit {len(edges)} edges and "
                f"{self.moments.n} samples; there is one count below, one per bin and one above"
            )
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "counts", counts)

    @classmethod
    def of(cls, values: object, *, edges: Sequence[float]) -> Self:
        """Return the histogram of an array-like of real numbers, of any shape."""
        empty = cls(edges=edges)
        samples = as_samples(values, "values").ravel()
        known = samples[~np.isnan(samples)]
        bins = np.searchsorted(np.asarray(empty.edges), known, side="right")
        bins[known == empty.edges[-1]] -= 1
        return cls(
            edges=empty.edges,
            counts=np.bincount(bins, minlength=len(empty.counts)).tolist(),
            moments=Moments.of(samples),
            lowest=float(known.min(initial=math.inf)),
            highest=float(known.max(initial=-math.inf)),
        )

    @property
    def count(self) -> int:
        """How many samples it has seen."""
        return self.moments.n

    def percentile(self, percent: float) -> float:
        """Return a percentile from 0 to 100, interpolated within its bin; nan of no samples or if one is nan.

        Below the first and above the last edge it is interpolated up to the smallest and largest sample.
        """
        if not 0 <= percent <= 100:
            raise ConfigurationError(f"percentile({percent!r}): a percentile lies between 0 and 100")
        known = sum(self.counts)
        if known == 0 or known < self.moments.n:
            return math.nan
        rank = known * percent / 100
        index = next(i for i, upto in enumerate(accumulate(self.counts)) if upto >= rank and self.counts[i])
        below = sum(self.counts[:index])
        # Samples of the bin lie between its edges, and between the smallest and the largest sample.
        low = max(self.lowest, self.edges[index - 1]) if index else self.lowest
        high = min(self.highest, self.edges[index]) if index < len(self.edges) else self.highest
        share = (rank - below) / self.counts[index]
        if share in (0, 1) or not (math.isfinite(low) and math.isfinite(high)):
            return high if share > 0 else low
        return min(max(low * (1 - share) + high * share, low), high)

    def _merged(self, other: Self) -> Self:
        if self.edges != other.edges:
            raise MetricMismatch(
                f"a Histogram with the edges {self.edges!r} cannot be merged with one with the edges "
                f"{other.edges!r}; choose the edges before looking at the samples"
            )
        return type(self)(
            edges=self.edges,
            counts=[mine + others for mine, others in zip(self.counts, other.counts, strict=True)],
            moments=self.moments.merge(other.moments),
            lowest=min(self.lowest, other.lowest),
            highest=max(self.highest, other.highest),
        )

    def summary(self) -> dict[str, float]:
        """Return the mean, "stderr" if it is known, "n", and the percentiles "p10", "p50" and "p90"."""
        return {**self.moments.summary(), **{f"p{percent}": self.percentile(percent) for percent in SHOWN}}
