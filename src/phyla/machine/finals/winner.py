"""The winner of a study: the best by a final, else by the estimate of how good each checkpoint is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import final

from phyla.machine.view import Reader
from phyla.records import CheckpointState, JobState, StudyRecord, StudyState, TrialRecord
from phyla.strategies.estimate import estimate_scores
from phyla.strategies.final import Expected, expected, final_of, next_due


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The best trial of a study, and how good it really is.

    Attributes:
        trial: the trial.
        expected: what its score is expected to be when it is measured again; None where scores are exact, or there
            are too few to tell.
        measurements: how many measurements of a final that comes from; 0 if it is an estimate from the scores of
            its lineage.
        noise: standard deviation of the noise of one score by the scores of the study; None if it is not known.
        unclear: whether there are too few trials to tell if scores are exact or noisy; False after a final.
        luckiest: the trial with the best score, if that is another one.
        lead: by how much it is better than the next best newest trial of a member, by estimate; None if it is not
            known.
    """

    trial: TrialRecord
    expected: Expected | None = None
    measurements: int = 0
    noise: float | None = None
    unclear: bool = False
    luckiest: TrialRecord | None = None
    lead: float | None = None


@final
class Standing:
    """The scores of a study, and what they say about its trials."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._luckiest = next(iter(reader.best_trials(1)), None)
        self._estimates, self._places = estimate_scores(reader.scores())

    def candidates(self, count: int) -> list[TrialRecord]:
        """Return the candidates of a final; empty without a finite score on a checkpoint that is kept."""
        if self._luckiest is None:
            return []
        trials = {self._places[trial.id]: trial for trial in (*self._heads(), self._luckiest)}
        return [trials[place] for place in self._estimates.candidates(trials, self._place, count)]

    def winner(self, *, maximize: bool) -> Winner | None:
        """Return the winner by estimate; None without a finite score on a checkpoint that is kept."""
        luckiest, estimates = self._luckiest, self._estimates
        if luckiest is None:
            return None
        heads = {self._places[trial.id]: trial for trial in self._heads()}
        place = estimates.winner(heads, self._place)
        trial = heads.get(place, luckiest)
        return Winner(
            trial=trial,
            expected=estimates.expected(place, members=len(heads), maximize=maximize),
            noise=estimates.known_noise,
            unclear=estimates.unclear,
            luckiest=None if estimates.exact or trial.id == luckiest.id else luckiest,
            lead=None if estimates.exact else estimates.lead(place, heads),
        )

    @property
    def _place(self) -> int:
        assert self._luckiest is not None
        return self._places[self._luckiest.id]

    def _heads(self) -> list[TrialRecord]:
        """Return the newest trials of all members that have a score and a checkpoint."""
        heads = {member.head.trial for member in self._reader.members() if not member.retired and member.head}
        trials = self._reader.chosen_trials(sorted(heads & self._places.keys()))
        return [trial for trial in trials if trial.order is not None and self._is_live(trial)]

    def _is_live(self, trial: TrialRecord) -> bool:
        row = self._reader.checkpoint(trial.checkpoint or "")
        return row is not None and row.state is CheckpointState.LIVE


def find_winner(reader: Reader, *, maximize: bool) -> Winner | None:
    """Return the winner of a study whose objective has no trade-offs: of its final once that has ended."""
    study, standing = reader.study(), Standing(reader)
    by_estimate = standing.winner(maximize=maximize)
    final = final_of(study.config)
    if final is None or by_estimate is None or study.state is not StudyState.COMPLETED:
        return by_estimate
    measured = measurements(reader.final_trials(), study)
    candidates = {trial.id: trial for trial in standing.candidates(final.candidates) if trial.id in measured}
    due = next_due(final, list(candidates), orders(measured))
    if due.winner is None:
        return by_estimate
    scores = [trial.fitness for trial in measured[due.winner][due.confirming :] if trial.fitness is not None]
    if not scores:
        return by_estimate
    luckiest = by_estimate.luckiest or by_estimate.trial
    return Winner(
        trial=candidates[due.winner],
        expected=expected(scores),
        measurements=len(scores),
        noise=by_estimate.noise,
        luckiest=None if luckiest.id == due.winner else luckiest,
    )


def count_measurements(reader: Reader) -> tuple[int, int] | None:
    """Return how many measurements of the final have ended, and how many it takes; None before it begins."""
    study = reader.study()
    final = final_of(study.config)
    trials = [] if final is None else list(chain(*measurements(reader.final_trials(), study).values()))
    if final is None or not trials:
        return None
    return sum(trial.ended_at is not None for trial in trials), max(final.measurements, len(trials))


def measurements(trials: Sequence[TrialRecord], study: StudyRecord) -> dict[int, list[TrialRecord]]:
    """Return the measurements of a final by the trial that is measured.

    Cancelled ones do not count, nor do those without a score that ended before the study was resumed.
    """
    measured: dict[int, list[TrialRecord]] = {}
    resumed_at = -math.inf if study.resumed_at is None else study.resumed_at
    for trial in trials:
        past = lacks_score(trial) and (trial.ended_at or 0.0) < resumed_at
        if trial.parent is not None and trial.state is not JobState.CANCELLED and not past:
            measured.setdefault(trial.parent, []).append(trial)
    return measured


def lacks_score(trial: TrialRecord) -> bool:
    """Return whether a measurement ended without a score: it failed, or a value is not finite.

    An infeasible one has a score.
    """
    if trial.ended_at is None or (trial.order is not None and math.isfinite(trial.order)):
        return False
    return trial.criteria is None or not all(map(math.isfinite, trial.criteria.values.values()))


def orders(measured: dict[int, list[TrialRecord]]) -> dict[int, list[float | None]]:
    """Return the sort keys of measurements; minus infinity for those that failed, None for those that run."""
    return {parent: [_order(trial) for trial in trials] for parent, trials in measured.items()}


def _order(trial: TrialRecord) -> float | None:
    if trial.ended_at is None:
        return None
    return trial.order if trial.order is not None else float("-inf")
