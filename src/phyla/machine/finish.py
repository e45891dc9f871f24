"""The effects of completed and of failed trials."""

from dataclasses import replace
from typing import cast

from phyla.errors import LeaseLost
from phyla.machine.commands import (
    AddReports,
    Command,
    EndAttempt,
    Insert,
    SetStudyState,
    Update,
)
from phyla.machine.evaluating.observe import observe, set_unusable
from phyla.machine.evaluating.score import judged_values, judging, mean_with
from phyla.machine.jobs import change_state, verify_token
from phyla.machine.published_states import deciding_again, publish_state, replace_score, without_states_on
from phyla.machine.requests import Accepted, Completion, Failure, Stopped
from phyla.machine.rules import TrainRules
from phyla.machine.stopping import drop_repeated, judge
from phyla.machine.view import View
from phyla.records import (
    AttemptState,
    Cause,
    Checkpoint,
    CheckpointKind,
    JobKind,
    JobState,
    JsonObject,
    Member,
    MemberState,
    Scored,
    StudyState,
    TrialRecord,
    Worth,
    json_number,
    summarize_error,
    worth,
)
from phyla.strategies import FromSuite
from phyla.strategies.fitness import apply_rule
from phyla.strategies.starts import scored_trial


def complete(view: View, rules: TrainRules, done: Completion) -> tuple[Accepted | Stopped, list[Command]]:
    """Accept a completion while its token is the newest, even when it is late, unless a rule stops the trial."""
    trial = verify_token(view.locked_trial(done.trial), done.trial, done.token)
    if trial is None:
        return _first_answer(view, done.trial, done.token), []
    reports = drop_repeated(view, trial, done.reports)
    brought: list[Command] = [AddReports(trial.id, done.token, reports)] if reports else []
    reason, judged = judge(view, rules, trial, reports)
    if reason is not None:
        return Stopped(trial=trial.id, reason=reason), [*brought, *judged]
    judgement = _judge_reported(rules, done)
    now = view.now()
    checkpoint, index = _result(trial, done)
    completed = change_state(
        trial,
        JobState.COMPLETED,
        reached_step=done.reached_step,
        metrics=done.metrics,
        checkpoint=checkpoint,
        checkpoint_index=index,
        progress=None,
        error=None,
        ended_at=now,
        **judgement,
    )
    scored = scored_trial(completed)
    changed: list[Command] = []
    if trial.kind is JobKind.MEASURE:
        changed.append(Update(_update_measured(view.locked_member(trial.member), scored, rules)))
    elif trial.kind is not JobKind.FINAL:
        changed.append(Update(_update_trained(view.locked_member(trial.member), completed, scored, rules)))
    commands: list[Command] = [
        Update(completed),
        EndAttempt(
            job=trial.id,
            token=done.token,
            state=AttemptState.COMPLETED,
            ended_at=now,
            outcome={
                "fitness": json_number(completed.fitness),
                **({"noticed": done.noticed} if done.noticed else {}),
            },
            timings=done.timings,
        ),
        *changed,
        *brought,
        *judged,
    ]
    if trial.kind is JobKind.TRAIN:
        commands += _add_checkpoint(view, rules, completed, done)
    return Accepted(job=trial.id, fitness=completed.fitness), commands


def _judge_reported(rules: TrainRules, done: Completion) -> Worth:
    """Return what the reports of a trial are worth; nothing yet if a suite gives the fitness."""
    rule = rules.strategy.fitness
    if isinstance(rule, FromSuite):
        return Worth(fitness=None, order=None, criteria=None)
    reported = [(goal, done.values[goal.metric]) for goal in rules.objective.goals]
    with judging(done.trial):
        return worth({goal.metric: apply_rule(rule, values, goal) for goal, values in reported}, rules.objective)


def _add_checkpoint(view: View, rules: TrainRules, trial: TrialRecord, done: Completion) -> list[Command]:
    """Add the checkpoint of a trial, and queue the suites on it."""
    written, index = done.checkpoint, done.checkpoint_index
    assert written is not None
    # Of trials that share a checkpoint, the first accepted one adds it, even if another one wrote it.
    there = view.checkpoint(written.name) if index or rules.suites else None
    row = there or written
    checkpoint = replace(
        row,
        id=0,
        index=index,
        trial=trial.id,
        kind=CheckpointKind.RESULT if there is None else CheckpointKind.SEEN,
        step=done.reached_step,
        identity=row.digest if not index else f"{row.digest}#{index}",
        taken=0,
        written_at=row.created_at,
    )
    if rules.suites:
        fitness = rules.suite_fitness
        return observe(view, rules.suites, checkpoint, fitness=None if fitness is None else fitness.suite)
    return [Insert(checkpoint)] if there is None else []


def _result(trial: TrialRecord, done: Completion) -> tuple[str, int]:
    if trial.measures:
        return cast("str", trial.parent_checkpoint), trial.parent_index
    if done.checkpoint is None:
        raise ValueError(f"the completion of trial {trial.id} names no checkpoint")
    return done.checkpoint.name, done.checkpoint_index


def _update_trained(member: Member, trial: TrialRecord, scored: Scored, rules: TrainRules) -> Member:
    trained = max(0, scored.step - trial.start_step)
    # Older weights move the member's clock forward.
    start = max(member.progress, trial.age)
    awaits = rules.suite_fitness is not None
    state = replace(
        scored,
        progress=start + trained,
        measurements=0 if awaits else scored.measurements,
    )
    changed = publish_state(
        member,
        state,
        rules,
        progress=start + trained,
        generation=member.generation + 1,
        decided_at=start if trial.exploited else member.decided_at,
        head=state,
        current_trial=None,
        replacements=0,
        stops=0,
        state=MemberState.READY,
    )
    return replace(changed, state=MemberState.DONE) if rules.strategy.finished(changed) else changed


def _update_measured(member: Member, again: Scored, rules: TrainRules) -> Member:
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
    with judging(again.trial):
        judgement = mean_with(judged_values(head, objective), judged_values(again, objective), count, objective)
    mean = replace(head, measurements=count, **judgement)
    return replace_score(replace(changed, head=mean), mean)


def without_checkpoint(
    view: View, trial: TrialRecord, failure: Failure, name: str
) -> tuple[AttemptState, list[Command]] | None:
    """Take back a trial whose checkpoint is lost or damaged; None if it does not need the checkpoint."""
    if name == trial.progress:
        pending = change_state(trial, JobState.PENDING, progress=None, progress_step=None, worker=None)
        return AttemptState.RELEASED, [*set_unusable(view, name, failure.damage), Update(pending)]
    if name != trial.parent_checkpoint:
        return None
    cancelled = change_state(trial, JobState.CANCELLED, error=failure.error, progress=None, ended_at=view.now())
    if trial.kind is JobKind.FINAL:
        return AttemptState.CANCELLED, [*set_unusable(view, name, failure.damage), Update(cancelled)]
    lost = set_unusable(view, name, failure.damage, taker=trial.member)
    member = without_states_on(view.locked_member(trial.member), name)
    ready = deciding_again(member, broken_trial=trial.id if trial.kind is JobKind.TRAIN else None)
    return AttemptState.CANCELLED, [*lost, Update(cancelled), Update(ready)]


def stop_for(view: View, failure: Failure) -> list[Command]:
    """Stop a study in which nothing ever completed, when training fails with the same error again."""
    if failure.cause is None or not _came_before(view, failure.cause):
        return []
    message = (
        f"no trial has completed, and training failed twice with the same error: {failure.cause.words()}. "
        "Fix the error, then run the study again."
    )
    return [SetStudyState(StudyState.FAILED, message)]


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


def quarantine(view: View, rules: TrainRules, trial: TrialRecord, failures: int, error: str) -> list[Command]:
    """Give up a trial; its member continues from its true ancestor."""
    failed = change_state(
        trial, JobState.FAILED, failures=failures, error=error, progress=None, ended_at=view.now()
    )
    if trial.kind is JobKind.FINAL:
        return [Update(failed)]
    member = view.locked_member(trial.member)
    broken = trial.kind is JobKind.TRAIN
    replacements = member.replacements + (1 if broken else 0)
    given_up = broken and replacements - member.stops >= max(2, rules.max_broken // 2)
    changed = deciding_again(member, broken_trial=trial.id if broken else None, replacements=replacements)
    if given_up:
        changed = replace(changed, state=MemberState.DONE, stops=0)
    commands: list[Command] = [Update(failed), Update(changed)]
    in_a_row = view.broken_in_a_row() + 1
    if in_a_row >= rules.max_broken and view.study().state is StudyState.RUNNING:
        last = f"trial {trial.id} of member {trial.member}"
        what = f"{in_a_row} trials in a row failed, the last one ({last})" if in_a_row > 1 else f"{last} failed"
        message = (
            f"{what} with: {summarize_error(error)}. "
            "Completed trials are kept; the training of failed ones is lost. Fix the error, then run the study "
            "again."
        )
        commands.append(SetStudyState(StudyState.FAILED, message))
    return commands


def save_progress(view: View, trial_id: int, token: int, checkpoint: Checkpoint) -> list[Command]:
    """Record where a retry of the trial resumes."""
    trial = verify_token(view.locked_trial(trial_id), trial_id, token)
    if trial is None:
        raise LeaseLost(f"trial {trial_id} has already ended; its progress is not needed")
    trial.check_progress(checkpoint.step)
    return [
        Insert(checkpoint),
        Update(replace(trial, progress=checkpoint.name, progress_step=checkpoint.step)),
    ]


def _first_answer(view: View, trial_id: int, token: int) -> Accepted | Stopped:
    reason = view.trial(trial_id).stop_reason
    if reason is not None:
        return Stopped(trial=trial_id, reason=reason, repeated=True)
    attempt = view.attempt(trial_id, token)
    outcome: JsonObject = attempt.outcome if attempt and attempt.outcome else {}
    fitness = outcome.get("fitness")
    return Accepted(
        job=trial_id,
        fitness=float(fitness) if isinstance(fitness, (int, float, str)) else None,
        repeated=True,
    )
