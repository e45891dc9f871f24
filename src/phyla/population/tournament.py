"""Exploit rules that compare a member with one other, or with the best."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from phyla.errors import ConfigurationError
from phyla.population.exploit import Exploit, Exploited, facts, unfit
from phyla.population.protocol import History, Population, ranked
from phyla.population.strategy import Context
from phyla.records import JsonObject, Member, Scored
from phyla.significance import welch


@final
@dataclass(frozen=True, slots=True)
class BinaryTournament(Exploit):
    """A member is compared with one other, drawn uniformly, and copies it if that is strictly better.

    Others without a score are drawn, too; then nothing is copied. Source: Jaderberg et al. 2017, section 4.1.1
    (binary tournament).
    """

    def choose(self, member: Member, population: Population, context: Context) -> Exploited:
        """Decide about one member."""
        reason: JsonObject = {"rule": "binary-tournament"}
        mine = member.published
        if mine is None or mine.order is None:
            return Exploited(donor=None, reason={**reason, "why": "it has no score yet"})
        other = opponent_of(member, population, context)
        if other is None:
            return Exploited(donor=None, reason={**reason, "why": "it is the only member"})
        theirs = other.published
        if theirs is None or theirs.order is None:
            return Exploited(donor=None, reason={**reason, "opponent": other.index, "why": "no score to compare"})
        met: JsonObject = {**reason, "own": facts(mine), "opponent": facts(theirs)}
        if not theirs.can_donate or theirs.order <= mine.order:
            return Exploited(donor=None, reason={**met, "why": "the opponent is not better"})
        return Exploited(donor=theirs, reason={**met, "donor": facts(theirs)})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TTest(Exploit):
    """A member is compared with one other, drawn uniformly, and copies it if that is significantly better.

    Compared are the last scores of both, one per trial, as far back as the member trained its weights itself,
    by Welch's t-test, two-sided. The other is copied if its mean is better and p is below alpha. Scores that
    do not vary at all decide by themselves: 6, 6, 6 beats 5, 5, 5, as p is then 0; equal constants do not. nan
    and infinite scores are left out; but a member whose last score is one copies without a test, since it
    has nothing to lose. With fewer than two scores of either nothing is copied.

    Source: Jaderberg et al. 2017, section 4.1.1 (t-test selection; last 10 scores, 5 %).

    Args:
        window: how many scores of each are compared at most, at least 2.
        alpha: level of significance, in (0, 1).

    Raises:
        ConfigurationError: a number is out of range.
    """

    window: int = 10
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 2:
            raise ConfigurationError(
                f"TTest(window={self.window!r}): must be an integer of at least 2, or there is no variance"
            )
        if not 0 < self.alpha < 1:
            raise ConfigurationError(
                f"TTest(alpha={self.alpha!r}): a level of significance lies between 0 and 1, as in 0.05"
            )

    def choose(self, member: Member, population: Population, context: Context) -> Exploited:
        """Decide about one member."""
        reason: JsonObject = {"rule": "t-test", "window": self.window, "alpha": self.alpha}
        mine = member.published
        if mine is None or mine.order is None:
            return Exploited(donor=None, reason={**reason, "why": "it has no score yet"})
        other = opponent_of(member, population, context)
        if other is None:
            return Exploited(donor=None, reason={**reason, "why": "it is the only member"})
        theirs = other.published
        if theirs is None or not theirs.can_donate:
            return Exploited(
                donor=None, reason={**reason, "opponent": other.index, "why": "the opponent has no finite score"}
            )
        if not mine.can_donate:
            return Exploited(
                donor=theirs, reason={**reason, "own": facts(mine), "donor": facts(theirs), "why": unfit(mine)}
            )
        first, second = _scores(theirs, context.history, self.window), _scores(mine, context.history, self.window)
        met: JsonObject = {**reason, "own": facts(mine), "opponent": facts(theirs)}
        met = {**met, "own_scores": len(second), "opponent_scores": len(first)}
        if min(len(first), len(second)) < 2:
            return Exploited(donor=None, reason={**met, "why": "too few scores"})
        p = welch(*_summary(first), *_summary(second), alternative="two-sided")
        met = {**met, "p": p}
        if statistics.fmean(first) <= statistics.fmean(second):
            return Exploited(donor=None, reason={**met, "why": "the opponent is not better"})
        if not p < self.alpha:
            return Exploited(donor=None, reason={**met, "why": "the difference is not significant"})
        return Exploited(donor=theirs, reason={**met, "donor": facts(theirs)})


@final
@dataclass(frozen=True, slots=True)
class WinnerTakesAll(Exploit):
    """Every member but the best copies the best.

    With `PBT(quorum=1.0)` it is the winner-takes-all of learned_optimization's population based
    training: after every trial all members go on from the single best, with hyperparameters of their own. Give
    `fitness=MeanOfLast(k)` to compare means of the scores within a trial instead of the last one.

    Members with the best's very score are left alone. Source: the library learned_optimization (Metz et al.),
    population mutators.
    """

    def choose(self, member: Member, population: Population, context: Context) -> Exploited:
        """Decide about one member."""
        mine = member.published
        scores = ranked(population)
        reason: JsonObject = {"rule": "winner-takes-all", "of": len(scores)}
        if mine is None or mine.order is None:
            return Exploited(donor=None, reason={**reason, "why": "it has no score yet"})
        best = scores[0]
        if not best.can_donate or best.order is None or best.order <= mine.order:
            return Exploited(donor=None, reason={**reason, "own": facts(mine), "why": "nobody is better"})
        return Exploited(donor=best, reason={**reason, "own": facts(mine), "donor": facts(best)})


def _summary(values: Sequence[float]) -> tuple[float, float, int]:
    """Return the mean of at least two values, its standard error, and how many there are."""
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)), len(values)


def opponent_of(member: Member, population: Population, context: Context) -> Member | None:
    """Draw one of the other members uniformly; None if there are none."""
    others = [other for other in population if other.index != member.index]
    return others[int(context.rng.integers(len(others)))] if others else None


def _scores(scored: Scored, history: History, window: int) -> list[float]:
    """Return the last finite sort keys of trials that trained these weights, newest first."""
    found: list[float] = [] if scored.order is None else [scored.order]
    trial = history.trial(scored.trial)
    while len(found) < window and trial.jump_from is None and trial.parent is not None:
        trial = history.trial(trial.parent)
        if trial.order is not None and math.isfinite(trial.order):
            found.append(trial.order)
    return found
