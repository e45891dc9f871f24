"""What training reported."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Report:
    """Metrics that training reported once.

    Attributes:
        step: age of the weights.
        metrics: metric name to value.
    """

    step: int
    metrics: dict[str, float]
