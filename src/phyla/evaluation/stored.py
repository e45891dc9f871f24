"""Metrics as strict JSON, and back."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from phyla.errors import MetricInvalid
from phyla.evaluation.confusion import Confusion
from phyla.evaluation.histogram import Histogram
from phyla.evaluation.metric import Metric
from phyla.evaluation.moments import Moments, PerSeed
from phyla.evaluation.totals import Maximum, Minimum, Perplexity, Sum
from phyla.records import Json, JsonObject, read_object

BUILT_IN: Final[Mapping[str, type[Metric]]] = {
    "confusion": Confusion,
    "histogram": Histogram,
    "maximum": Maximum,
    "minimum": Minimum,
    "moments": Moments,
    "per-seed": PerSeed,
    "perplexity": Perplexity,
    "sum": Sum,
}
"""Short names of the metrics that phyla brings."""

_NAMES = {kind: name for name, kind in BUILT_IN.items()}


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
    """Make again the metric that `encode` wrote; `type_of` finds the type of one that is not built in.

    Raises:
        MetricInvalid: it is not what `encode` writes, or its type does not take the stored state.
    """
    try:
        whole = read_object(raw)
        name, state = str(whole["metric"]), read_object(whole["state"])
    except (KeyError, ValueError) as error:
        raise MetricInvalid(f"{raw!r} is no stored metric: {error!r}") from None
    kind: type[Metric] = BUILT_IN[name] if name in BUILT_IN else type_of(name)
    try:
        return kind.from_json(state)
    except (KeyError, TypeError, ValueError, MetricInvalid) as error:
        raise MetricInvalid(
            f"a stored {name!r} cannot be read: {error!r} in {state!r}; another version of it wrote this"
        ) from error
