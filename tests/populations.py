"""Populations made of lists, for testing rules by themselves."""

import math
from collections.abc import Sequence

from phyla.records import Maximize, Member, MemberState, Objective, Scored, TrialRecord, TrialState


class Listed:
    """Members with the given scores, oldest first; each score is that of one trial of unbroken training."""

    def __init__(self, *scores: Sequence[float], objective: Objective | None = None) -> None:
        self.objective = objective or Maximize("Q")
        self.trials: dict[int, TrialRecord] = {}
        self.members = [self._member(index, values) for index, values in enumerate(scores)]

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
        self, member: int, generation: int, fitness: float, parent: int | None, jump: int | None = None
    ) -> int:
        trial = TrialRecord(
            id=len(self.trials) + 1,
            study=1,
            member=member,
            generation=generation,
            state=TrialState.COMPLETED,
            parent=parent,
            jump_from=jump,
            params={},
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
        return len(self.members)

    def _ranked(self) -> list[Member]:
        scored = [m for m in self.members if m.published and m.published.order is not None]
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
        return self.members[index]

    def lowest_generation(self) -> int | None:
        return min((member.generation for member in self.members), default=None)

    def elites(self) -> int:
        return len(self._elites())

    def elite_at_rank(self, rank: int) -> Scored:
        return self._elites()[rank]

    def _elites(self) -> list[Scored]:
        best = []
        for index in range(self.size):
            own = [self.scored_trial(trial) for trial, row in self.trials.items() if row.member == index]
            finite = [scored for scored in own if scored.can_donate]
            best += [max(finite, key=lambda scored: scored.order or 0.0)] if finite else []
        return sorted(best, key=lambda scored: (scored.order or 0.0, scored.member), reverse=True)

    def trial(self, trial_id: int) -> TrialRecord:
        return self.trials[trial_id]
