"""The statistics of a whole from those of its shards."""

from collections.abc import Mapping, Sequence

from phyla.errors import MetricMismatch, SamplesDiffer
from phyla.evaluation.metric import Metric, combine


def merged(shards: Sequence[Mapping[str, Metric]], *, expected: int | None) -> dict[str, Metric]:
    """Merge the statistics of shards, in their order.

    Args:
        shards: name to metric, per shard. All have the same names; only a shard without samples may lack some.
        expected: number of samples in all; each metric that counts samples must have seen as many. None if it
            is not known.

    Raises:
        MetricMismatch: the shards have different names, or types, edges or labels under one name.
        SamplesDiffer: a metric has seen another number of samples.
    """
    names = list(dict.fromkeys(name for shard in shards for name in shard))
    for index, shard in enumerate(shards):
        missing = [name for name in names if name not in shard]
        if missing and any(metric.count != 0 for metric in shard.values()):
            raise MetricMismatch(
                f"shard {index} of {len(shards)} has no {', '.join(map(repr, missing))}, which other shards have, "
                f"but has {', '.join(map(repr, shard))}; record the same names in every shard"
            )
    if expected and not names:
        raise SamplesDiffer(f"{expected} samples were expected, and nothing was recorded in {len(shards)} shards")
    whole: dict[str, Metric] = {}
    for shard in shards:
        for name, metric in shard.items():
            whole[name] = combine(name, whole[name], metric) if name in whole else metric
    if expected is not None:
        for name in names:
            _check_count(name, whole[name], shards, expected)
    return {name: whole[name] for name in names}


def _check_count(name: str, metric: Metric, shards: Sequence[Mapping[str, Metric]], expected: int) -> None:
    if metric.count is None or metric.count == expected:
        return
    counts = ", ".join(
        f"{index}: {shard[name].count if name in shard else 'none'}" for index, shard in enumerate(shards)
    )
    what = "were left out" if metric.count < expected else "were counted twice, or padding was counted"
    raise SamplesDiffer(
        f"{name!r} has counted {metric.count} samples of {expected} (by shard {counts}): some {what}"
    )
