"""A member: one slot of the population; its history is a chain of trials."""

from dataclasses import dataclass
from enum import StrEnum
from typing import final

from phyla.records.json import JsonObject, ReadOnly
from phyla.records.objective import Criteria


class MemberState(StrEnum):
    """What a member is doing: ready for a decision, running (or queued for a retry), or done."""

    READY = "ready"
    RUNNING = "running"
    DONE = "done"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A completed trial as others may take it over: score, weights and hyperparameters are one fact.

    Attributes:
        checkpoint: name of the checkpoint that the fitness was measured on.
        index: place within that checkpoint, for one that holds several models; else 0.
        step: step of the weights, as training counts it.
        fitness: the number as measured; None while there is none.
        order: sort key, higher is better; -inf for nan, infinities and infeasible trials; None while there is no
            fitness.
        measurements: how many times it was measured; `fitness` is the mean of those that differ. 0 while its
            evaluation is awaited; without a fitness and above 0 its evaluation failed for good.
        stderr: standard error of the fitness; None where it is not known.
        criteria: the metrics that the fitness was made of; None where the fitness is the metric.
        age: age of the weights: steps trained in this study along their lineage. Weights that were imported
            have age 0, whatever step they are at.
        progress: the member's progress when the trial completed.
    """

    trial: int
    member: int
    checkpoint: str
    index: int
    step: int
    params: JsonObject
    fitness: float | None
    order: float | None
    measurements: int = 1
    stderr: float | None = None
    criteria: Criteria | None = None
    age: int = 0
    progress: int = 0

    def __post_init__(self) -> None:
        # A strategy that changed them would change what was trained with them.
        if type(self.params) is not ReadOnly:
            object.__setattr__(self, "params", ReadOnly(self.params))

    @property
    def orders(self) -> tuple[float, ...]:
        """Sort keys of the goals that are traded off, or the one of a single fitness; empty without a fitness."""
        if self.criteria is not None and self.criteria.orders:
            return self.criteria.orders
        return () if self.order is None else (self.order,)

    @property
    def judged(self) -> bool:
        """Whether its evaluation has ended."""
        return self.measurements > 0

    @property
    def can_donate(self) -> bool:
        """Whether its score is a finite number and feasible, so that others may choose it."""
        return self.order is not None and self.order > float("-inf")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One slot of the population.

    Attributes:
        index: 0 .. the study's population_size - 1.
        progress: its clock, in steps. It grows by the steps of each completed trial; when the member took over
            weights that were older, it first jumps to their age. It never decreases.
        generation: number of its completed trials, after `joined_generation`.
        decided_at: `progress` at which its last trial that took over a state, or explored, started; or 0.
        head: its last completed trial, the one it continues from.
        states: what others may see of it: its last completed trials, newest first.
        best: where the strategy keeps elites, the best state with a finite score of those that it published
            before `states`.
        current_trial: id of its running or queued trial.
        broken_trial: id of the broken or stopped trial that the next decision replaces.
        replacements: broken and stopped trials replaced at this generation.
        measures_left: how many more times its head is to be measured before the next decision.
        slot: where its last trial ran, as `host:slot`; a worker there may still hold its weights.
        stops: how many of the replaced trials were stopped early by a rule.
        retired: it was taken out when the population shrank, and is done for good; it has no head any more.
        joined_steps: of a member that joined later: the `progress` it was given then, none of which it trained.
        joined_generation: the same for `generation`.
    """

    study: int
    index: int
    state: MemberState
    progress: int = 0
    generation: int = 0
    decided_at: int = 0
    head: Scored | None = None
    states: tuple[Scored, ...] = ()
    best: Scored | None = None
    current_trial: int | None = None
    broken_trial: int | None = None
    replacements: int = 0
    measures_left: int = 0
    slot: str | None = None
    stops: int = 0
    retired: bool = False
    joined_steps: int = 0
    joined_generation: int = 0

    @property
    def given_up(self) -> bool:
        """Whether it ended because its trials broke again and again; once the study is resumed it tries again."""
        ended = self.state is MemberState.DONE and not self.retired
        return ended and self.broken_trial is not None and not self.stops

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Sort key, best first."""
        return rank(self.index, None if self.head is None else self.head.order, retired=self.retired)

    @property
    def published(self) -> Scored | None:
        """Its newest state that does not wait for its evaluation, or None."""
        for state in self.states:
            if state.judged:
                return state
        return None


def rank(index: int, order: float | None, *, retired: bool) -> tuple[bool, float, int]:
    """Return what members are sorted by where the best come first; those without a fitness come last."""
    return retired, float("inf") if order is None else -order, index


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Members in the same situation, counted; the other fields are as in `Member`."""

    size: int
    state: MemberState
    progress: int
    generation: int
    retired: bool
    given_up: bool
    joined_steps: int
    joined_generation: int
