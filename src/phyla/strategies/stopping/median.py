"""The median stopping rule (Golovin et al. 2017, Google Vizier, section 3.2.2)."""

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, direction, json_number
from phyla.strategies.stopping import Others, Reported, StoppingRule
from phyla.validation import check

if TYPE_CHECKING:
    from phyla.strategies.strategy import Strategy


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MedianStopping(StoppingRule):
    """Stop a trial whose best report so far is worse than the median of the others' running averages.

    Trials are compared at the same *age of the weights*, the clock of `trial.report(step=)`. A trial comes to a
    mark with its first report of the objective at or after it; a report that passes several marks counts at the
    last of them. Its best report so far is compared there with the means of what the other trials reported, each
    from its own start up to the same mark. A trial strictly worse than their median is stopped, but not at its
    end. nan and infinities are worse than everything. An objective of several metrics counts as reported once all
    of them are, at the same step.

    Source: Golovin et al. 2017, section 3.2.2. Unlike there, the averages are those of single trials, not of whole
    runs, and of the 100 newest that came to the mark, completed or not.

    Args:
        min_steps: steps that a trial trains before it may be stopped; fewer than its length.
        min_trials: other trials that must have come to a mark, at least.
        every_steps: distance of the marks, which are its multiples; the default is `min_steps`. A trial that comes
            to no mark between `min_steps` and its end is never stopped, so let `min_steps` divide the length of
            trials.
    """

    min_steps: int
    min_trials: int = 5
    every_steps: int | None = None

    def __post_init__(self) -> None:
        check(self, min_steps=0, min_trials=1, every_steps=1)

    @property
    def marks_every(self) -> int:
        return self.every_steps or max(1, self.min_steps)

    def check_strategy(self, strategy: "Strategy") -> None:
        # Of a strategy without trials of one length only the whole training is known.
        length = getattr(strategy, "steps_per_trial", None) or strategy.member_steps
        if length is not None and self.min_steps >= length:
            raise ConfigurationError(
                f"MedianStopping(min_steps={self.min_steps}): trials of {type(strategy).__name__} have at most "
                f"{length} steps, so none would ever be stopped; give min_steps below {length}"
            )

    def judge(self, reported: Reported, others: Others) -> JsonObject | None:
        if reported.trained_steps < self.min_steps or reported.step >= reported.trial.end_step:
            return None
        goal = direction(reported.objective)
        for mark in reported.marks:
            averages = others.averages(mark) if mark.every == self.marks_every else ()
            if len(averages) < self.min_trials:
                continue
            median = statistics.median(goal.order(average) for average in averages)
            if goal.order(mark.best) < median:
                return {
                    "rule": "median",
                    "metric": goal.metric,
                    "step": mark.at,
                    "best": json_number(mark.best),
                    "median": json_number(median if goal.maximize else -median),
                    "of": len(averages),
                }
        return None
