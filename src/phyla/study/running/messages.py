"""Messages of a run about its study, during the run and at its end."""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from phyla import queries
from phyla.errors import StoreError
from phyla.formatting import duration
from phyla.machine import RECENT, Reader, TrainRules, expected_s
from phyla.queries import Summary
from phyla.records import Attempt, AttemptState, GroupState, MemberState, StudyRecord, TrialRecord
from phyla.settings import system_clock
from phyla.study.results.findings import date, findings
from phyla.study.results.progress import Failures, Throttle

if TYPE_CHECKING:
    from phyla.store import Store
    from phyla.supervision.term import Term
LOG = logging.getLogger("phyla")
GROUPS = 100
"""Groups of a suite that one look reads."""
EVERY_S = 1.0


@final
class Lookout:
    """Checks a study periodically, and logs each probable mistake once.

    A check must not end a run: where the database fails, the next check reports it.
    """

    def __init__(self, study: str, rules: TrainRules) -> None:
        self._study = study
        self._after = {suite.name: 0 for suite in rules.suites}
        self._said: set[tuple[str, str]] = set()
        self._throttle = Throttle(EVERY_S)

    def look(self, store: "Store", study: int, *, at_once: bool = False, failures: Failures | None = None) -> None:
        """Log what is new, if it is time or `at_once`; `failures` are those that nothing else shows."""
        with self._throttle.turn(at_once=at_once) as due, contextlib.suppress(StoreError):
            if not due:
                return
            for suite in [*self._after]:
                self._look_at_suite(store, study, suite)
            for attempt in failures.new(store, study) if failures is not None else ():
                LOG.warning("%s", attempt.words)
            for finding in store.look(study, findings):
                if (finding.kind, finding.about) not in self._said:
                    self._said.add((finding.kind, finding.about))
                    LOG.warning("warning: %s", finding.text)

    def _look_at_suite(self, store: "Store", study: int, suite: str) -> None:
        """Warn if the first evaluation of a suite failed, or a part of it."""
        all_ended = True
        for group in store.look(study, queries.groups, suite=suite, after=self._after[suite], limit=GROUPS):
            failed = group.state is GroupState.PARTIAL
            if failed or group.state is GroupState.COMPLETE:
                del self._after[suite]
            if failed:
                LOG.warning(
                    "warning: the evaluation of suite %r is incomplete: %s. Its results are kept. Correct the "
                    "suite; phyla evaluations %s shows what failed and how to evaluate it again",
                    *(suite, group.why, self._study),
                )
            if suite not in self._after:
                return
            all_ended = all_ended and group.state is not GroupState.QUEUED
            if all_ended:
                self._after[suite] = group.id


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Achieved:
    """Recent progress of a study.

    Attributes:
        now: the database's time, in seconds since the epoch.
        unfinished: the trials that are running or queued, by id.
        completed: the last completed trials, newest first.
        attempts: the attempts at the unfinished trials.
        times: when their progress was saved, and when trials and eval jobs ended.
    """

    study: StudyRecord
    now: float
    unfinished: list[TrialRecord]
    completed: list[TrialRecord]
    attempts: list[Attempt]
    times: list[float]


def achieved(reader: Reader) -> Achieved:
    """Return the recent progress of a study."""
    study, trials, completed = reader.study(), reader.unfinished(), reader.last_completed(RECENT)
    saved = filter(None, (reader.checkpoint(trial.progress or "") for trial in trials))
    evaluated = reader.eval_jobs() if study.config.get("suites") else ()
    ended = [*(job.ended_at for job in completed), *(job.ended_at for job in evaluated)]
    return Achieved(
        study=study,
        now=reader.now(),
        unfinished=list(trials),
        completed=list(completed),
        attempts=[attempt for trial in trials for attempt in reader.attempts(trial.id)],
        times=[*(row.created_at for row in saved), *(at for at in ended if at is not None)],
    )


def explain_futility(state: Achieved, term: "Term") -> str | None:
    """Return why repeating a run after its time limit would achieve nothing; None where it may help."""
    study, trials, completed = state.study, state.unfinished, state.completed
    ahead_s = state.now - system_clock()  # of our clock
    here = [attempt for attempt in state.attempts if attempt.claimed_at >= term.began_at + ahead_s]
    cut = [
        at - attempt.claimed_at for attempt in here if (at := attempt.ended_at or 0.0) >= term.stops_at + ahead_s
    ]
    useful = any(at >= term.began_at + ahead_s for at in state.times)
    # Failed trials end after some attempts, and released ones had time left.
    if useful or not trials or (here and not cut) or any(attempt.state is AttemptState.FAILED for attempt in here):
        return None
    longest_s, expected = max(cut, default=0.0), expected_s(trials[0], completed)
    takes = (
        f"more than the {duration(longest_s)} that it had" if expected is None else f"about {duration(expected)}"
    )
    save = "training calls trial.save_progress() when trial.should_save"
    if isinstance(study.config.get("train"), Mapping):
        save = 'the command completes {save_to}, then appends {"step": 25, "saved": true} to {metrics}'
    return (
        f"nothing can be completed within the time limit of {duration(term.limit_s)}: a trial takes {takes}, this "
        "run completed none and saved no progress, and so would the next one. Raise the limit (time_limit_s, "
        "--time-limit), make trials shorter (steps_per_trial), or save progress, as often as --save-every says: "
        f"{save}"
    )


def say_nothing_to_do(summary: Summary) -> None:
    """Log that a study is already complete, since when, and how to continue."""
    study, completed = summary.study, summary.counts.get("completed", 0)
    ended = 0.0 if summary.newest is None else summary.newest.ended_at or 0.0
    trials = "trial was" if completed == 1 else f"{completed} trials were"
    since = f": its {trials} completed on {date(ended)}" if completed else ""
    early = any(cohort.state is not MemberState.DONE for cohort in summary.cohorts)
    why = f" ({study.message})" if early and study.message else ""
    strategy: Any = study.config["strategy"]
    extend = "change what ended it" if why else "raise total_steps"
    more = (
        f"To train longer, {extend} in the file, then: phyla change FILE (in Python: study.change()), and run it "
        "again. To start from scratch, which deletes what is stored, run it with --overwrite "
        f"{study.name} (in Python: overwrite=True); to keep it, give the study another name"
    )
    if strategy["plugin"] == "phyla.strategies/replay":  # no file declares it, and it ends where the original did
        more = "To train it once more, give the new study another name with --name (in Python: name=)"
    LOG.warning("nothing to do: study %r is complete%s%s. %s", study.name, since, why, more)
