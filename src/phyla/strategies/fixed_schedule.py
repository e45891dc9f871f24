"""Hyperparameters that switch at given steps."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from phyla.errors import ConfigurationError, SpaceError
from phyla.records import Json, JsonObject, Member
from phyla.space import Space
from phyla.strategies.checks import check_integer, check_steps
from phyla.strategies.decision import Decision, Start
from phyla.strategies.fitness import FitnessRule, Last
from phyla.strategies.from_suite import FromSuite
from phyla.strategies.protocol import Population
from phyla.strategies.starts import fresh, replaces, stopped
from phyla.strategies.strategy import Context, Strategy

_LAST = Last()


@final
@dataclass(frozen=True, slots=True)
class FixedSchedule(Strategy):
    """Every member trains with hyperparameters that switch at given steps.

    With one member it replays a schedule; with more, each trains the same schedule with seeds of its own,
    which shows how much of a result is chance. A trial ends at each switch. A trial that breaks is tried again
    with the same hyperparameters and another seed; one that a stopping rule ends, ends its member.

    Source: the library learned_optimization (Metz et al.), fixed schedules among its population mutators.

    Args:
        schedule: pairs of the step from which on hyperparameters hold and all of these, flat or nested; the
            first step is 0 and steps increase.
        total_steps: steps each member spends in all.
        members: number of members.
        steps_per_trial: steps of one trial at most; None ends trials at switches only.
        fitness: how the reports of one trial become its fitness, or the suite that gives it (`FromSuite`).

    Raises:
        ConfigurationError: a number is out of range, or the schedule is none.
    """

    schedule: Sequence[tuple[int, Mapping[str, Any]]]
    total_steps: int
    members: int = 1
    steps_per_trial: int | None = None
    fitness: FitnessRule | FromSuite = _LAST

    def __post_init__(self) -> None:
        check_integer("FixedSchedule", "members", self.members, 1)
        check_steps("FixedSchedule", self.steps_per_trial, self.total_steps)
        pairs: list[tuple[int, Mapping[str, Any]]] = []
        for entry in self.schedule:
            if not isinstance(entry, Sequence) or len(entry) != 2 or not isinstance(entry[1], Mapping):
                raise ConfigurationError(
                    f"FixedSchedule(schedule=...): {entry!r} is no pair of a step and hyperparameters, as in "
                    "(1000, {'lr': 0.1})"
                )
            check_integer("FixedSchedule", "step", entry[0], pairs[-1][0] + 1 if pairs else 0)
            pairs.append((entry[0], dict(entry[1])))
        if not pairs or pairs[0][0] != 0:
            first = repr(pairs[0][0]) if pairs else "nothing"
            raise ConfigurationError(f"FixedSchedule(schedule=...): it starts with {first}; it has to with step 0")
        if pairs[-1][0] >= self.total_steps:
            raise ConfigurationError(
                f"FixedSchedule(total_steps={self.total_steps}): the switch at step {pairs[-1][0]} never comes"
            )
        object.__setattr__(self, "schedule", tuple(pairs))

    @property
    def population_size(self) -> int:
        """Number of members."""
        return self.members

    @property
    def member_steps(self) -> int:
        """Steps each member spends in all."""
        return self.total_steps

    @property
    def pareto(self) -> bool:
        """Yes; nothing is compared."""
        return True

    def check_space(self, space: Space) -> None:
        """Refuse a schedule whose hyperparameters the space does not allow.

        Raises:
            SpaceError: names the step and what is wrong with its hyperparameters.
        """
        for index, (step, wanted) in enumerate(self.schedule):
            try:
                space.validate(wanted)
            except SpaceError as error:
                raise SpaceError(
                    f"FixedSchedule(schedule=...): entry {index}, from step {step} on, {wanted!r}: {error}. Each "
                    "entry gives all hyperparameters, as the space allows them"
                ) from error

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Train up to the next switch at most.

        Raises:
            SpaceError: the space does not allow the schedule's hyperparameters.
        """
        stop = stopped(member)
        if stop is not None:
            return stop
        spent = member.progress
        at = bisect_right(self.schedule, spent, key=lambda entry: entry[0]) - 1
        since, wanted = self.schedule[at]
        until = self.schedule[at + 1][0] if at + 1 < len(self.schedule) else self.total_steps
        steps = until - spent if self.steps_per_trial is None else min(self.steps_per_trial, until - spent)
        params: JsonObject = context.space.validate(wanted)
        reason: JsonObject = {"decision": "schedule", "since": since}
        if member.head is None:
            return fresh(member, params, steps, {**reason, "decision": "start"})
        before = member.head.params
        changes: dict[str, Json] = {
            name: {"from": before.get(name), "to": params.get(name), "by": "schedule"}
            for name in {**before, **params}
            if before.get(name) != params.get(name)
        }
        return Start(
            weights=member.head,
            params=params,
            params_from=None if changes else member.head.trial,
            steps=steps,
            reason={**reason, "changes": changes, **replaces(member)},
        )
