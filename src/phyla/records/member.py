"""A member: one slot of the population; its history is a chain of trials."""

from dataclasses import dataclass
from enum import StrEnum
from typing import final

from phyla.records.criteria import Criteria
from phyla.records.drafts import drafted
from phyla.records.json import JsonObject


class MemberState(StrEnum):
    """What a member is doing."""

    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"


@final
@drafted
@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A completed trial as others may take it over: score, weights and hyperparameters are one fact.

    Attributes:
        trial: id of the trial.
        member: the member whose trial it is.
        checkpoint: name of the checkpoint the fitness was measured on.
        index: place within that checkpoint, for one that holds several models; else 0.
        step: age of the weights.
        params: the trial's hyperparameters.
        fitness: the number as measured; None while there is none.
        order: sort key, higher is better; -inf for nan, infinities and infeasible trials; None while there is no
            fitness.
        measurements: how many times it was measured; `fitness` is their mean.
        stderr: standard error of the fitness; None where it is not known.
        criteria: the metrics that the fitness was made of; None where the fitness is the metric.
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

    @property
    def orders(self) -> tuple[float, ...]:
        """Sort keys of the goals that are traded off, or the one of a single fitness; empty without a fitness."""
        if self.criteria is not None and self.criteria.orders:
            return self.criteria.orders
        return () if self.order is None else (self.order,)

    @property
    def can_donate(self) -> bool:
        """Whether its score is a finite number and feasible, so that others may choose it."""
        return self.order is not None and self.order > float("-inf")


@final
@drafted
@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One slot of the population.

    Attributes:
        study: id of the study.
        index: 0 .. the study's population_size - 1.
        state: ready for a decision, running (or queued for a retry), waiting, or done.
        spent_steps: steps of its completed trials, after `joined_steps`; never decreases.
        generation: number of its completed trials, after `joined_generation`.
        decided_steps: `spent_steps` when it last took over somebody's state, or 0.
        spent_s: seconds that its completed trials took, each from the claim of the attempt that completed it to
            its completion, by the store's clock; never decreases.
        decided_s: `spent_s` when it last took over somebody's state, or 0.
        head: its last completed trial, the one it continues from.
        published: what the population sees of it; in synchronous studies it lags behind `head`.
        recent: its last fitness values since it last took over somebody's weights, oldest first.
        current_trial: id of its running or queued trial.
        broken_trial: id of the broken or stopped trial that the next decision replaces.
        replacements: broken and stopped trials replaced at this generation.
        stops: how many of these were stopped early by a rule.
        measures_left: how many more times its head is to be measured before the next decision.
        slot: where its last trial ran, as `host:slot`; a worker there may still hold its weights.
        wait_generation: waits until every active member reached this generation.
        wait_until: waits until this time.
        wait_reason: what it waits for, in words.
        retired: it was taken out when the population shrank, and is done for good; it has no head any more.
        joined_steps: of a member that joined later: the `spent_steps` it was given then, none of which it trained.
        joined_generation: the same for `generation`.
    """

    study: int
    index: int
    state: MemberState
    spent_steps: int = 0
    generation: int = 0
    decided_steps: int = 0
    head: Scored | None = None
    published: Scored | None = None
    recent: tuple[float, ...] = ()
    current_trial: int | None = None
    broken_trial: int | None = None
    replacements: int = 0
    measures_left: int = 0
    slot: str | None = None
    wait_generation: int | None = None
    wait_until: float | None = None
    wait_reason: str | None = None
    stops: int = 0
    retired: bool = False
    joined_steps: int = 0
    joined_generation: int = 0
    spent_s: float = 0.0
    decided_s: float = 0.0

    @property
    def trained_steps(self) -> int:
        """Steps that it trained itself."""
        return self.spent_steps - self.joined_steps
