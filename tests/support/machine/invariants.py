"""What must hold in every study, whatever happens; checked while studies are simulated."""

from collections.abc import Callable, Sequence
from typing import Any, cast, final

from phyla.controller import Controller
from phyla.errors import LeaseLost
from phyla.machine import Claimed, Completion, KeptCheckpoints, Reader, TrainRules
from phyla.records import JobState, StudyState, TrialRecord
from phyla.testing import SimulatedRun
from phyla.testing.simulator import Simulator
from stories import Stories


class MachineDefect(AssertionError):
    """The machine did what it never may."""


@final
class Invariants:
    """Follows trials from claim to end, and raises MachineDefect with the story of the trial.

    `state_of` returns the state of a trial, and `story_of` its story.
    """

    def __init__(
        self, rules: TrainRules, state_of: Callable[[int], JobState], story_of: Callable[[int], str]
    ) -> None:
        self._rules = rules
        self._state_of = state_of
        self._story_of = story_of
        self._newest: dict[int, tuple[int, int]] = {}
        self._spent = [0] * rules.strategy.population_size

    def claimed(self, trial: TrialRecord) -> None:
        """A trial was given to a worker: its member has no other, and its token is the next."""
        newest, token = self._newest.get(trial.member, (0, 0))
        if newest not in (0, trial.id) and self._state_of(newest) is JobState.FAILED:
            newest, token = 0, 0
        if newest not in (0, trial.id) or trial.token != token + 1:
            stories = map(self._story_of, sorted({trial.id, newest} - {0}))
            raise MachineDefect(
                f"member {trial.member} got trial {trial.id} with token {trial.token}, and its newest attempt was "
                f"{token} of trial {newest}\n" + "\n".join(stories)
            )
        self._newest[trial.member] = (trial.id, trial.token)

    def completed(self, trial: TrialRecord, steps: int) -> None:
        """A trial completed with that many steps."""
        del self._newest[trial.member]
        self._spent[trial.member] += steps

    def collected(self, found: KeptCheckpoints) -> None:
        """Checkpoints were looked at: no more are kept than the formula says."""
        fitness = self._rules.suite_fitness
        others = [suite for suite in self._rules.suites if fitness is None or suite.name != fitness.suite]
        if self._rules.keep_every_steps is None and not others and len(found.kept) > found.bound:
            raise MachineDefect(f"{len(found.kept)} checkpoints are kept, and the bound is {found.bound}")

    def finished(self, view: Reader) -> None:
        """The study completed: each member spent what it completed, and no less than the strategy says."""
        for index in range(view.study().population_size):
            member = view.member(index)
            if member.progress < self._spent[index]:
                raise MachineDefect(
                    f"member {index} completed {self._spent[index]} steps, and only {member.progress} are counted"
                )
        for trial in view.unfinished():
            raise MachineDefect(f"the study completed, and trial {trial.id} has not\n{self._story_of(trial.id)}")


class CheckedController:
    """A controller that is compared with the invariants; all but what they need goes on as it is."""

    def __init__(self, simulator: Simulator) -> None:
        self._stories = Stories(simulator.store)
        self._controller = self._stories.listen(simulator.controller)
        self._trials: dict[int, TrialRecord] = {}

        def state_of(trial: int) -> JobState:
            with simulator.store.reader(simulator.study) as reader:
                return reader.trial(trial).state

        self.invariants = Invariants(simulator.rules, state_of, self._stories.story)

    def complete(self, done: Sequence[Any], *args: Any, **how: Any) -> Any:
        answers, claimed, rest = self._controller.complete(done, *args, **how)
        for one, answer in zip(done, answers, strict=True):
            if isinstance(one, Completion):
                if isinstance(answer, LeaseLost):
                    raise MachineDefect(
                        f"a worker that renewed its lease lost it: {answer}\n{self._stories.story(one.trial)}"
                    )
                trial = self._trials[one.trial]
                self.invariants.completed(trial, trial.end_step - trial.start_step)
        for work in claimed:
            if isinstance(work, Claimed):
                self._trials[work.trial.id] = work.trial
                self.invariants.claimed(work.trial)
        return answers, claimed, rest

    def retention(self) -> KeptCheckpoints:
        found = self._controller.retention()
        self.invariants.collected(found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)


def run_checked(simulator: Simulator) -> SimulatedRun:
    """Simulate to the end, or raise a MachineDefect when something happens that never may."""
    checked = CheckedController(simulator)
    simulator.controller = cast("Controller", checked)
    run = simulator.run()
    if run.state is StudyState.COMPLETED:
        with simulator.store.reader(simulator.study) as reader:
            checked.invariants.finished(reader)
    return run
