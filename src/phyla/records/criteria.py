"""The values of several metrics, as a trial was judged by them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from phyla.records.json import JsonObject


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """What a fitness was made of, where that is more than one metric.

    Attributes:
        values: what was judged, by metric.
        orders: sort keys of the goals that are traded off, higher is better; empty without a Pareto front.
        infeasible: which constraint is violated, as in "latency_ms 35 > 20"; None if none is.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    orders: tuple[float, ...] = ()
    infeasible: str | None = None

    def to_json(self) -> JsonObject:
        """Return it as JSON; numbers may be nan or infinite."""
        return {"values": dict(self.values), "orders": list(self.orders), "infeasible": self.infeasible}

    @classmethod
    def from_json(cls, raw: Any) -> "Criteria | None":
        """Return what `to_json` wrote; None for None."""
        if raw is None:
            return None
        return cls(values=raw["values"], orders=tuple(raw["orders"]), infeasible=raw["infeasible"])
