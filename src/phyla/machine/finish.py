"""How attempts end: completed, failed, released, lost, cancelled."""

from dataclasses import replace
from typing import cast

from phyla.errors import LeaseLost
from phyla.leases import Quarantine, after_failure, check_transition
from phyla.machine.commands import (
    AddReports,
    Command,
    EndAttempt,
    InsertCheckpoint,
    SetStudyState,
    UpdateMember,
    UpdateTrial,
)
from phyla.machine.evaluate import observe_trial
from phyla.machine.evaluation_commands import AnyCommand
from phyla.machine.events import Accepted, Completion, Failure, Observed, Stopped
from phyla.machine.judge import Worth, judged_values, mean_with, worth
from phyla.machine.rules import Rules
from phyla.machine.states import judged_again, published, without_checkpoint
from phyla.machine.stopping import judge
from phyla.machine.unusable import set_unusable
from phyla.machine.view import View
from phyla.records import (
    AttemptState,
    Cause,
    Checkpoint,
    JsonObject,
    Member,
    MemberState,
    Scored,
    StudyState,
    TrialKind,
    TrialRecord,
    TrialState,
    json_number,
)
from phyla.strategies import FromSuite


def complete(view: View, rules: Rules, done: Completion) -> tuple[Accepted | Stopped, list[AnyCommand]]:
    """Accept a completion while its token is the newest, even when it is late, unless a rule stops the trial.

    Raises:
        LeaseLost: a newer claim, a cancellation or a quarantine took the lease away.
    """
    trial = _owned(view, done.trial, done.token)
    if trial is None:
        return _first_answer(view, done.trial, done.token), []
    check_transition(trial, TrialState.COMPLETED)
    brought: list[AnyCommand] = [AddReports(trial.id, done.token, done.reports)] if done.reports else []
    reason, judged = judge(view, rules, trial, done.reports)
    if reason is not None:
        return Stopped(trial=trial.id, reason=reason), [*brought, *judged]
    rule = rules.strategy.fitness
    found = Worth()
    if not isinstance(rule, FromSuite):
        values = {goal.metric: rule(done.values[goal.metric], goal) for goal in rules.objective.goals}
        found = worth(values, rules.objective)
    now = view.now()
    checkpoint, index = _result(trial, done)
    completed = replace(
        trial,
        state=TrialState.COMPLETED,
        reached_step=done.reached_step,
        fitness=found.fitness,
        order=found.order,
        criteria=found.criteria,
        metrics=done.metrics,
        checkpoint=checkpoint,
        checkpoint_index=index,
        progress=None,
        error=None,
        ended_at=now,
    )
    scored = Scored(
        trial=trial.id,
        member=trial.member,
        checkpoint=checkpoint,
        index=index,
        step=done.reached_step,
        params=trial.params,
        fitness=found.fitness,
        order=found.order,
        criteria=found.criteria,
    )
    member = view.locked_member(trial.member)
    if trial.kind is TrialKind.MEASURE:
        member = _measured(member, scored, rules)
    else:
        member = _trained(member, completed, scored, rules)
    commands: list[AnyCommand] = []
    # Of trials that share a checkpoint, the first that counts brings it; it need not be the one that wrote it.
    if (
        done.checkpoint is not None
        and trial.kind is TrialKind.TRAIN
        and (done.checkpoint_index == 0 or view.checkpoint(done.checkpoint.name) is None)
    ):
        commands.append(InsertCheckpoint(done.checkpoint))
    commands += [
        UpdateTrial(completed),
        EndAttempt(
            trial=trial.id,
            token=done.token,
            state=AttemptState.COMPLETED,
            ended_at=now,
            outcome={"fitness": json_number(found.fitness), **({"noticed": done.noticed} if done.noticed else {})},
            timings=done.timings,
        ),
        UpdateMember(member),
    ]
    commands += [*brought, *judged]
    evaluation = view.evaluation() if rules.suites and trial.kind is TrialKind.TRAIN else None
    if evaluation is not None:
        commands += observe_trial(evaluation, rules, _observed(completed, done, view))
    return Accepted(trial=trial.id, fitness=found.fitness), commands


def _observed(trial: TrialRecord, done: Completion, view: View) -> Observed:
    name, index = _result(trial, done)
    # Of trials that share a checkpoint, only one brings its row along.
    row = done.checkpoint or view.checkpoint(name)
    assert row is not None
    return Observed(
        name=name,
        index=index,
        step=done.reached_step,
        identity=row.digest if not index else f"{row.digest}#{index}",
        size_bytes=row.size_bytes,
        trial=trial.id,
        member=trial.member,
        written_at=row.created_at,
    )


def _result(trial: TrialRecord, done: Completion) -> tuple[str, int]:
    if trial.kind is TrialKind.MEASURE:
        return cast("str", trial.parent_checkpoint), trial.parent_index
    if done.checkpoint is None:
        raise ValueError(f"the completion of trial {trial.id} names no checkpoint")
    return done.checkpoint.name, done.checkpoint_index


def _trained(member: Member, trial: TrialRecord, scored: Scored, rules: Rules) -> Member:
    trained = max(0, scored.step - trial.start_step)
    # Weights that are older than the member has come take its clock along.
    start = max(member.progress, trial.age)
    awaits = rules.suite_fitness is not None
    state = replace(
        scored,
        age=trial.age + trained,
        progress=start + trained,
        measurements=0 if awaits else scored.measurements,
    )
    changed = replace(
        member,
        progress=start + trained,
        generation=member.generation + 1,
        decided_at=start if trial.exploited else member.decided_at,
        head=state,
        current_trial=None,
        replacements=0,
        stops=0,
        state=MemberState.READY,
    )
    changed = published(changed, state, rules)
    return replace(changed, state=MemberState.DONE) if rules.strategy.finished(changed) else changed


def _measured(member: Member, again: Scored, rules: Rules) -> Member:
    changed = replace(
        member,
        state=MemberState.READY,
        current_trial=None,
        measures_left=max(0, member.measures_left - 1),
    )
    head = member.head
    if head is None or head.checkpoint != again.checkpoint or head.fitness is None or again.fitness is None:
        return changed
    count = head.measurements + 1
    objective = rules.objective
    found = mean_with(judged_values(head, objective), judged_values(again, objective), count, objective)
    mean = replace(head, fitness=found.fitness, order=found.order, criteria=found.criteria, measurements=count)
    return judged_again(replace(changed, head=mean), mean)


def fail(view: View, rules: Rules, failure: Failure) -> list[Command]:
    """Queue the trial again, or give it up and let its member go on from its true ancestor.

    A trial whose parent or progress cannot be used has not failed: without its progress it is queued again, and
    without its parent it is cancelled, so that its member decides again.

    Raises:
        LeaseLost: a newer claim, a cancellation or a quarantine took the lease away.
    """
    trial = _owned(view, failure.trial, failure.token)
    if trial is None or trial.state is TrialState.PENDING:
        return []
    if failure.parent_gone is not None and failure.parent_gone in (trial.progress, trial.parent_checkpoint):
        return _without_start(view, trial, failure, failure.parent_gone)
    commands: list[Command] = [_ended(view, failure, AttemptState.FAILED)]
    after = after_failure(trial.failures, max_attempts=rules.max_attempts, retryable=failure.retryable)
    stopped: list[Command] = []
    if failure.cause is not None and _came_before(view, failure.cause):
        message = (
            f"no trial has completed, and training failed twice with the same error: {failure.cause.words()}. "
            "Fix the error, then run the study again."
        )
        stopped = [SetStudyState(StudyState.FAILED, message)]
    if isinstance(after, Quarantine) or trial.token >= rules.max_claims:
        given_up = _quarantine(view, rules, trial, after.failures, failure.error)
        return [*commands, *given_up, *stopped]
    return [
        *commands,
        UpdateTrial(
            replace(trial, state=TrialState.PENDING, failures=after.failures, error=failure.error, worker=None)
        ),
        *stopped,
    ]


def _ended(view: View, failure: Failure, state: AttemptState) -> EndAttempt:
    return EndAttempt(
        trial=failure.trial,
        token=failure.token,
        state=state,
        ended_at=view.now(),
        error=failure.error,
        outcome=None if failure.cause is None else {"cause": failure.cause.to_json()},
        timings=failure.timings,
    )


def _without_start(view: View, trial: TrialRecord, failure: Failure, name: str) -> list[Command]:
    """Take a trial back that cannot start: a checkpoint that it needs is lost or damaged."""
    if name == trial.progress:
        pending = replace(trial, state=TrialState.PENDING, progress=None, progress_step=None, worker=None)
        return [
            _ended(view, failure, AttemptState.RELEASED),
            *set_unusable(view, name, failure.damage),
            UpdateTrial(pending),
        ]
    check_transition(trial, TrialState.CANCELLED, view.attempts(trial.id))
    lost = set_unusable(view, name, failure.damage, taker=trial.member)
    member = without_checkpoint(view.locked_member(trial.member), name)
    ready = replace(
        member,
        state=MemberState.READY,
        current_trial=None,
        measures_left=0,
        broken_trial=trial.id if trial.kind is TrialKind.TRAIN else None,
    )
    cancelled = replace(trial, state=TrialState.CANCELLED, error=failure.error, progress=None, ended_at=view.now())
    return [_ended(view, failure, AttemptState.CANCELLED), *lost, UpdateTrial(cancelled), UpdateMember(ready)]


def _came_before(view: View, cause: Cause) -> bool:
    """Return whether nothing has ever completed, and training failed so before, since the study was resumed."""
    study = view.study()
    if study.state is not StudyState.RUNNING or view.last_completed(1):
        return False
    resumed = float("-inf") if study.resumed_at is None else study.resumed_at
    current = [view.trial(member.current_trial) for member in view.members() if member.current_trial is not None]
    failed = {trial.id for trial in (*current, *view.ended(None)) if trial.failures}
    return any(
        attempt.cause is not None and attempt.cause.same(cause) and (attempt.ended_at or resumed) > resumed
        for trial in sorted(failed)
        for attempt in view.attempts(trial)
    )


def _quarantine(view: View, rules: Rules, trial: TrialRecord, failures: int, error: str) -> list[Command]:
    check_transition(trial, TrialState.FAILED, view.attempts(trial.id))
    member = view.locked_member(trial.member)
    broken = trial.kind is TrialKind.TRAIN
    replacements = member.replacements + (1 if broken else 0)
    given_up = broken and replacements - member.stops >= max(2, rules.max_broken // 2)
    commands: list[Command] = [
        UpdateTrial(
            replace(
                trial,
                state=TrialState.FAILED,
                failures=failures,
                error=error,
                progress=None,
                ended_at=view.now(),
            )
        ),
        UpdateMember(
            replace(
                member,
                state=MemberState.DONE if given_up else MemberState.READY,
                current_trial=None,
                measures_left=0,
                broken_trial=trial.id if broken else None,
                replacements=replacements,
                stops=0 if given_up else member.stops,
            )
        ),
    ]
    if given_up and view.last_completed(1):
        # One bad member neither ends a study that works nor holds up its quorum.
        return commands
    in_a_row = view.broken_in_a_row() + 1
    if in_a_row >= rules.max_broken and view.study().state is StudyState.RUNNING:
        message = (
            f"{in_a_row} trials in a row failed, the last one (trial {trial.id} of member {trial.member}) with: "
            f"{error.strip().splitlines()[-1] if error.strip() else 'no message'}. "
            "Completed trials are kept; what the failed ones trained is lost. Fix the error, then run the study "
            "again."
        )
        commands.append(SetStudyState(StudyState.FAILED, message))
    return commands


def release(view: View, trial_id: int, token: int) -> list[Command]:
    """Return a trial to the queue, as a preempted worker does; this does not count as a failure.

    Raises:
        LeaseLost: a newer claim, a cancellation or a quarantine took the lease away.
    """
    trial = _owned(view, trial_id, token)
    if trial is None or trial.state is TrialState.PENDING:
        return []
    check_transition(trial, TrialState.PENDING)
    return [
        EndAttempt(trial=trial.id, token=token, state=AttemptState.RELEASED, ended_at=view.now()),
        UpdateTrial(replace(trial, state=TrialState.PENDING, worker=None)),
    ]


def lose(view: View, rules: Rules, trial_id: int, token: int, error: str, *, counts: bool) -> list[Command]:
    """Handle an attempt whose worker is gone: its lease ran out, or its process died.

    Args:
        view: the study.
        rules: what decisions go by.
        trial_id: id of the trial.
        token: the attempt's token.
        error: what is known about it.
        counts: whether it is the trial's fault, so that it counts towards `max_attempts`.
    """
    trial = view.locked_trial(trial_id)
    if trial is None or trial.token != token or trial.state is not TrialState.RUNNING:
        return []
    end = EndAttempt(trial=trial_id, token=token, state=AttemptState.LOST, ended_at=view.now(), error=error)
    failures = trial.failures + (1 if counts else 0)
    if failures >= rules.max_attempts or trial.token >= rules.max_claims:
        return [end, *_quarantine(view, rules, trial, failures, error)]
    pending = replace(trial, state=TrialState.PENDING, failures=failures, error=error, worker=None)
    return [end, UpdateTrial(pending)]


def save_progress(view: View, trial_id: int, token: int, checkpoint: Checkpoint) -> list[Command]:
    """Remember where a retry of the trial resumes.

    Raises:
        LeaseLost: a newer claim, a cancellation or a quarantine took the lease away.
        UsageError: its step is none of the trial's.
    """
    trial = _owned(view, trial_id, token)
    if trial is None:
        raise LeaseLost(f"trial {trial_id} has already ended; its progress is not needed")
    trial.check_progress(checkpoint.step)
    return [
        InsertCheckpoint(checkpoint),
        UpdateTrial(replace(trial, progress=checkpoint.name, progress_step=checkpoint.step)),
    ]


def _owned(view: View, trial_id: int, token: int) -> TrialRecord | None:
    """Return the trial if the token is its newest and it can still end; None if it ended under that token."""
    trial = view.locked_trial(trial_id)
    if trial is None:
        raise LeaseLost(f"there is no trial {trial_id} in this study")
    if trial.token != token:
        raise LeaseLost(
            f"attempt {token} of trial {trial_id} was superseded by attempt {trial.token} "
            f"(worker {trial.worker}); its result does not count"
        )
    if trial.state in (TrialState.RUNNING, TrialState.PENDING):
        return trial
    if trial.state is TrialState.COMPLETED or trial.stop_reason is not None:
        return None
    raise LeaseLost(f"trial {trial_id} is {trial.state}" + (f" ({trial.error})" if trial.error else ""))


def _first_answer(view: View, trial_id: int, token: int) -> Accepted | Stopped:
    reason = view.trial(trial_id).stop_reason
    if reason is not None:
        return Stopped(trial=trial_id, reason=reason, repeated=True)
    attempt = view.attempt(trial_id, token)
    outcome: JsonObject = attempt.outcome if attempt and attempt.outcome else {}
    fitness = outcome.get("fitness")
    return Accepted(
        trial=trial_id,
        fitness=float(fitness) if isinstance(fitness, (int, float, str)) else None,
        repeated=True,
    )
