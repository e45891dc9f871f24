"""What is probably wrong with a study although nothing raised: found in what is stored, and said once."""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, final

from phyla.formatting import counted
from phyla.machine import SAME_SAMPLES
from phyla.records import JobKind, JobState, StudyState, TrialRecord
from phyla.validation import suggestion

if TYPE_CHECKING:
    from phyla.store import Reader
LOG = logging.getLogger("phyla")
LOOKED_AT = 20
"""Completed trials that one look reads at most of the first ones, and of the newest ones."""


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


def date(at: float) -> str:
    """Return a time, in seconds since the epoch, as a local date with hours and minutes."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
