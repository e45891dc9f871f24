"""What decides which checkpoints are kept, as plain data: no strategy and no function is needed to collect."""

from dataclasses import asdict, dataclass
from typing import Any, Self, final

from phyla.records import JsonObject


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What of a study's rules decides which checkpoints are kept.

    Attributes:
        population_size: number of members.
        generations: as `Strategy.keeps_generations`.
        elites: as `Strategy.keeps_best`.
        lead: by how many generations members may be ahead of the slowest one, for the bound.
        keep_best: best checkpoints that are kept besides those in use.
        keep_front: with trade-offs, checkpoints of the front that are kept at most.
        keep_every_steps: milestones; None keeps none.
        tradeoffs: whether the objective has a Pareto front.
        suites: how many suites there are.
        suite: name of the suite that gives fitness; None where training reports it.
        max_lag: how many checkpoints of a member may wait for that suite.
    """

    population_size: int
    generations: int
    elites: bool
    lead: int
    keep_best: int
    keep_front: int
    keep_every_steps: int | None
    tradeoffs: bool
    suites: int
    suite: str | None
    max_lag: int

    def to_json(self) -> JsonObject:
        """Write it as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Read what `to_json` wrote.

        Raises:
            TypeError: it is not what `to_json` writes.
        """
        fields: dict[str, Any] = dict(raw)
        return cls(**fields)
