"""Populations made of lists, for testing rules by themselves."""

import math
from collections.abc import Sequence

import numpy as np

from phyla.population import Context
from phyla.records import (
    Goal,
    JsonObject,
    Maximize,
    Member,
    MemberState,
    Scored,
    TrialKind,
    TrialRecord,
    TrialState,
)
from phyla.space import Float, Space

ANY_SPACE = Space(lr=Float(0.1, 1.0))


def context(
    rng: np.random.Generator | int = 0, *, space: Space = ANY_SPACE, objective: Goal | None = None
) -> Context:
    """What a decision goes by; a number seeds its generator."""
    return Context(
        space=space, objective=objective or Maximize("Q"), rng=np.random.default_rng(rng), now=1_000_000.0
    )


def source(params: JsonObject) -> Scored:
    """A trial whose hyperparameters are taken over."""
    return Scored(trial=1, member=0, checkpoint="1.1", index=0, step=1, params=params, fitness=0.0, order=0.0)


class Listed:
    """Members with the given scores, oldest first; each score is that of one trial of unbroken training."""

    def __init__(self, *scores: Sequence[float], objective: Goal | None = None) -> None:
        self.objective = objective or Maximize("Q")
        self.trials: dict[int, TrialRecord] = {}
        self.slots = [self._member(index, values) for index, values in enumerate(scores)]

    def _member(self, index: int, scores: Sequence[float]) -> Member:
        parent = None
        for generation, fitness in enumerate(scores):
            parent = self.add(index, generation, fitness, parent)
        published = None if parent is None else self.scored_trial(parent)
        return Member(
            study=1,
            index=index,
            state=MemberState.READY,
            spent_steps=len(scores),
            generation=len(scores),
            head=published,
            published=published,
        )

    def add(
        self,
        member: int,
        generation: int,
        fitness: float,
        parent: int | None,
        jump: int | None = None,
        params: JsonObject | None = None,
    ) -> int:
        trial = TrialRecord(
            id=len(self.trials) + 1,
            study=1,
            member=member,
            generation=generation,
            state=TrialState.COMPLETED,
            parent=parent,
            jump_from=jump,
            params=params or {},
            start_step=generation,
            end_step=generation + 1,
            reached_step=generation + 1,
            seed=0,
            fitness=fitness,
            order=self.objective.order(fitness),
            checkpoint=f"{len(self.trials) + 1}.1",
            created_at=0.0,
        )
        self.trials[trial.id] = trial
        return trial.id

    def scored_trial(self, trial: int) -> Scored:
        row = self.trials[trial]
        return Scored(
            trial=trial,
            member=row.member,
            checkpoint=str(row.checkpoint),
            index=0,
            step=row.end_step,
            params=row.params,
            fitness=row.fitness,
            order=row.order,
        )

    @property
    def size(self) -> int:
        return len(self.slots)

    def _ranked(self) -> list[Member]:
        scored = [m for m in self.slots if m.published and m.published.order is not None]
        return sorted(scored, key=self._key, reverse=True)

    @staticmethod
    def _key(member: Member) -> tuple[float, int]:
        order = member.published.order if member.published else None
        return (-math.inf if order is None else order), member.index

    def scored(self) -> int:
        return len(self._ranked())

    def rank(self, member: Member) -> int:
        return sum(self._key(other) > self._key(member) for other in self._ranked())

    def at_rank(self, rank: int) -> Member:
        return self._ranked()[rank]

    def member(self, index: int) -> Member:
        return self.slots[index]

    def vectors(self) -> Sequence[tuple[int, tuple[float, ...]]]:
        return [(m.index, m.published.orders) for m in self.slots if m.published and m.published.can_donate]

    def lowest_generation(self) -> int | None:
        return min((member.generation for member in self.slots), default=None)

    def most_spent(self) -> int | None:
        return max((member.spent_steps for member in self.slots), default=None)

    def elites(self) -> int:
        return len(self._elites())

    def elite_at_rank(self, rank: int) -> Scored:
        return self._elites()[rank]

    def ranked_elites(self) -> Sequence[Scored]:
        return self._elites()

    def _elites(self) -> list[Scored]:
        best = []
        for index in range(self.size):
            own = [self.scored_trial(trial) for trial, row in self.trials.items() if row.member == index]
            finite = [scored for scored in own if scored.can_donate]
            best += [max(finite, key=lambda scored: scored.order or 0.0)] if finite else []
        return sorted(best, key=lambda scored: (scored.order or 0.0, scored.member), reverse=True)

    def trial(self, trial_id: int) -> TrialRecord:
        return self.trials[trial_id]

    def members(self) -> Sequence[Member]:
        return self.slots

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        done = [t for t in self.trials.values() if t.state is TrialState.COMPLETED and t.kind is TrialKind.TRAIN]
        return done[::-1][:count]

    def ended(self, step: int | None) -> Sequence[TrialRecord]:
        abandoned = [t for t in self.trials.values() if t.state is TrialState.FAILED or t.stop_reason is not None]
        done = [] if step is None else self.last_completed(len(self.trials))[::-1]
        came = [trial for trial in done if trial.reached_step is not None and trial.reached_step >= (step or 0)]
        return sorted([*abandoned, *came], key=lambda trial: (trial.ended_at or 0.0, trial.id))

    def unfinished(self) -> Sequence[TrialRecord]:
        return [t for t in self.trials.values() if t.state in (TrialState.PENDING, TrialState.RUNNING)]

    def scored_in(self, generation: int) -> int:
        return len(self.orders(generation, 0, len(self.trials)))

    def ahead(self, generation: int, order: float) -> tuple[int, int]:
        orders = self.orders(generation, 0, len(self.trials))
        return sum(o > order for o in orders), orders.count(order)

    def orders(self, generation: int, rank: int, count: int) -> list[float]:
        done = [t for t in self.last_completed(len(self.trials)) if t.generation == generation]
        return sorted((t.order for t in done if t.order is not None), reverse=True)[rank : rank + count]

    def next_age(self, after: int) -> int | None:
        ages = [m.published.step for m in self._ranked() if m.published]
        return min((age for age in ages if age > after), default=None)

    def rank_among(self, ages: tuple[int, int], order: float, member: int) -> int:
        return sum(self._key(other) > (order, member) for other in self._aged(ages))

    def at_rank_among(self, ages: tuple[int, int], rank: int) -> tuple[float, int]:
        return self._key(self._aged(ages)[rank])

    def _aged(self, ages: tuple[int, int]) -> list[Member]:
        return [m for m in self._ranked() if m.published and ages[0] <= m.published.step <= ages[1]]
