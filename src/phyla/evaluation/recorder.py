"""Records of a shard of an evaluation: collected, stored, read back, and merged with those of other shards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from phyla.errors import MetricInvalid, MetricMismatch, SamplesDiffer
from phyla.evaluation.metric import Metric, as_array, as_count, as_number, as_samples, check_type
from phyla.evaluation.statistics import (
    SUFFIX,
    Maximum,
    Minimum,
    Moments,
    Perplexity,
    PerSeed,
    Sum,
    is_per_seed,
    per_seed,
)
from phyla.records import Json, JsonObject, read_object

BUILT_IN: Final[Mapping[str, type[Metric]]] = {
    "maximum": Maximum,
    "minimum": Minimum,
    "moments": Moments,
    "per-seed": PerSeed,
    "perplexity": Perplexity,
    "sum": Sum,
}
"""Stored names of the metrics that phyla brings."""

_NAMES = {kind: name for name, kind in BUILT_IN.items()}


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
        stderr: float | None = None,
    ) -> None:
        """Record samples, all or none of them; `phyla.worker.Evaluation.record` explains the arguments."""
        n = None if n is None else as_count(n, "record(): n")
        seed = None if seed is None else as_count(seed, "record(): the seed")
        if stderr is not None:
            _check_stderr(stderr, n, mask)
        selection = None
        if mask is not None:
            selection = as_array(mask, "mask")
            if selection.dtype.kind not in "biuf" or not np.isin(selection, (0, 1)).all():
                raise MetricInvalid(
                    f"mask={mask!r}: a mask is True where a sample counts and False where it is padding"
                )
            selection = selection.astype(np.bool_)
            if n is not None and selection.sum() != n:
                raise MetricInvalid(f"record(): the mask keeps {selection.sum()} samples, but n={n}; leave n out")
        new: dict[str, Metric] = {}
        for name, value in _leaves(metrics, ""):
            if name in new:
                raise MetricInvalid(f"record(): {name!r} is given twice; rename one")
            # Numbers first, because testing whether a value follows a protocol is slow.
            is_metric = not isinstance(value, int | float) and isinstance(value, Metric)
            new[name] = value if is_metric else _moments(name, value, n, selection, stderr)
        self._metrics |= {name: _combine(name, self._metrics.get(name), metric) for name, metric in new.items()}
        for name, metric in new.items():
            if seed is not None and isinstance(metric, Moments) and metric.n:
                seeds = self._by_seed.setdefault(name, {})
                seeds[seed] = seeds.get(seed, Moments()).merge(metric)

    def statistics(self) -> dict[str, Metric]:
        """Return the statistics so far, by name, and also by seed where seeds were given."""
        seeds = {per_seed(name): PerSeed(dict(seeds)) for name, seeds in self._by_seed.items()}
        return {**self._metrics, **seeds}


def _leaves(metrics: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in metrics.items():
        if not isinstance(key, str) or not key or is_per_seed(key):
            raise MetricInvalid(
                f"record(): {key!r} cannot name a metric; use a non-empty text that does not end in {SUFFIX!r}"
            )
        if isinstance(value, Mapping) and not isinstance(value, Metric):
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def _check_stderr(stderr: float, n: int | None, mask: object) -> None:
    number = as_number(stderr, "record(): stderr")
    if number is None or not 0 <= number < np.inf:
        raise MetricInvalid(f"record(): stderr={stderr!r} must be a number of at least 0")
    if n is None or n < 2 or mask is not None:
        raise MetricInvalid(
            f"record(): stderr={stderr!r} is that of a mean; give the number of its samples, as in "
            "record(accuracy=0.61, n=1000, stderr=0.015)"
        )


def _moments(
    name: str, value: object, n: int | None, selection: NDArray[np.bool_] | None, stderr: float | None
) -> Moments:
    label = f"record(): {name!r}"
    number = as_number(value, label)
    if stderr is not None and number is None:
        raise MetricInvalid(f"{label} has samples, and stderr={stderr!r} is that of a mean; leave stderr out")
    if number is not None and (selection is None or (n is not None and selection.ndim)):
        return Moments.of_mean(number, 1 if n is None else n, stderr)
    samples = as_samples(value if number is None else number, label)
    if selection is not None:
        if samples.shape != selection.shape:
            raise MetricInvalid(
                f"{label} has the shape {samples.shape} and the mask {selection.shape}; give one value per "
                "element of the mask, or a mean of the samples that count together with their number n"
            )
        samples = samples[selection]
    if n is not None and samples.size != n:
        raise MetricInvalid(f"{label} has {samples.size} samples, but n={n}; leave n out, or mask padding")
    return Moments.of(samples)


def _combine(name: str, first: Metric | None, second: Metric) -> Metric:
    if first is None:
        return second
    try:
        check_type(first, second)
        return first.merge(second)
    except MetricMismatch as error:
        raise MetricMismatch(f"{name!r}: {error}") from None


def merge_shards(shards: Sequence[Mapping[str, Metric]], *, expected: int | None) -> dict[str, Metric]:
    """Merge the statistics of shards, in their order; metrics that count samples must have seen all `expected`.

    Only a shard without samples may lack names that others have.
    """
    whole: dict[str, Metric] = {}
    for shard in shards:
        for name, metric in shard.items():
            whole[name] = _combine(name, whole.get(name), metric)
    for index, shard in enumerate(shards):
        missing = [name for name in whole if name not in shard]
        if missing and any(metric.count != 0 for metric in shard.values()):
            raise MetricMismatch(
                f"shard {index} of {len(shards)} has no {', '.join(map(repr, missing))}, which other shards have, "
                f"but has {', '.join(map(repr, shard))}; record the same names in every shard"
            )
    if expected and not whole:
        raise SamplesDiffer(f"{expected} samples were expected, and nothing was recorded in {len(shards)} shards")
    for name, metric in whole.items():
        if expected is not None and metric.count not in (None, expected):
            counts = [str(shard[name].count if name in shard else "none") for shard in shards]
            listed = ", ".join(f"{index}: {count}" for index, count in enumerate(counts))
            few = metric.count is not None and metric.count < expected
            problem = "were left out" if few else "were counted twice, or padding was counted"
            raise SamplesDiffer(
                f"{name!r} has counted {metric.count} samples of {expected} (by shard {listed}): some {problem}"
            )
    return whole


def encode(metric: Metric, name_of: Callable[[type[Any]], str]) -> JsonObject:
    """Write a metric as strict JSON; `name_of` names the type of one that is not built in."""
    name = _NAMES.get(type(metric))
    if name is None:
        name = name_of(type(metric))
        if name in BUILT_IN:
            raise MetricInvalid(
                f"{type(metric).__qualname__} is named {name!r}, as a built-in metric is; rename it"
            )
    return {"metric": name, "state": metric.to_json()}


def decode(raw: Json, type_of: Callable[[str], type[Any]]) -> Metric:
    """Undo `encode`; `type_of` finds the type of a metric that is not built in."""
    try:
        whole = read_object(raw)
        name, state = str(whole["metric"]), read_object(whole["state"])
    except (KeyError, ValueError) as error:
        raise MetricInvalid(f"{raw!r} is not a stored metric: {error!r}") from None
    kind: type[Metric] = BUILT_IN[name] if name in BUILT_IN else type_of(name)
    try:
        return kind.from_json(state)
    except (KeyError, TypeError, ValueError, MetricInvalid) as error:
        raise MetricInvalid(
            f"a stored {name!r} cannot be read: {error!r} in {state!r}; another version of it wrote this"
        ) from error
