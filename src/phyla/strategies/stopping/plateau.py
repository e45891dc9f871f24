"""Ending a study that no longer improves, by the trend test of Mann (1945) and Kendall (1975)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, final

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, Member, Objective
from phyla.strategies.stopping import Others, Reported, StoppingRule
from phyla.validation import check

if TYPE_CHECKING:
    from phyla.strategies.strategy import History, Strategy

FEWEST, MOST = 4, 20
"""Rounds of trials that are compared."""
COME_SO_FAR = 0.75
"""Share of the members that has to have completed a round before it counts."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau(StoppingRule):
    """End the study when the best has not improved for a number of steps; trials that run then finish.

    A round is one trial of each member. The best score of each round of the last `steps` is compared with that of
    each earlier one: the study is complete once they rise no more often than they fall. Noise raises the best of
    every round alike, so it does not end a study that improves, and one lucky score does not prolong a study, as
    it would if later scores had to beat the best so far. An improvement that noise hides for all of `steps` does
    not count.

    Source: the statistic S of Mann 1945 and Kendall 1975, without its table: S <= 0 ends the study.

    Args:
        steps: steps that each member trains without an improvement; at least four trials.
        min_change: differences of the score up to this one do not count.
    """

    steps: int
    min_change: float = 0.0

    def __post_init__(self) -> None:
        check(self, steps=1, min_change="[0, inf)")

    @property
    def pareto(self) -> bool:
        return False

    def judge(self, reported: Reported, others: Others) -> JsonObject | None:
        return None

    def check_strategy(self, strategy: "Strategy") -> None:
        length = getattr(strategy, "steps_per_trial", None)
        subject = f"Plateau(steps={self.steps}): {type(strategy).__name__}"
        if length is None:
            way = "; give steps_per_trial=" if hasattr(strategy, "steps_per_trial") else ""
            raise ConfigurationError(f"{subject} has no rounds of trials of one length to compare{way}")
        if FEWEST * length > self.steps:
            raise ConfigurationError(
                f"{subject} has trials of {length} steps, and fewer than {FEWEST} of them show no trend; give "
                f"steps={FEWEST * length} or more"
            )

    def ends(self, members: Sequence[Member], objective: Objective, history: "History") -> str | None:
        working = [member for member in members if not (member.retired or member.given_up)]
        completed = sorted(member.generation for member in working)
        newest = completed[int((1 - COME_SO_FAR) * len(completed))] - 1 if completed else -1
        rounds = round(self.steps / _steps_per_round(working)) if newest >= 0 else FEWEST
        if newest + 1 < rounds:
            return None
        scores = map(history.results, _spread(newest - rounds + 1, newest))
        best = [max(results.values()) for results in scores if len(results) >= COME_SO_FAR * len(working)]
        if len(best) < FEWEST or self._trend(best) > 0:
            return None
        return f"the best {objective.name} has not improved for {self.steps} steps"

    def _trend(self, best: Sequence[float]) -> int:
        """Return how many later values are higher than an earlier one, less how many are lower."""
        pairs = [(value, other) for place, value in enumerate(best) for other in best[place + 1 :]]
        return sum((b - a > self.min_change) - (a - b > self.min_change) for a, b in pairs)


def _steps_per_round(members: Sequence[Member]) -> float:
    trained = [
        (member.progress - member.joined_steps, member.generation - member.joined_generation) for member in members
    ]
    return median(steps / trials for steps, trials in trained if trials > 0)


def _spread(first: int, last: int) -> Iterator[int]:
    """Yield rounds from the first to the last, evenly spread where there are many."""
    count = min(last - first + 1, MOST)
    return (first + round(place * (last - first) / (count - 1)) for place in range(count))
