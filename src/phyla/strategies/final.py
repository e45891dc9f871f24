"""A final: when training has ended, the best candidates are measured again, and new scores name the winner."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from phyla.records import JsonObject
from phyla.significance import mean_interval, mean_of
from phyla.validation import check, setting_error


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """Measure the best candidates again when training has ended; the winner is the best by these measurements.

    The rounds cost about the same. Each drops the worse half of the candidates, by the mean of all their new
    measurements; the last one measures the winner alone, so luck does not inflate its expected score.

    Source: sequential halving (Karnin, Koren and Somekh 2013, Almost optimal exploration in multi-armed bandits,
    ICML, algorithm 3), with one more round for the winner.

    Args:
        candidates: checkpoints in the first round: the one with the best score, and the best by estimate of the
            members' newest ones.
        measurements: how many there are in all rounds together. A measurement is a trial without steps or, where
            a suite gives the fitness, one more evaluation; each has another seed.

    Raises:
        ConfigurationError: a number is out of range, or there are too few measurements for the candidates.
    """

    candidates: int = 8
    measurements: int = 32

    def __post_init__(self) -> None:
        check(self, candidates=1, measurements=2)
        least = sum(_sizes(self.candidates)) + 1
        if self.measurements < least:
            why = f"{self.candidates} candidates need at least {least} measurements"
            raise setting_error(self, "measurements candidates", why)

    def rounds(self, count: int) -> list[tuple[int, int]]:
        """Return of each round how many of `count` candidates are in it, and the measurements of each."""
        sizes, rounds, left = _sizes(count), list[tuple[int, int]](), self.measurements
        for place, size in enumerate(sizes):
            each = max(1, left // (len(sizes) - place) // size)
            rounds.append((size, each))
            left -= size * each
        return rounds


def final_of(config: JsonObject) -> Final | None:
    """Read the final from a stored configuration; None without one."""
    stored: Any = config.get("final")
    return None if stored is None else Final(**stored)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What a final needs next.

    Attributes:
        candidates: the candidates to measure, each as often as it is listed; empty while all measurements run.
        winner: the winner, once it is known: of the last round, which may not have ended.
        confirming: how many measurements of the winner ended before it was known; the later ones give its expected
            score.
    """

    candidates: tuple[int, ...] = ()
    winner: int | None = None
    confirming: int = 0


def next_due(final: Final, candidates: Sequence[int], measured: Mapping[int, Sequence[float | None]]) -> Due:
    """Return what a final needs next.

    Args:
        final: the settings.
        candidates: the ids of the candidates, the best by estimate first; of equal ones the earlier stays.
        measured: the sort keys of the measurements of each, in the order in which they began, higher is better;
            None for one that has not ended. A candidate with one that is not finite is out.
    """
    scores = {candidate: measured.get(candidate, ()) for candidate in candidates}
    left = [
        candidate
        for candidate in candidates
        if all(score is None or math.isfinite(score) for score in scores[candidate])
    ]
    done = before = 0
    # As many rounds as with all candidates, so that the number of measurements stays right.
    for size, each in final.rounds(len(candidates)) if left else ():
        left, before = left[:size], done
        done += each
        missing = [candidate for candidate in left for _ in range(done - len(scores[candidate]))]
        ended = all(None not in scores[candidate][:done] for candidate in left)
        if missing or not ended:
            return Due(candidates=tuple(missing), winner=left[0] if size == 1 else None, confirming=before)
        left.sort(key=lambda candidate: -mean_of(_known(scores[candidate][:done])))
    return Due(winner=left[0] if left else None, confirming=before)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a score is expected to be when it is measured again.

    Attributes:
        value: the mean of new measurements, or an estimate.
        low: lower end of the 95 % interval of what the mean of very many measurements would be.
        high: its upper end.
    """

    value: float
    low: float
    high: float


def expected(values: Sequence[float]) -> Expected | None:
    """Return the expected score by measurements of one checkpoint; None without any.

    The interval is Student's. That of one measurement is infinite.
    """
    if not values:
        return None
    low, high = mean_interval(values)
    return Expected(value=mean_of(values), low=low, high=high)


def _known(scores: Sequence[float | None]) -> list[float]:
    return [score for score in scores if score is not None]


def _sizes(count: int) -> list[int]:
    """Return how many candidates are in each round: half as many each time, down to the winner alone."""
    sizes = [count]
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 1) // 2)
    return sizes
