"""Trials with hyperparameters that are known in advance: a schedule, or a chain of earlier trials."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, final

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, Member, TrialRecord
from phyla.space import Space, run_check
from phyla.strategies.checks import check_steps
from phyla.strategies.explore import changes_of
from phyla.strategies.fitness import LAST, FitnessRule, FromSuite
from phyla.strategies.starts import end_if_stopped, fresh, proceed, replaces
from phyla.strategies.strategy import Context, Decision, Independent, Population, Start, Strategy
from phyla.validation import check, check_value, plain, setting_error

_NAMES = ("trial", "start_step", "end_step", "seed", "params")


@final
@dataclass(frozen=True, slots=True)
class FixedSchedule(Independent):
    """Every member trains with hyperparameters that switch at given steps, each with another seed.

    A trial ends at each switch. One that breaks is tried again with another seed; one that a stopping rule ends,
    ends its member. Source: the library learned_optimization (Metz et al.), fixed schedules among its population
    mutators.

    Args:
        schedule: pairs of the step from which on hyperparameters hold and all of these, flat or nested; the first
            step is 0 and steps increase.
        total_steps: steps each member spends in all.
        members: number of members.
        steps_per_trial: steps of one trial at most; None ends trials at switches only.
        fitness: where the fitness of a trial comes from: its reports, or a suite (`FromSuite`).
    """

    schedule: Sequence[tuple[int, Mapping[str, Any]]]
    total_steps: int
    members: int = 1
    steps_per_trial: int | None = None
    fitness: FitnessRule | FromSuite = LAST
    pareto = True

    def __post_init__(self) -> None:
        check(self, members=1)
        check_steps(self)
        least = 0
        for entry in self.schedule:
            if not isinstance(entry, Sequence) or len(entry) != 2 or not isinstance(entry[1], Mapping):
                raise setting_error(
                    self, "schedule", "not a pair of a step and hyperparameters, such as (1000, {'lr': 0.1})"
                )
            least = check_value("FixedSchedule", "step", entry[0], least) + 1
        first = self.schedule[0][0] if self.schedule else "nothing"
        if first != 0:
            raise ConfigurationError(
                f"FixedSchedule(schedule=...): it starts with {first}, but must start with step 0"
            )
        if least > self.total_steps:
            raise setting_error(self, "total_steps", f"the switch at step {least - 1} is never reached")
        object.__setattr__(self, "schedule", tuple((plain(step), dict(params)) for step, params in self.schedule))

    def check_space(self, space: Space) -> None:
        for index, (step, wanted) in enumerate(self.schedule):
            where = f"FixedSchedule(schedule=...): entry {index}, from step {step} on, {wanted!r}"
            run_check(space.validate, wanted, where)

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        stop = end_if_stopped(member)
        if stop is not None:
            return stop
        spent = member.progress
        at = bisect_right(self.schedule, spent, key=lambda entry: entry[0])
        since, wanted = self.schedule[at - 1]
        until = self.schedule[at][0] if at < len(self.schedule) else self.total_steps
        steps = min(self.steps_per_trial or until, until - spent)
        params: JsonObject = context.space.validate(wanted)
        if member.head is None:
            return fresh(member, params, steps, decision="start", since=since)
        changes = changes_of(member.head.params, params, "schedule")
        start = proceed(member, steps, decision="schedule", since=since, changes=changes)
        return replace(start, params=params, params_from=None) if changes else start


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Replay(Strategy):
    """One member trains the given trials again, one after the other.

    Hyperparameters, steps and seeds are those of the trials; a trial that stopped before its end is asked for
    the same end. A training function that depends on nothing else leaves the same checkpoint, bit for bit. A
    trial that breaks is tried again, with the same seed.

    Source: Li et al. 2019, A generalized framework for population based training, arXiv 1902.01894, section 3
    (training replay).

    Args:
        trials: mappings with `trial` (its id in the study it comes from), `start_step`, `end_step`, `seed` and
            `params`, root first; each begins where the one before ended. `phyla.replay` makes them.
        of: name of the study they come from.
        fitness: how the reports of one trial become its fitness, or the suite that gives it (`FromSuite`).
    """

    trials: Sequence[Mapping[str, Any]]
    of: str = ""
    fitness: FitnessRule | FromSuite = LAST
    population_size = 1
    pareto = True

    def __post_init__(self) -> None:
        if not isinstance(self.trials, list | tuple) or not self.trials:
            raise setting_error(self, "trials", "must be a list of at least one trial")
        for entry in self.trials:
            if not isinstance(entry, Mapping) or set(entry) != set(_NAMES):
                raise ConfigurationError(f"Replay(trials=...): {entry!r} must have exactly {', '.join(_NAMES)}")
            for name in ("trial", "seed", "start_step"):
                start = check_value("Replay", name, entry[name], 0)
            check_value("Replay", "end_step", entry["end_step"], start + 1)
            if not isinstance(entry["params"], Mapping):
                raise ConfigurationError(f"Replay(params={entry['params']!r}): must map names to values")
        for before, entry in pairwise(self.trials):
            if not before["start_step"] < entry["start_step"] <= before["end_step"]:
                raise ConfigurationError(f"Replay(trials=...): {entry!r} does not start where {before!r} ended")
        trials = tuple(
            {**{name: plain(entry[name]) for name in _NAMES[:-1]}, "params": dict(entry["params"])}
            for entry in self.trials
        )
        object.__setattr__(self, "trials", trials)

    @classmethod
    def along(
        cls, ancestry: Sequence[TrialRecord], *, of: str = "", fitness: FitnessRule | FromSuite = LAST
    ) -> "Replay":
        """Return the replay of trials, root first."""
        trials = [{"trial": row.id, **{name: getattr(row, name) for name in _NAMES[1:]}} for row in ancestry]
        return cls(trials=trials, of=of, fitness=fitness)

    @property
    def member_steps(self) -> int:
        return int(self.trials[-1]["end_step"] - self.trials[0]["start_step"])

    def check_space(self, space: Space) -> None:
        for index, again in enumerate(self.trials):
            where = f"Replay(trials=...): entry {index}, trial {again['trial']} from step {again['start_step']} on"
            run_check(
                space.validate, again["params"], f"A replay needs a space that allows what was trained. {where}"
            )

    def finished(self, member: Member) -> bool:
        return member.generation >= len(self.trials)

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        stop = end_if_stopped(member)
        if stop is not None:
            return stop
        again = self.trials[member.generation]
        reached = again["start_step"] if member.head is None else member.head.step
        return Start(
            weights=member.head,
            params=context.space.validate(again["params"]),
            params_from=None,
            steps=max(1, again["end_step"] - reached),
            reason={"decision": "replay", "of": self.of, "trial": again["trial"], **replaces(member)},
            seed=again["seed"],
        )
