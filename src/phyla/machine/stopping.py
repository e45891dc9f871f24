"""Early stopping: rules judge the reports of running trials; members of stopped trials decide again."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from phyla.errors import ConfigurationError, StoreError, ends_only_call, with_place
from phyla.machine.commands import (
    AddReports,
    Command,
    EndAttempt,
    SetStudyState,
    SetTally,
    Update,
)
from phyla.machine.jobs import change_state
from phyla.machine.published_states import deciding_again
from phyla.machine.requests import ReportAnswer
from phyla.machine.rules import TrainRules
from phyla.machine.view import View
from phyla.records import (
    AttemptState,
    JobKind,
    JobState,
    JsonObject,
    Mark,
    Objective,
    Report,
    StudyState,
    Tally,
    TrialRecord,
    direction,
    judge_values,
)
from phyla.strategies import Reported

NOTHING = Tally(count=0, mean=math.nan, best=math.nan, step=0)

OTHERS = 100
"""A trial is compared with at most this many of the newest other trials."""


def report(
    view: View, rules: TrainRules, trial_id: int, token: int, reports: Sequence[Report]
) -> tuple[ReportAnswer, list[Command]]:
    """Store the reports of a running trial, and return the state of its attempt."""
    attempt = view.attempt(trial_id, token)
    trial = view.locked_trial(trial_id)
    if attempt is None or trial is None:
        return ReportAnswer(cancelled=True), []
    running = attempt.state is AttemptState.RUNNING and trial.state is JobState.RUNNING
    if trial.token != token or not running:
        reason = trial.stop_reason if trial.token == token else None
        return ReportAnswer(cancelled=True, stop_reason=reason), []
    new = drop_repeated(view, trial, reports)
    if not new:
        return ReportAnswer(), []
    reason, commands = judge(view, rules, trial, new)
    added = AddReports(trial_id, token, new)
    return ReportAnswer(cancelled=reason is not None, stop_reason=reason), [added, *commands]


def drop_repeated(view: View, trial: TrialRecord, reports: Sequence[Report]) -> Sequence[Report]:
    """Drop repeated reports of the running attempt: a client sends them again after a lost answer."""
    if not reports:
        return ()
    if reports[0].number:
        stored = view.reported(trial.id, trial.token)
        return [report for report in reports if report.number > stored]
    last = view.last_reports(trial.id, trial.token, 1)
    return reports[1:] if [_content(report) for report in last] == [_content(reports[0])] else reports


def _content(report: Report) -> str:
    # As text, in which nan is equal to nan.
    return repr((report.step, sorted(report.metrics.items())))


def judge(
    view: View, rules: TrainRules, trial: TrialRecord, reports: Sequence[Report]
) -> tuple[JsonObject | None, list[Command]]:
    """Show new reports of a trial to the stopping rules, one by one, so that batching them makes no difference.

    Returns: The reason if a rule stops the trial, else None; and the commands for the tally and the stop.
    """
    if not rules.stopping or not reports or trial.kind is not JobKind.TRAIN:
        return None, []
    attempt = view.attempt(trial.id, trial.token)
    grids = {rule.marks_every for rule in rules.stopping} - {None}
    verdict = _Verdict(attempt.tally if attempt else None)
    before = verdict.tally
    free = view.member(trial.member).stops >= rules.max_stops
    history = 0 if free else max(rule.history for rule in rules.stopping)
    seen = [*view.last_reports(trial.id, trial.token, history), *reports] if history else []
    new = len(seen) - len(reports)
    peers = _Peers(view, trial)
    for place, report in enumerate(reports):
        asked: object = rules.objective
        try:
            marks = verdict.add(report, rules.objective, sorted(grid for grid in grids if grid is not None))
            if free:
                continue
            reported = Reported(
                trial=trial,
                objective=rules.objective,
                report=report,
                tally=verdict.tally if verdict.tally is not None and verdict.tally.count else None,
                marks=marks,
                reports=seen[max(0, new + place + 1 - history) : new + place + 1] if history else (),
            )
            for rule in rules.stopping:
                asked = rule
                verdict.reason = _as_json(rule.judge(reported, peers))
                if verdict.reason is not None:
                    break
        except StoreError:
            raise
        except BaseException as error:
            if not ends_only_call(error):
                raise
            kind = "objective" if asked is rules.objective else "stopping rule"
            verdict.broken = f"the {kind} {asked!r} raised {with_place(error)}"
        if verdict.reason is not None or verdict.broken is not None:
            break
    commands: list[Command] = []
    if grids and verdict.tally is not None and verdict.tally != before:
        commands.append(SetTally(trial.id, trial.token, verdict.tally, tuple(verdict.marks)))
    if verdict.broken is not None and view.study().state is StudyState.RUNNING:
        message = f"{verdict.broken}. Completed trials are kept. Fix the error, then run the study again."
        commands.append(SetStudyState(StudyState.FAILED, message))
    if verdict.reason is not None:
        reached = min(max(report.step, trial.start_step), trial.end_step)
        commands += _stop(view, trial, verdict.reason, reached_step=reached)
    return verdict.reason, commands


def _as_json(reason: JsonObject | None) -> JsonObject | None:
    """Return a reason as it will be read back from the store."""
    if reason is None:
        return None
    rejection = f"judge() returned {reason!r}; it must return a JSON object or None"
    if not isinstance(reason, Mapping):
        raise ConfigurationError(rejection)
    try:
        read: JsonObject = json.loads(json.dumps(dict(reason)))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{rejection}: {error}") from error
    return read


@dataclass(slots=True)
class _Verdict:
    tally: Tally | None
    marks: list[Mark] = field(default_factory=list)
    reason: JsonObject | None = None
    broken: str | None = None

    def add(self, report: Report, objective: Objective, grids: Sequence[int]) -> tuple[Mark, ...]:
        """Count a report; return the marks that the trial reaches.

        Metrics of one step that are reported separately make one report of the objective once all are present.
        """
        before = self.tally
        names = [goal.metric for goal in objective.goals]
        values = {name: report.metrics[name] for name in names if name in report.metrics}
        if not values:
            return ()
        if before is not None and before.part is not None and before.part.step == report.step:
            values = {**before.part.metrics, **values}
        if any(name not in values for name in names):
            self.tally = replace(before or NOTHING, part=Report(report.step, values))
            return ()
        judged = judge_values(values, objective)
        # An infeasible report is worse than all others, however good its metric.
        value = judged.fitness if judged.infeasible is None else math.nan
        self.tally = tally = _with(before, value, report.step, objective)
        marks = tuple(
            Mark(
                every=every,
                step=report.step // every * every,
                at=report.step,
                average=tally.mean,
                best=tally.best,
            )
            for every in grids
            if before is None or not before.count or report.step // every > before.step // every
        )
        self.marks += marks
        return marks


def _with(before: Tally | None, value: float, step: int, objective: Objective) -> Tally:
    finite = math.isfinite(value)
    if before is None or not before.count:
        value = value if finite else math.nan
        return Tally(count=1, mean=value, best=value, step=step)
    count, goal = before.count + 1, direction(objective)
    mean = before.mean + (value / count - before.mean / count)
    better = finite and (math.isnan(before.best) or goal.order(value) > goal.order(before.best))
    return Tally(
        count=count,
        mean=mean if math.isfinite(mean) else math.nan,
        best=value if better else before.best,
        step=max(before.step, step),
    )


@final
@dataclass(frozen=True, slots=True)
class _Peers:
    view: View
    trial: TrialRecord

    def averages(self, mark: Mark) -> Sequence[float]:
        return self.view.averages(mark.every, mark.step, besides=self.trial.id, limit=OTHERS)


def _stop(view: View, trial: TrialRecord, reason: JsonObject, *, reached_step: int) -> list[Command]:
    """End a trial; its member decides again from its true ancestor, with other random numbers."""
    member = view.locked_member(trial.member)
    now = view.now()
    stopped = change_state(
        trial, JobState.CANCELLED, stop_reason=reason, reached_step=reached_step, progress=None, ended_at=now
    )
    return [
        Update(stopped),
        EndAttempt(job=trial.id, token=trial.token, state=AttemptState.CANCELLED, ended_at=now),
        Update(
            deciding_again(
                member,
                broken_trial=trial.id,
                replacements=member.replacements + 1,
                stops=member.stops + 1,
            )
        ),
    ]
