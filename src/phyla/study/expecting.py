"""How many trials a member is still expected to complete, from what is stored of a strategy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, final

from phyla.records import JsonObject, Member, MemberState


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much a strategy trains, as plain data: to look at a study, its strategy is not made.

    Attributes:
        member_steps: steps that each member is to spend in all; None if that is not known.
        steps_per_trial: length of a trial; None for one trial of all steps, 0 if that is not known.
        strategy: the strategy as it is stored.
    """

    member_steps: int | None
    steps_per_trial: int | None
    strategy: Mapping[str, Any]

    @classmethod
    def of(cls, config: JsonObject) -> Self:
        """Read it from a study's configuration; what an older phyla did not store is not known."""
        raw: Any = config.get("plan") or {}
        strategy: Any = config["strategy"]
        return cls(
            member_steps=raw.get("member_steps"), steps_per_trial=raw.get("steps_per_trial", 0), strategy=strategy
        )

    def trials_left(self, member: Member) -> int | None:
        """Return how many more trials a member is expected to complete; None if that cannot be known.

        It is known of a strategy that has `member_steps` and `steps_per_trial`, and of ours whose trials differ in
        length. Trials that end early make it more.
        """
        if member.retired or member.state is MemberState.DONE:
            return 0
        if self.member_steps is None:
            return None
        spent, until = member.progress, self.member_steps
        kind = self.strategy["plugin"]
        if kind == "phyla.strategies/replay":
            return len(self.strategy["trials"]) - member.generation
        if kind == "phyla.strategies/single-worker-explore":
            lengths = [self.strategy["explore_steps"]] * 3 + [self.strategy["exploit_steps"]]
            return _of_cycles(lengths, spent, until, member.generation % 4)
        length = self.steps_per_trial
        if kind == "phyla.strategies/fixed-schedule":
            switches = [step for step, _ in self.strategy["schedule"] if step > spent]
            return _between([spent, *switches, until], length)
        return None if length == 0 else _between([spent, until], length)


def _between(ends: Sequence[int], length: int | None) -> int:
    """Return how many trials of at most `length` steps it takes, each ending at the next end at the latest."""
    spans = (after - before for before, after in pairwise(ends) if after > before)
    return sum(1 if length is None else -(-span // length) for span in spans)


def _of_cycles(lengths: Sequence[int], spent: int, until: int, phase: int) -> int:
    whole = max(0, until - spent) // sum(lengths)
    left = max(0, until - spent) - whole * sum(lengths)
    trials = 4 * whole
    while left > 0:
        left -= lengths[phase]
        phase = (phase + 1) % 4
        trials += 1
    return trials
