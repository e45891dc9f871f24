"""What must hold in every study, whatever happens; checked while one is simulated."""

from collections.abc import Callable
from typing import final

from phyla.machine import Retention, TrainRules, View
from phyla.records import JobState, TrialRecord


class MachineDefect(RuntimeError):
    """The machine, or a strategy, did what it never may."""


@final
class Invariants:
    """Follows trials from claim to end, and raises MachineDefect; `state_of` tells the state of a trial."""

    def __init__(self, rules: TrainRules, state_of: Callable[[int], JobState]) -> None:
        self._rules = rules
        self._state_of = state_of
        self._newest: dict[int, tuple[int, int]] = {}
        self._spent = [0] * rules.strategy.population_size

    def claimed(self, trial: TrialRecord) -> None:
        """A trial was given to a worker: its member has no other, and its token is the next."""
        newest, token = self._newest.get(trial.member, (0, 0))
        if newest not in (0, trial.id) and self._state_of(newest) is JobState.FAILED:
            newest, token = 0, 0
        if newest not in (0, trial.id) or trial.token != token + 1:
            raise MachineDefect(
                f"member {trial.member} got trial {trial.id} with token {trial.token}, and its newest attempt was "
                f"{token} of trial {newest}"
            )
        self._newest[trial.member] = (trial.id, trial.token)

    def completed(self, trial: TrialRecord, steps: int) -> None:
        """A trial completed with that many steps."""
        del self._newest[trial.member]
        self._spent[trial.member] += steps

    def collected(self, found: Retention) -> None:
        """Checkpoints were looked at: no more are kept than the formula says."""
        fitness = self._rules.suite_fitness
        others = [suite for suite in self._rules.suites if fitness is None or suite.name != fitness.suite]
        if self._rules.keep_every_steps is None and not others and len(found.kept) > found.bound:
            raise MachineDefect(f"{len(found.kept)} checkpoints are kept, and the bound is {found.bound}")

    def finished(self, view: View) -> None:
        """The study completed: each member spent what it completed, and no less than the strategy says."""
        for index in range(view.size):
            member = view.member(index)
            if member.progress < self._spent[index]:
                raise MachineDefect(
                    f"member {index} completed {self._spent[index]} steps, and only {member.progress} are counted"
                )
        if view.unfinished():
            raise MachineDefect("the study completed, and there are unfinished trials")
