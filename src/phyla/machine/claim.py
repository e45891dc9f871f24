"""Claiming: pick a member that is ready, decide, and start the trial."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from phyla.machine.commands import (
    Command,
    Insert,
    SetStrategyState,
    SetStudyState,
    TakeCheckpoint,
    Update,
)
from phyla.machine.evaluate import replicate
from phyla.machine.events import ClaimAnswer, Claimed, Ended, Idle
from phyla.machine.jobs import lease, started
from phyla.machine.population import explored, imported, joining
from phyla.machine.quorum import peers
from phyla.machine.rules import TrainRules
from phyla.machine.states import without_trial
from phyla.machine.view import View
from phyla.records import (
    JobKind,
    JobState,
    JsonObject,
    Member,
    MemberState,
    Scored,
    StudyState,
    TrialRecord,
)
from phyla.strategies import Context, Decision, Measure, Start, Wait, decision_rng, ranked, trial_seed

Step = tuple[ClaimAnswer | None, list[Command]]
"""An answer and commands; with no answer the caller applies the commands and asks again."""


def claim(view: View, rules: TrainRules, worker: str, gone: frozenset[str] = frozenset()) -> Step:
    """Give a worker its next trial.

    Returns:
        The answer and the commands that make it true. Without an answer: apply the commands, ask again.
    """
    study = view.study()
    if study.state is not StudyState.RUNNING:
        return Ended(state=study.state, message=study.message), []
    pending = view.next_pending()
    if pending is not None:
        return _start_attempt(view, rules, worker, pending)
    population = [member for member in view.members() if not member.retired]
    ready = [member for member in population if member.state is MemberState.READY]
    slot, skipped, beyond = slot_of(worker), False, math.inf
    for candidate in sorted(ready, key=lambda one: (one.progress, one.slot != slot, one.index)):
        if candidate.measures_left == 0 and _line(candidate, rules) >= beyond:
            continue
        member = view.locked_ready(candidate)
        if member is None:
            # Another worker is deciding about it, or has.
            skipped = True
            continue
        compared = peers(member, population, rules)
        answer, commands = _decide(view, rules, worker, member, compared, gone)
        if answer is not None or commands:
            return answer, commands
        if compared is None:
            # Those that have come farther need as many to have come as far.
            beyond = _line(member, rules)
    if skipped:
        return Idle(seconds=None, why="other workers are deciding about the members that are ready"), []
    return _nothing_ready(view, rules, population)


def _line(member: Member, rules: TrainRules) -> float:
    """Return how far a member has come as others see it; who has published nothing never waits for a quorum."""
    own = member.published
    return -1.0 if own is None else rules.strategy.line(own.progress)


def _decide(
    view: View,
    rules: TrainRules,
    worker: str,
    member: Member,
    compared: Sequence[Member] | None,
    gone: frozenset[str],
) -> Step:
    """Decide about one ready member; no answer and no commands say that it waits."""
    study = view.study()
    if member.head is not None and member.head.checkpoint in gone:
        # What cannot be loaded cannot be measured.
        member = replace(member, measures_left=0)
    if member.measures_left > 0 and member.head is not None:
        return _measure(view, rules, worker, member, member.head, {"decision": "measure"})
    fitness = rules.suite_fitness
    if fitness is not None and sum(not state.judged for state in member.states) > fitness.max_lag:
        return None, []
    if rules.strategy.finished(member):
        return None, [Update(replace(member, state=MemberState.DONE))]
    if compared is None:
        return None, []
    rng = decision_rng(study.seed, member.index, member.generation, member.replacements)
    seed = trial_seed(rng)
    context = Context(
        space=rules.space,
        objective=rules.objective,
        rng=rng,
        now=view.now(),
        history=view,
        state=study.strategy_state,
    )
    if member.head is not None and member.head.checkpoint in gone:
        decision = _recover(view, member, member.head, rules, compared, context, gone)
    elif imported(member):
        decision = _from_import(member, rules, compared, context)
    else:
        decision = rules.strategy.decide(member, compared, context)
        if joining(member):
            decision = explored(decision, member, rules, context)
    return _apply(view, rules, worker, member, decision, seed, gone)


def slot_of(worker: str) -> str:
    """Return what a worker has in common with the one that takes its place after a restart."""
    return worker.rsplit(":", 2)[0]


def _apply(
    view: View,
    rules: TrainRules,
    worker: str,
    member: Member,
    decision: Decision,
    seed: int,
    gone: frozenset[str],
) -> Step:
    if isinstance(decision, Wait):
        return None, []
    state: list[Command] = [] if decision.state is None else [SetStrategyState(decision.state)]
    if isinstance(decision, Start):
        answer, commands = _start_trial(view, rules, worker, member, decision, seed, gone)
        return answer, state + commands
    if isinstance(decision, Measure) and rules.suite_fitness is not None:
        return None, [*state, *_evaluate_again(view, rules, member, decision)]
    if isinstance(decision, Measure):
        if member.head is None:
            raise ValueError(f"{rules.strategy!r} measures member {member.index}, which has no checkpoint yet")
        again = replace(member, measures_left=max(1, decision.times))
        answer, commands = _measure(view, rules, worker, again, member.head, decision.reason)
        return answer, state + commands
    stopped: list[Command] = [Update(replace(member, state=MemberState.DONE))]
    if decision.study:
        why = str(decision.reason.get("why", "the strategy ended the study"))
        stopped.append(SetStudyState(StudyState.COMPLETED, why))
    return None, state + stopped


def _start_trial(
    view: View, rules: TrainRules, worker: str, member: Member, start: Start, seed: int, gone: frozenset[str]
) -> Step:
    now = view.now()
    weights, reason = start.weights, start.reason
    params, params_from, exploited = start.params, start.params_from, start.exploited
    if weights is not None and weights.checkpoint in gone and member.head is not None:
        # The donor's bytes went between the decision and its commit: keep one's own state.
        reason = {"decision": "continue", "compared": {"why": "the donor's checkpoint is gone"}}
        weights, params, params_from, exploited = member.head, member.head.params, member.head.trial, False
    if member.stops and member.broken_trial is not None:
        stopped = view.trial(member.broken_trial).stop_reason
        reason = reason if stopped is None else {**reason, "stopped": stopped}
    start_step = weights.step if weights else 0
    head = member.head
    trial = TrialRecord(
        id=view.new_job_id(),
        study=member.study,
        member=member.index,
        generation=member.generation,
        state=JobState.RUNNING,
        parent=weights.trial if weights else None,
        parent_checkpoint=weights.checkpoint if weights else None,
        parent_index=weights.index if weights else 0,
        jump_from=head.trial if head and (weights is None or weights.trial != head.trial) else None,
        params_from=params_from,
        replaces=member.broken_trial,
        params=_completed(params, rules),
        start_step=start_step,
        end_step=start_step + max(1, start.steps),
        age=weights.age if weights else 0,
        seed=seed if start.seed is None else start.seed,
        token=1,
        exploited=exploited,
        reason=reason,
        worker=worker,
        created_at=now,
        started_at=now,
    )
    return _running(rules, member, trial)


def _completed(params: JsonObject, rules: TrainRules) -> JsonObject:
    """Add what the space has gained since these hyperparameters were chosen."""
    chosen: Any = params
    return rules.space.with_defaults(chosen)


def _running(rules: TrainRules, member: Member, trial: TrialRecord) -> Step:
    attempt = lease(trial, rules.lease_s)
    commands: list[Command] = []
    if trial.parent_checkpoint is not None:
        commands.append(TakeCheckpoint(trial.parent_checkpoint))
    commands += [
        Insert(trial),
        Insert(attempt),
        Update(
            replace(
                member,
                state=MemberState.RUNNING,
                current_trial=trial.id,
                broken_trial=None,
                slot=slot_of(attempt.worker),
            )
        ),
    ]
    return Claimed(trial=trial, expires_at=attempt.expires_at), commands


def _measure(view: View, rules: TrainRules, worker: str, member: Member, head: Scored, reason: JsonObject) -> Step:
    now = view.now()
    rng = decision_rng(view.study().seed, member.index, member.generation, 1000 + member.measures_left)
    trial = TrialRecord(
        id=view.new_job_id(),
        study=member.study,
        member=member.index,
        generation=member.generation,
        kind=JobKind.MEASURE,
        state=JobState.RUNNING,
        parent=head.trial,
        parent_checkpoint=head.checkpoint,
        parent_index=head.index,
        params_from=head.trial,
        params=_completed(head.params, rules),
        start_step=head.step,
        end_step=head.step,
        age=head.age,
        seed=trial_seed(rng),
        token=1,
        reason={"decision": "measure", **reason},
        worker=worker,
        created_at=now,
        started_at=now,
    )
    return _running(rules, member, trial)


def _evaluate_again(view: View, rules: TrainRules, member: Member, decision: Measure) -> list[Command]:
    """Run the suite on a checkpoint again; the member waits for that."""
    subject = decision.subject or member.head
    assert rules.suite_fitness is not None
    if subject is None:
        raise ValueError(f"{rules.strategy!r} measures member {member.index}, which has no checkpoint yet")
    seen = view.find_seen(subject.checkpoint, subject.index)
    if seen is None or not seen.usable:
        # What cannot be confirmed is not taken over; the member is asked again, and sees that.
        owner = member if subject.member == member.index else view.locked_member(subject.member)
        left = without_trial(owner, subject.trial)
        return [] if left == owner else [Update(left)]
    return replicate(view, rules, subject, max(1, decision.times))


def _start_attempt(view: View, rules: TrainRules, worker: str, trial: TrialRecord) -> Step:
    running = started(trial, worker, view.now())
    attempt = lease(running, rules.lease_s)
    member = replace(view.locked_member(trial.member), slot=slot_of(worker))
    return Claimed(trial=running, expires_at=attempt.expires_at), [
        Update(running),
        Insert(attempt),
        Update(member),
    ]


def _from_import(member: Member, rules: TrainRules, population: Sequence[Member], context: Context) -> Decision:
    """Let a member start as the strategy starts fresh ones, but from what was imported for it."""
    head = member.head
    assert head is not None
    decision = rules.strategy.decide(replace(member, head=None), population, context)
    if not isinstance(decision, Start) or decision.weights is not None:
        return decision
    params = decision.params
    if head.params:
        known: Any = head.params
        chosen: Any = decision.params
        params = rules.space.complete(known, chosen, context.rng)
    return replace(decision, weights=head, params=params, reason={**decision.reason, "imported": head.trial})


def _recover(
    view: View,
    member: Member,
    head: Scored,
    rules: TrainRules,
    population: Sequence[Member],
    context: Context,
    gone: frozenset[str],
) -> Decision:
    """Give a member whose own checkpoint is lost the best state that can still be had."""
    bare = replace(member, head=None, states=())
    decision = rules.strategy.decide(bare, population, context)
    if not isinstance(decision, Start):
        return decision
    row = view.checkpoint(head.checkpoint)
    damaged = row is not None and row.error is not None
    reason: JsonObject = {"decision": "recover", "damaged" if damaged else "lost": head.checkpoint}
    for donor in ranked(population):
        if donor.can_donate and donor.checkpoint not in gone:
            return replace(
                decision,
                weights=donor,
                params=donor.params,
                params_from=donor.trial,
                reason={**reason, "donor": {"member": donor.member, "trial": donor.trial, "step": donor.step}},
                exploited=True,
            )
    return replace(decision, reason=reason)


def _ended(view: View) -> SetStudyState:
    """Return how a study ends whose members are all done; says which of them were given up."""
    members = [member for member in view.members() if not member.retired]
    broken = [member for member in members if member.given_up]
    if not broken:
        return SetStudyState(StudyState.COMPLETED)
    last = max(member.broken_trial or 0 for member in broken)
    lines = (view.trial(last).error or "").strip().splitlines()
    who = ", ".join(str(member.index) for member in broken[:10]) + (", ..." if len(broken) > 10 else "")
    why = f"{'' if len(broken) == 1 else 's'} {who}: trials broke again; the last one, {last}, with: "
    why += lines[-1] if lines else "no message"
    if len(broken) < len(members):
        return SetStudyState(StudyState.COMPLETED, f"given up member{why}")
    message = (
        f"every member was given up, member{why}. Completed trials are kept; what the broken ones trained "
        "is lost. Fix the cause, then resume the study."
    )
    return SetStudyState(StudyState.FAILED, message)


def _nothing_ready(view: View, rules: TrainRules, population: Sequence[Member]) -> Step:
    if any(member.state is MemberState.RUNNING for member in population):
        return Idle(seconds=None, why="every member is being trained, or waits for others"), []
    if rules.suites and view.open_groups():
        return Idle(seconds=None, why="training waits for evaluations"), []
    if [member for member in view.members() if not member.retired] != population:
        return Idle(seconds=None, why="other workers changed the population just now"), []
    if any(member.state is not MemberState.DONE for member in population):
        message = (
            "every member waits for another and nothing is running, so nothing can ever go on; this is a defect "
            "of the strategy: a member may only wait for what running trials can bring"
        )
        return None, [SetStudyState(StudyState.FAILED, message)]
    return None, [_ended(view)]
