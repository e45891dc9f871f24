"""Mean and variance of samples by the seed they were drawn with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Self, final

from phyla.evaluation.metric import check_type
from phyla.evaluation.moments import Moments
from phyla.evaluation.samples import as_count
from phyla.records import Json, JsonObject, json_number, read_list

SUFFIX = "@seed"


def per_seed(name: str) -> str:
    """Return the name under which a recorder keeps a metric by seed, as `return@seed`."""
    return name + SUFFIX


def is_per_seed(name: str) -> bool:
    """Return whether a name is one that `per_seed` gives."""
    return name.endswith(SUFFIX)


@final
@dataclass(frozen=True, slots=True)
class PerSeed:
    """Moments of samples by seed, so that two evaluations can be compared seed by seed.

    It counts no samples: the metric that it stands beside does.

    Attributes:
        seeds: seed, at least 0, to the moments of its samples; in the order of the seeds.

    Raises:
        MetricInvalid: a seed is no integer or below 0.
    """

    seeds: Mapping[int, Moments] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seeds = {as_count(seed, "a seed"): moments for seed, moments in self.seeds.items()}
        object.__setattr__(self, "seeds", dict(sorted(seeds.items())))

    @property
    def count(self) -> None:
        """None: the metric that it stands beside counts the samples."""
        return None

    def merge(self, other: Self) -> Self:
        """Return the moments by seed of the samples of both.

        Raises:
            MetricMismatch: the other is of another type.
        """
        check_type(self, other)
        both = {**self.seeds, **other.seeds}
        for seed in self.seeds.keys() & other.seeds.keys():
            both[seed] = self.seeds[seed].merge(other.seeds[seed])
        return type(self)(both)

    def summary(self) -> dict[str, float]:
        """Return the mean over the seeds of their means, "stderr" if it is known, and "n", the number of seeds."""
        known = (moments for moments in self.seeds.values() if moments.n)
        means = (Moments(n=1, mean=moments.mean, low=moments.low) for moments in known)
        return reduce(Moments.merge, means, Moments()).summary()

    def to_json(self) -> JsonObject:
        """Return its state as strict JSON: one list per field; those that are all the same are left out."""
        each = list(self.seeds.values())
        columns: dict[str, Json] = {
            "seed": list(self.seeds),
            "mean": [json_number(moments.mean) for moments in each],
        }
        if any(moments.n != 1 for moments in each):
            columns["n"] = [moments.n for moments in each]
        if any(moments.m2 != 0 for moments in each):
            columns["m2"] = [json_number(moments.m2) for moments in each]
        if any(moments.low for moments in each):
            columns["low"] = [moments.low for moments in each]
        return columns

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Return the moments by seed that `to_json` wrote."""
        seeds = [as_count(seed, "a seed") for seed in read_list(raw["seed"])]
        size = len(seeds)
        rows = zip(
            read_list(raw.get("n", [1] * size)),
            read_list(raw["mean"]),
            read_list(raw.get("m2", [0.0] * size)),
            read_list(raw.get("low", [0.0] * size)),
            strict=True,
        )
        each = (Moments.from_json({"n": n, "mean": mean, "m2": m2, "low": low}) for n, mean, m2, low in rows)
        return cls(dict(zip(seeds, each, strict=True)))
