"""Recording samples of metrics while a checkpoint is evaluated."""

from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from phyla.errors import MetricInvalid
from phyla.evaluation.metric import Metric, combine
from phyla.evaluation.moments import SUFFIX, Moments, PerSeed, is_per_seed, per_seed
from phyla.evaluation.samples import as_count, as_mask, as_number, as_samples


@final
class Recorder:
    """Collects the metrics of one shard of an evaluation. For one thread at a time.

    However samples are split into calls, and calls into shards, the statistics are the same up to rounding: to
    1e-12 of the largest of a value and the spread of its samples.
    """

    __slots__ = ("_by_seed", "_metrics")

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._by_seed: dict[str, dict[int, Moments]] = {}

    def record(
        self,
        metrics: Mapping[str, object],
        /,
        *,
        n: int | None = None,
        mask: object = None,
        seed: int | None = None,
    ) -> None:
        """Record samples; all of them, or none if an error is raised.

        Args:
            metrics: name to what was measured; nested mappings become slashed names. A number is one sample.
                An array-like of numbers holds one sample per element. A metric is merged as it is.
            n: a number is the mean of n samples, of which the variance is then unknown; with n=0 nothing is
                counted. An array must have n elements that count.
            mask: for arrays: True, or 1, where an element counts, and False, or 0, where it is padding; of the
                same shape.
            seed: what the samples were drawn with. Numbers, arrays and `Moments` are also kept by seed, for
                comparisons seed by seed, under the name that `per_seed` gives.

        Raises:
            MetricInvalid: an ill-formed or repeated name, a value that is no number, a mask of another shape, or
                another number of samples than n.
            MetricMismatch: a name was recorded with another type of metric, or other edges or labels.
        """
        if n is not None:
            n = as_count(n, "record(): n")
        if seed is not None:
            seed = as_count(seed, "record(): the seed")
        kept = None if mask is None else as_mask(mask)
        if kept is not None and n is not None and kept.sum() != n:
            raise MetricInvalid(f"record(): the mask keeps {kept.sum()} samples, but n={n}; leave n out")
        new: dict[str, Metric] = {}
        for name, value in _leaves(metrics, ""):
            if name in new:
                raise MetricInvalid(f"record(): {name!r} is given twice; rename one")
            # Numbers first: whether something follows a protocol takes long to find out.
            is_metric = not isinstance(value, int | float) and isinstance(value, Metric)
            new[name] = value if is_metric else _moments(name, value, n, kept)
        merged = {
            name: combine(name, self._metrics[name], metric) if name in self._metrics else metric
            for name, metric in new.items()
        }
        self._metrics.update(merged)
        if seed is None:
            return
        for name, metric in new.items():
            if isinstance(metric, Moments) and metric.n:
                seeds = self._by_seed.setdefault(name, {})
                seeds[seed] = seeds.get(seed, Moments()).merge(metric)

    def statistics(self) -> dict[str, Metric]:
        """Return what was recorded so far, by name; what has seeds also by seed."""
        seeds = {per_seed(name): PerSeed(dict(seeds)) for name, seeds in self._by_seed.items()}
        return {**self._metrics, **seeds}


def _leaves(metrics: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in metrics.items():
        if not isinstance(key, str) or not key or is_per_seed(key):
            raise MetricInvalid(
                f"record(): {key!r} is no name of a metric; use a text, not empty, that does not end in {SUFFIX!r}"
            )
        if isinstance(value, Mapping) and not isinstance(value, Metric):
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def _moments(name: str, value: object, n: int | None, kept: NDArray[np.bool_] | None) -> Moments:
    what = f"record(): {name!r}"
    number = as_number(value, what)
    if number is not None and (kept is None or (n is not None and kept.ndim)):
        return Moments.of_mean(number, 1 if n is None else n)
    samples = as_samples(value if number is None else number, what)
    if kept is not None:
        if samples.shape != kept.shape:
            raise MetricInvalid(
                f"{what} has the shape {samples.shape} and the mask {kept.shape}; give one value per element of "
                "the mask, or a mean of the samples that count together with their number n"
            )
        samples = samples[kept]
    if n is not None and samples.size != n:
        raise MetricInvalid(f"{what} has {samples.size} samples, but n={n}; leave n out, or mask padding")
    return Moments.of(samples)
