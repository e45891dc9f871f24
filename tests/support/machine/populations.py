"""Populations made of lists, for testing rules by themselves."""

import math
from collections.abc import Mapping, Sequence
from typing import overload

import numpy as np

from phyla.records import (
    Goal,
    JobKind,
    JobState,
    JsonObject,
    Maximize,
    Member,
    MemberState,
    Score,
    Scored,
    TrialRecord,
)
from phyla.space import Float, Space
from phyla.strategies import Context, History

ANY_SPACE = Space(lr=Float(0.1, 1.0))


def context(
    rng: np.random.Generator | int = 0,
    *,
    space: Space = ANY_SPACE,
    objective: Goal | None = None,
    history: History | None = None,
) -> Context:
    """What a decision goes by; a number seeds its generator."""
    return Context(
        space=space,
        objective=objective or Maximize("Q"),
        rng=np.random.default_rng(rng),
        now=1_000_000.0,
        history=Listed() if history is None else history,
    )


def source(params: JsonObject) -> Scored:
    """A trial whose hyperparameters are taken over."""
    return Scored(trial=1, member=0, checkpoint="1.1", index=0, step=1, params=params, fitness=0.0, order=0.0)


class Listed(Sequence[Member]):
    """Members with the given scores, oldest first, and their trials: one of unbroken training for each score."""

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
            progress=len(scores),
            generation=len(scores),
            head=published,
            states=() if published is None else (published,),
            best=self._best(index),
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
            state=JobState.COMPLETED,
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
            age=row.end_step,
            progress=row.end_step,
        )

    def __len__(self) -> int:
        return len(self.slots)

    @overload
    def __getitem__(self, place: int) -> Member: ...

    @overload
    def __getitem__(self, place: slice) -> list[Member]: ...

    def __getitem__(self, place: int | slice) -> Member | list[Member]:
        return self.slots[place]

    def member(self, index: int) -> Member:
        return self.slots[index]

    def _best(self, index: int) -> Scored | None:
        own = [self.scored_trial(trial) for trial, row in self.trials.items() if row.member == index]
        return max((one for one in own if one.can_donate), key=lambda one: one.order or 0.0, default=None)

    def trial(self, trial_id: int) -> TrialRecord:
        return self.trials[trial_id]

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        done = [t for t in self.trials.values() if t.state is JobState.COMPLETED and t.kind is JobKind.TRAIN]
        return done[::-1][:count]

    def ended(self, age: int | None) -> Sequence[TrialRecord]:
        abandoned = [t for t in self.trials.values() if t.state is JobState.FAILED or t.stop_reason is not None]
        done = [] if age is None else self.last_completed(len(self.trials))[::-1]
        came = [trial for trial in done if trial.reached_age is not None and trial.reached_age >= (age or 0)]
        return sorted([*abandoned, *came], key=lambda trial: (trial.ended_at or 0.0, trial.id))

    def scores(self) -> Sequence[Score]:
        done = self.last_completed(len(self.trials))[::-1]
        return [Score(t.id, t.parent, t.generation, math.nan if t.order is None else t.order) for t in done]

    def unfinished(self) -> Sequence[TrialRecord]:
        return [t for t in self.trials.values() if t.state in (JobState.PENDING, JobState.RUNNING)]

    def results(self, generation: int) -> Mapping[int, float]:
        done = self.last_completed(len(self.trials))[::-1]
        return {t.member: t.order for t in done if t.generation == generation and t.order is not None}
