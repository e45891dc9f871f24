"""One chain of trials that was trained before, trained again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from phyla.errors import ConfigurationError, SpaceError
from phyla.records import JsonObject, Member, TrialRecord
from phyla.space import Space
from phyla.strategies.checks import check_integer
from phyla.strategies.decision import Decision, Start
from phyla.strategies.fitness import FitnessRule, Last
from phyla.strategies.from_suite import FromSuite
from phyla.strategies.protocol import Population
from phyla.strategies.starts import replaces, stopped
from phyla.strategies.strategy import Context, Strategy

_LAST = Last()
_NAMES = ("trial", "start_step", "end_step", "seed", "params")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Replay(Strategy):
    """One member trains the given trials again, one after the other.

    Hyperparameters, steps and seeds are those of the trials. A training function that depends on nothing else
    leaves the same checkpoint, bit for bit. A trial that breaks is tried again, with the same seed.

    Source: Li et al. 2019, A generalized framework for population based training, arXiv 1902.01894, section 3
    (training replay).

    Args:
        trials: mappings with `trial` (its id in the study it comes from), `start_step`, `end_step`, `seed` and
            `params`, root first; each begins where the one before ended, which may be before the step that it was
            asked to reach. `phyla.replay` makes them.
        of: name of the study they come from.
        fitness: how the reports of one trial become its fitness, or the suite that gives it (`FromSuite`).

    Raises:
        ConfigurationError: there are no trials, one of them is malformed, or they do not join.
    """

    trials: Sequence[Mapping[str, Any]]
    of: str = ""
    fitness: FitnessRule | FromSuite = _LAST

    def __post_init__(self) -> None:
        if not isinstance(self.trials, list | tuple) or not self.trials:
            raise ConfigurationError(f"Replay(trials={self.trials!r}): must be a list of at least one trial")
        trials: list[Mapping[str, Any]] = []
        for entry in self.trials:
            if not isinstance(entry, Mapping) or set(entry) != set(_NAMES):
                raise ConfigurationError(f"Replay(trials=...): {entry!r} must have exactly {', '.join(_NAMES)}")
            start, params = entry["start_step"], entry["params"]
            check_integer("Replay", "start_step", start, 0)
            check_integer("Replay", "end_step", entry["end_step"], start + 1)
            check_integer("Replay", "seed", entry["seed"], 0)
            if not isinstance(params, Mapping):
                raise ConfigurationError(f"Replay(params={params!r}): must map names to values")
            before = trials[-1] if trials else None
            if before is not None and not before["start_step"] < start <= before["end_step"]:
                raise ConfigurationError(
                    f"Replay(trials=...): trial {entry['trial']} starts at step {start}, but the one before it, "
                    f"trial {before['trial']}, trained from step {before['start_step']} to {before['end_step']}"
                )
            trials.append({**entry, "params": dict(params)})
        object.__setattr__(self, "trials", tuple(trials))

    @classmethod
    def along(
        cls, ancestry: Sequence[TrialRecord], *, of: str = "", fitness: FitnessRule | FromSuite = _LAST
    ) -> "Replay":
        """Return the replay of trials, root first.

        A trial that stopped before its end is asked for the same end, so that it can stop at the same step.

        Raises:
            ConfigurationError: there are none, or they do not join.
        """
        trials = [
            {
                "trial": row.id,
                "start_step": row.start_step,
                "end_step": row.end_step,
                "seed": row.seed,
                "params": dict(row.params),
            }
            for row in ancestry
        ]
        return cls(trials=trials, of=of, fitness=fitness)

    @property
    def population_size(self) -> int:
        """One member."""
        return 1

    @property
    def member_steps(self) -> int:
        """Steps of all trials."""
        return int(self.trials[-1]["end_step"] - self.trials[0]["start_step"])

    @property
    def pareto(self) -> bool:
        """Yes; it compares nothing."""
        return True

    def check_space(self, space: Space) -> None:
        """Refuse trials whose hyperparameters the space does not allow.

        Raises:
            SpaceError: names the trial and what is wrong with its hyperparameters.
        """
        for index, again in enumerate(self.trials):
            try:
                space.validate(again["params"])
            except SpaceError as error:
                raise SpaceError(
                    f"Replay(trials=...): entry {index}, trial {again['trial']} from step {again['start_step']} "
                    f"on: {error}. A replay needs a space that allows what was trained"
                ) from error

    def finished(self, member: Member) -> bool:
        """Return whether the member has trained them all."""
        return member.generation >= len(self.trials)

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Train the next one.

        Raises:
            SpaceError: the space does not allow its hyperparameters.
        """
        stop = stopped(member)
        if stop is not None:
            return stop
        again = self.trials[member.generation]
        reached = again["start_step"] if member.head is None else member.head.step
        reason: JsonObject = {"decision": "replay", "of": self.of, "trial": again["trial"], **replaces(member)}
        return Start(
            weights=member.head,
            params=context.space.validate(again["params"]),
            params_from=None,
            steps=max(1, again["end_step"] - reached),
            reason=reason,
            seed=again["seed"],
        )
