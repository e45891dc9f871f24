"""Probable mistakes in a study that raised no error, found in its stored records and reported once."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast, final

from phyla.configuration import edited_code
from phyla.formatting import format_count, join_names
from phyla.machine import SAME_SAMPLES, Reader
from phyla.records import EvalEvent, JobKind, JobState, StudyRecord, StudyState, TrialRecord
from phyla.validation import suggestion

LOG = logging.getLogger("phyla")
LOOKED_AT = 20
"""Completed trials that one look reads at most of the first ones, and of the newest ones."""
MEDIAN = "phyla.stopping/median-stopping"
"""The rule that has no setting `metric`, and watches the objective's."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A probable mistake.

    Its kind is `source`, `parameter`, `metric`, `steps`, `checkpoint`, `code`, `samples` or `scores`.
    """

    kind: str
    text: str
    about: str = ""  # where there may be several of one kind


def findings(reader: Reader) -> list[Finding]:
    """Return probable mistakes in a study."""
    facts = _read_facts(reader)
    return [finding for rule in RULES for finding in rule(facts)]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """The facts about a study and a part of its completed trials."""

    study: StudyRecord
    trials: Sequence[TrialRecord]
    noticed: Sequence[tuple[TrialRecord, Mapping[str, Any]]]  # what workers noticed in them
    members: int
    completed: int
    scored: bool  # whether a trial has a finite score, or none has any
    unchanged: bool  # whether every trial left what it started from, byte for byte
    samples: Sequence[EvalEvent]

    @property
    def config(self) -> Any:
        return self.study.config

    @property
    def command(self) -> bool:
        return isinstance(self.config.get("train"), Mapping)

    @property
    def trainer(self) -> str:
        return "train()" if self.config.get("train") else "the loop"

    @property
    def trained(self) -> list[TrialRecord]:
        return [trial for trial in self.trials if trial.parent_checkpoint not in (None, trial.checkpoint)]


def _read_facts(reader: Reader) -> _Facts:
    first = [trial for trial in reader.trials(after=0, limit=LOOKED_AT) if trial.state is JobState.COMPLETED]
    newest = {trial.id: trial for trial in (*first, *reader.last_completed(LOOKED_AT))}
    trials = [trial for _, trial in sorted(newest.items()) if trial.kind is JobKind.TRAIN]
    attempts = [(trial, reader.attempt(trial.id, trial.token)) for trial in trials]
    study, scores = reader.study(), [trial.fitness for trial in trials if trial.fitness is not None]
    space: Any = study.config["space"]
    scored = not scores or any(map(math.isfinite, scores)) or bool(reader.best_trials(1))
    facts = _Facts(
        study=study,
        trials=trials,
        noticed=[(trial, cast("Any", attempt.noticed)) for trial, attempt in attempts if attempt is not None],
        members=sum(cohort.size for cohort in reader.cohorts()) if space.get("initial") else 0,
        completed=0 if scored else reader.counts().get("completed", 0),
        scored=scored,
        unchanged=False,
        samples=[event for event in reader.events() if event.kind == SAME_SAMPLES],
    )
    # A single trial may equal its parent, as where training has converged.
    return replace(facts, unchanged=all(_same_bytes(reader, trial) for trial in facts.trained))


def _same_bytes(reader: Reader, trial: TrialRecord) -> bool:
    checkpoint, parent = (reader.checkpoint(name or "") for name in (trial.checkpoint, trial.parent_checkpoint))
    # In a checkpoint of several models one may well be unchanged.
    single = not trial.checkpoint_index and not trial.parent_index
    return single and checkpoint is not None and parent is not None and checkpoint.digest == parent.digest


def _code_changed(facts: _Facts) -> Iterator[Finding]:
    code = facts.config.get("code")
    edited = edited_code(code, code["began"], code["now"]) if code else []
    if edited:
        where = f" in {code['file']}" if "file" in code and edited == [code["name"]] else ""
        yield Finding(
            kind="code",
            text=f"{join_names(edited)}{where} changed since this study began on {date(facts.study.created_at)}; "
            "earlier trials were trained by the old code. To train all trials by the new code, run it with "
            f"--overwrite {facts.study.name} (in Python: overwrite=True), which deletes what is stored, or under "
            "another name",
        )


def _code_mixed(facts: _Facts) -> Iterator[Finding]:
    """Workers keep the code that they have imported; one that starts later imports what is there then."""
    for trial, noticed in [both for both in facts.noticed if "edited" in both[1]][:1]:
        yield Finding(
            kind="code",
            text=f"the code of {join_names(noticed['edited'])} differs between workers: the worker of trial "
            f"{trial.id} has another version than the run of the study. Workers keep the code that they start "
            "with: after an edit, or an update of a package, stop all of them, and run the study again. To see "
            f"which worker it was: phyla trials {facts.study.name} --story {trial.id}",
            about="workers",
        )


def _source_unread(facts: _Facts) -> Iterator[Finding]:
    children = [noticed for trial, noticed in facts.noticed if trial.parent_checkpoint is not None]
    if children and all(noticed.get("untouched") for noticed in children):
        yield Finding(
            kind="source",
            text="the command has no {source}: every trial starts from scratch. Pass the script the directory to "
            "load from, as in ['--resume', '{source}']"
            if facts.command
            else f"{facts.trainer} did not load trial.source: every trial starts from scratch. Load the weights "
            "from trial.source.path if trial.source is not None",
        )


def _parameters_unread(facts: _Facts) -> Iterator[Finding]:
    unread: dict[str, bool] = {}
    for trial, noticed in facts.noticed:
        for name in trial.params:
            unread[name] = unread.get(name, True) and name in noticed.get("unread", ())
    # Those that decide which others are active take effect through these.
    deciding = {name for entry in facts.config["space"]["parameters"] for name in entry["when"] or ()}
    names = [name for name, never in unread.items() if never and f"/{name}" not in deciding]
    if not names:
        return
    one = len(names) == 1
    them = "it" if one else "them"
    if facts.command:
        fields = join_names([f"{{{name}}}" for name in names])
        whose = "this hyperparameter" if one else "these hyperparameters"
        text = f"the command has no {fields}: the values of {whose} change nothing. Pass {them} to the script"
    else:
        which = f"hyperparameter{'' if one else 's'} {join_names([*map(repr, names)])}"
        how = f"trial.params[{names[0]!r}]" if one else "them from trial.params"
        whose = "its" if one else "their"
        text = f"{facts.trainer} never read the {which}: {whose} values change nothing. Read {how}"
    yield Finding(kind="parameter", text=f"{text}, or leave {them} out of the space")


def _points_left(facts: _Facts) -> Iterator[Finding]:
    points = len(facts.config["space"].get("initial") or ())
    if points > facts.members:
        yield Finding(
            kind="starting points",
            text=f"Space(initial=...) has {format_count(points, 'starting point')}, and the study "
            f"{format_count(facts.members, 'member')}: the rest is unused. Leave it out, or use more "
            "members",
        )


def _metric_unreported(facts: _Facts) -> Iterator[Finding]:
    reported = {metric: None for trial in facts.trials for metric in _reported(trial)}
    stopping = facts.config.get("stopping") or {"rules": ()}
    for metric in {_watched(rule, facts.config["objective"]): None for rule in stopping["rules"]}:
        if facts.trials and isinstance(metric, str) and metric not in reported:
            yield Finding(
                kind="metric",
                text=f"a stopping rule watches {metric!r}, which no trial reported, so it stops nothing; "
                f"{suggestion(metric, reported) if reported else 'report it during training'}",
                about=metric,
            )


def _reported(trial: TrialRecord) -> Iterator[str]:
    """Yield the metrics that training reported; a suite that gives the fitness adds others, with their number."""
    measured = tuple(name.removesuffix("measurements") for name in trial.metrics if name.endswith("/measurements"))
    return (name for name in trial.metrics if not f"{name}/".startswith(measured))


def _watched(rule: Mapping[str, Any], objective: Mapping[str, Any]) -> Any:
    """Return the reported metric that a stopping rule watches: its own, or the objective's."""
    by_default = rule.get("plugin") == MEDIAN or ("metric" in rule and rule["metric"] is None)
    return objective.get("metric") if by_default else rule.get("metric")


def _same_samples(facts: _Facts) -> Iterator[Finding]:
    return (Finding(kind="samples", text=event.message, about=event.suite or "") for event in facts.samples)


def _steps_off(facts: _Facts) -> Iterator[Finding]:
    for trial, first, last in [
        (trial, *noticed["steps"]) for trial, noticed in facts.noticed if "steps" in noticed
    ][:1]:
        names = "{start_step} to {end_step}" if facts.command else "trial.start_step to trial.end_step"
        yield Finding(
            kind="steps",
            text=f"trial {trial.id} trained from step {trial.start_step} to step {trial.end_step}, and reported "
            f"steps from {first} to {last}. A step is the age of the weights, by which trials are compared: count "
            f"from {names}, not from 0 in each trial",
        )


def _weights_unchanged(facts: _Facts) -> Iterator[Finding]:
    for trial in facts.trained[:1] if facts.unchanged else ():
        yield Finding(
            kind="checkpoint",
            text="every checkpoint equals its parent's byte for byte, although steps were trained (trial "
            f"{trial.id}: steps {trial.start_step} to {trial.reached_step}). Train the model that you save, and "
            "save it after training",
        )


def _scores_missing(facts: _Facts) -> Iterator[Finding]:
    scores = dict.fromkeys(f"{trial.fitness}" for trial in facts.trials if trial.fitness is not None)
    if not facts.scored and facts.study.state is StudyState.COMPLETED:
        yield Finding(
            kind="scores",
            text=f"no trial has a finite score: the scores of all {facts.completed} completed trials are "
            f"{' or '.join(scores)}. Selection could not work. Check the values that training reports",
        )


RULES: tuple[Callable[[_Facts], Iterator[Finding]], ...] = (
    _code_changed,
    _code_mixed,
    _source_unread,
    _parameters_unread,
    _points_left,
    _metric_unreported,
    _same_samples,
    _steps_off,
    _weights_unchanged,
    _scores_missing,
)


def date(at: float) -> str:
    """Return a time, in seconds since the epoch, as a local date with hours and minutes."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
