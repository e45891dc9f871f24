"""What is probably wrong with a study although nothing raised: found in what is stored, and said once."""

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, final

from phyla.errors import StoreError
from phyla.formatting import counted, duration
from phyla.machine import RECENT, SAME_SAMPLES, TrainRules, expected_s
from phyla.records import AttemptState, GroupState, JobKind, JobState, MemberState, StudyState, TrialRecord
from phyla.settings import system_clock
from phyla.study.results.progress import Failures, Throttle
from phyla.validation import suggestion

if TYPE_CHECKING:
    from phyla.launchers import Term
    from phyla.store import Reader, Store

LOG = logging.getLogger("phyla")

LOOKED_AT = 20
"""Completed trials that one look reads at most of the first ones, and of the newest ones."""

GROUPS = 100
"""Groups of a suite that one look reads."""

EVERY_S = 1.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is probably wrong.

    Its kind is `source`, `parameter`, `metric`, `steps`, `checkpoint`, `code`, `samples` or `scores`.
    """

    kind: str
    text: str
    about: str = ""  # where there may be several of one kind


def findings(reader: "Reader") -> Iterator[Finding]:
    """Yield what is probably wrong with a study."""
    study = reader.study()
    code: Any = study.config.get("code")
    train = study.config.get("train")
    command, who = isinstance(train, Mapping), "train()" if train else "the loop"
    if code is not None and code["began"] != code["now"]:
        where = f" in {code['file']}" if "file" in code else ""
        yield Finding(
            kind="code",
            text=f"{code['name']}{where} changed since this study began on {date(study.created_at)}; "
            "earlier trials were trained by the old code. To train all of it by the new code, run it with "
            f"--overwrite {study.name} (in Python: overwrite=True), which deletes what is stored, or under "
            "another name",
        )
    first = [trial for trial in reader.trials(after=0, limit=LOOKED_AT) if trial.state is JobState.COMPLETED]
    seen = {trial.id: trial for trial in (*first, *reader.last_completed(LOOKED_AT))}
    trials = [trial for _, trial in sorted(seen.items()) if trial.kind is JobKind.TRAIN]
    noticed: list[tuple[TrialRecord, Any]] = []
    for trial in trials:
        attempt = reader.attempt(trial.id, trial.token)
        if attempt is not None:
            noticed.append((trial, attempt.noticed))
    given = [its for trial, its in noticed if trial.parent_checkpoint is not None]
    if given and all(its.get("untouched") for its in given):
        yield Finding(
            kind="source",
            text="the command has no {source}: every trial starts from scratch. Pass the script the directory to "
            "load from, as in ['--resume', '{source}']"
            if command
            else f"{who} did not load trial.source: every trial starts from scratch. Load the weights from "
            "trial.source.path if trial.source is not None",
        )
    unread: dict[str, bool] = {}
    for trial, its in noticed:
        for name in trial.params:
            unread[name] = unread.get(name, True) and name in its.get("unread", ())
    for name in (name for name, never in unread.items() if never):
        yield Finding(
            kind="parameter",
            text=f"the command has no {{{name}}}: the values of this hyperparameter change nothing. Pass it to "
            "the script, or leave it out of the space"
            if command
            else f"{who} never read the hyperparameter {name!r}: its values change nothing. Read "
            f"trial.params[{name!r}], or leave it out of the space",
            about=name,
        )
    space: Any = study.config["space"]
    points = len(space.get("initial") or ())
    members = sum(one.size for one in reader.cohorts()) if points else 0
    if points > members:
        yield Finding(
            kind="starting points",
            text=f"Space(initial=...) has {counted(points, 'starting point')}, and the study "
            f"{counted(members, 'member')}: the rest starts nothing. Leave it out, or have more members",
        )
    reported = {metric: None for trial in trials for metric in trial.metrics}
    stopping: Any = study.config.get("stopping") or {"rules": ()}
    for metric in (rule.get("metric") for rule in stopping["rules"]):
        if reported and isinstance(metric, str) and metric not in reported:
            yield Finding(
                kind="metric",
                text=f"a stopping rule watches {metric!r}, which no trial reported, so it stops nothing; "
                f"{suggestion(metric, reported)}",
                about=metric,
            )
    for event in (event for event in reader.events() if event.kind == SAME_SAMPLES):
        yield Finding(kind="samples", text=event.message, about=event.suite or "")
    for trial, its in [(trial, its) for trial, its in noticed if "steps" in its][:1]:
        first, last = its["steps"]
        names = "{start_step} to {end_step}" if command else "trial.start_step to trial.end_step"
        yield Finding(
            kind="steps",
            text=f"trial {trial.id} trained from step {trial.start_step} to step {trial.end_step}, and reported "
            f"steps from {first} to {last}. A step is the age of the weights, by which trials are compared: count "
            f"from {names}, not from 0 in each trial",
        )
    trained = [trial for trial in trials if trial.parent_checkpoint not in (None, trial.checkpoint)]
    # Single ones may be equal to their parents, as where training has converged.
    if trained and all(_same_bytes(reader, trial) for trial in trained):
        one = trained[0]
        yield Finding(
            kind="checkpoint",
            text="every checkpoint equals its parent's byte for byte, although steps were trained (trial "
            f"{one.id}: steps {one.start_step} to {one.reached_step}). Train the model that you save, and save it "
            "after training",
        )
    scores = [trial.fitness for trial in trials if trial.fitness is not None]
    none = bool(scores) and not any(map(math.isfinite, scores)) and not reader.best_trials(1)
    if none and study.state is StudyState.COMPLETED:
        kinds = " or ".join(dict.fromkeys(map(str, scores)))
        yield Finding(
            kind="scores",
            text=f"no trial has a finite score: the scores of all {reader.counts().get('completed', 0)} completed "
            f"trials are {kinds}. Nothing could be selected. Look at what training reports",
        )


def _same_bytes(reader: "Reader", trial: TrialRecord) -> bool:
    mine, parents = (reader.checkpoint(name or "") for name in (trial.checkpoint, trial.parent_checkpoint))
    # One checkpoint of several models may well hold what it held before for one of them.
    single = not trial.checkpoint_index and not trial.parent_index
    return single and mine is not None and parents is not None and mine.digest == parents.digest


@final
class Lookout:
    """Looks at a study from time to time, and says once what is probably wrong.

    A look must not end a run: where the database fails, the next one tells.
    """

    def __init__(self, study: str, rules: TrainRules) -> None:
        self._study = study
        self._after = {suite.name: 0 for suite in rules.suites}
        self._said: set[tuple[str, str]] = set()
        self._throttle = Throttle(EVERY_S)

    def look(self, store: "Store", study: int, *, at_once: bool = False, failures: Failures | None = None) -> None:
        """Say what is new, if it is time or `at_once`; `failures` are those that nothing else shows."""
        with self._throttle.turn(at_once=at_once) as due, contextlib.suppress(StoreError):
            if not due:
                return
            with store.reader(study) as reader:
                for suite in [*self._after]:
                    self._look_at_suite(reader, suite)
                for attempt in failures.new(reader) if failures is not None else ():
                    LOG.warning("%s", attempt.words)
                for finding in findings(reader):
                    if (finding.kind, finding.about) not in self._said:
                        self._said.add((finding.kind, finding.about))
                        LOG.warning("warning: %s", finding.text)

    def _look_at_suite(self, reader: "Reader", suite: str) -> None:
        """Warn if the first evaluation of a suite failed, or a part of it."""
        all_ended = True
        for group in reader.groups(suite=suite, after=self._after[suite], limit=GROUPS):
            failed = group.state is GroupState.PARTIAL
            if failed or group.state is GroupState.COMPLETE:
                del self._after[suite]
            if failed:
                LOG.warning(
                    "warning: suite %r was evaluated, and is not complete: %s. Its results are kept. Correct the "
                    "suite; phyla evaluations %s shows what failed, and says how it is evaluated again",
                    *(suite, group.why, self._study),
                )
            if suite not in self._after:
                return
            all_ended = all_ended and group.state is not GroupState.QUEUED
            if all_ended:
                self._after[suite] = group.id


def date(at: float) -> str:
    """Return a time, in seconds since the epoch, as a local date with hours and minutes."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def in_vain(reader: "Reader", term: "Term") -> str | None:
    """Return why repeating a run that its time limit ended achieves nothing; None where it may."""
    study, trials, completed = reader.study(), reader.unfinished(), reader.last_completed(RECENT)
    ahead_s = reader.now() - system_clock()  # of our clock
    saved = filter(None, (reader.checkpoint(trial.progress or "") for trial in trials))
    evaluated = reader.eval_jobs() if study.config.get("suites") else ()
    attempts = [one for trial in trials for one in reader.attempts(trial.id)]
    here = [one for one in attempts if one.claimed_at >= term.began_at + ahead_s]
    cut = [at - one.claimed_at for one in here if (at := one.ended_at or 0.0) >= term.stops_at + ahead_s]
    ended = [*(one.ended_at for one in completed), *(one.ended_at for one in evaluated)]
    times = [one.created_at for one in saved] + [at or 0.0 for at in ended]
    useful = any(at >= term.began_at + ahead_s for at in times)
    # What failed is given up some day, and what was given back before the end has had time.
    if useful or not trials or (here and not cut) or any(one.state is AttemptState.FAILED for one in here):
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


def say_nothing_to_do(reader: "Reader") -> None:
    """Say that a study is complete already, since when, and how to go on."""
    study, completed = reader.study(), reader.counts().get("completed", 0)
    ended = max((trial.ended_at or 0.0 for trial in reader.last_completed(1)), default=0.0)
    since = f": its {completed} trials were completed on {date(ended)}" if completed else ""
    early = any(one.state is not MemberState.DONE for one in reader.cohorts())
    why = f" ({study.message})" if early and study.message else ""
    LOG.warning(
        "nothing to do: study %r is complete%s%s. To train longer, %s in the file, then: phyla "
        "change FILE (in Python: study.change()), and run it again. To start anew, which deletes what is stored, "
        "run it with --overwrite %s (in Python: overwrite=True); to keep it, give the study another name",
        study.name,
        since,
        why,
        "change what ended it" if why else "raise total_steps",
        study.name,
    )
