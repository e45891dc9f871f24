"""Asynchronous successive halving (Li et al. 2018, arXiv 1810.05934)."""

import math
from dataclasses import dataclass
from typing import final

from phyla.records import JsonObject, Member
from phyla.strategies.fitness import LAST, FitnessRule, FromSuite
from phyla.strategies.starts import end_if_broken, proceed, sampled
from phyla.strategies.strategy import Context, Decision, History, Independent, Population, Stop, Wait
from phyla.validation import check, setting_error


@final
@dataclass(frozen=True, slots=True)
class ASHA(Independent):
    """Many members start, and few continue: those that are among the best so far at each rung.

    Rungs lie at `min_steps`, `min_steps * reduction_factor`, and so on, the last at `total_steps`; one trial leads
    from one to the next. A member is promoted as soon as it is among the best `1 / reduction_factor`, rounded
    down, of those that have completed its rung, which may turn out to be a mistake. Otherwise it waits, and is
    stopped once results of others can no longer promote it. Members whose score is infeasible, nan or infinite are
    stopped at once, but count as completed. Of equal scores the one promoted earlier goes first, then the lower
    index. Unlike in the paper, members that have not started go before promotions, and promotions from lower rungs
    before those from higher ones: the more results are known, the fewer are promoted by mistake.

    Source: Li et al. 2020, arXiv 1810.05934, algorithm 2. With `quorum=1.0`: Jamieson and Talwalkar 2016, arXiv
    1502.07943 (successive halving).

    Args:
        members: number of members, each with hyperparameters of its own; enough for one to reach the last rung.
        total_steps: steps of a member that reaches the last rung.
        min_steps: steps to the first rung.
        reduction_factor: one in this many members at a rung is promoted; at least 2.
        fitness: where the fitness of a trial comes from; `FromSuite` needs `quorum=1.0`.
        quorum: at 1.0 a rung is complete before any member is promoted: whole studies are then the same with any
            number of workers, but workers may be idle.
    """

    members: int
    total_steps: int
    min_steps: int
    reduction_factor: int = 3
    fitness: FitnessRule | FromSuite = LAST
    quorum: float = 0.0
    exclusive = True
    member_steps = None

    def __post_init__(self) -> None:
        check(self, members=1, total_steps=1, min_steps=1, reduction_factor=2, quorum="[0, 1]")
        if self.min_steps > self.total_steps:
            raise setting_error(self, "total_steps min_steps", "the first rung may not lie beyond the last")
        if isinstance(self.fitness, FromSuite) and self.quorum < 1:
            raise setting_error(self, "fitness", "a rung must have all results of a suite; use quorum=1.0")
        self._check_members()

    @property
    def rungs(self) -> tuple[int, ...]:
        """Steps that a member has spent at each rung, ascending."""
        steps, rungs = self.min_steps, []
        while steps < self.total_steps:
            rungs.append(steps)
            steps *= self.reduction_factor
        return (*rungs, self.total_steps)

    def _check_members(self) -> None:
        """Reject fewer members than it takes to promote one to the last rung."""
        factor, rungs = self.reduction_factor, self.rungs
        counts = [self.members // factor**rung for rung in range(len(rungs))]
        if counts[-1] > 0:
            return
        last = counts.index(0)
        trained = ", ".join(
            f"{count} at step {step}" for count, step in zip(counts[: last + 1], rungs, strict=False)
        )
        needed, higher = factor ** (len(rungs) - 1), -(-self.total_steps // factor ** (last - 1))
        use = f"use at least {needed} members, or min_steps={higher}"
        why = f"no member would reach step {self.total_steps}: there would be {trained}; {use}"
        raise setting_error(self, "members total_steps min_steps reduction_factor", why)

    def line(self, progress: int) -> int:
        return sum(rung <= progress for rung in self.rungs)

    def finished(self, member: Member) -> bool:
        return member.generation >= len(self.rungs) or member.progress >= self.total_steps

    def check_extension(self, stored: JsonObject) -> None:
        """Reject more steps if members may have ended where no rung is now: they would train no more."""
        ended = stored["total_steps"]
        if isinstance(ended, int) and ended < self.total_steps and ended not in self.rungs:
            rungs = ", ".join(map(str, self.rungs))
            why = f"members of this study end at step {ended}, which is none of the rungs {rungs}"
            raise setting_error(self, "total_steps", f"{why}; give a study with these rungs another name")

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        steps = max(1, self.rungs[member.generation] - member.progress)
        if member.head is None:
            return sampled(member, steps, context)
        if member.broken_trial is not None:
            # It was promoted before, so a failed trial is retried.
            return end_if_broken(member) or proceed(member, steps)
        if not member.head.judged:
            return Wait(reason={"why": "its evaluation"})
        rung, order = member.generation - 1, member.head.order
        if order is None or not math.isfinite(order):
            return Stop(reason={"why": "its score is not finite"})
        rank, count = _place(member, order, population, context.history)
        place: JsonObject = {"rule": "asha", "rung": rung, "rank": rank + 1, "of": count}
        if rank < count // self.reduction_factor:
            return proceed(member, steps, decision="promote", compared=place)
        # Members of lower rungs decided before this one, so every member that may still arrive is being trained.
        coming = any(trial.generation <= rung for trial in context.history.unfinished())
        if not coming or rank >= self.members // self.reduction_factor:
            return Stop(reason={**place, "why": f"it can no longer be among the best of rung {rung}"})
        return Wait(reason={**place, "why": f"others at rung {rung}"})


def _place(member: Member, order: float, population: Population, history: History) -> tuple[int, int]:
    """Return how many members that completed the member's rung rank before it, and how many completed it."""
    rung = member.generation - 1
    results = history.results(rung)
    better = sum(other > order for other in results.values())
    equal = {other for other, theirs in results.items() if theirs == order} - {member.index}
    if not equal:
        return better, len(results)
    # Members stopped at this rung are not in the population of the comparison.
    promoted = {*history.results(rung + 1)}
    promoted |= {trial.member for trial in history.unfinished() if trial.generation > rung}
    promoted |= {other.index for other in population if other.broken_trial is not None}
    return better + sum(other in promoted or other < member.index for other in equal), len(results)
