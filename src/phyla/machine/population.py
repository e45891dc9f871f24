"""Changes of the population: members that start from imports, that join, and that are retired."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from phyla.machine.commands import (
    Command,
    EndAttempt,
    Insert,
    SetStudyState,
    Update,
)
from phyla.machine.jobs import change_state
from phyla.machine.quorum import as_of
from phyla.machine.rules import TrainRules
from phyla.machine.view import Reader, View
from phyla.records import (
    AttemptState,
    Checkpoint,
    JobKind,
    JobState,
    JsonObject,
    Member,
    MemberState,
    StudyState,
    TrialRecord,
)
from phyla.strategies import Context, Decision, Start, ranked
from phyla.strategies.starts import scored_trial


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A checkpoint that was copied into the study's directory and committed there.

    Attributes:
        name: its name there.
        origin: the path from which it was copied.
        step: age of its weights.
        params: its flat hyperparameters; missing ones are chosen when a member starts.
        index: place within it.
        digest: identity of its content.
        size_bytes: total size of its files.
    """

    name: str
    origin: str
    step: int
    params: JsonObject
    index: int
    digest: str
    size_bytes: int


def awaits_imports(view: Reader) -> bool:
    """Return whether members still wait for their imports; all get them at once, before the first trial."""
    first = view.member(0)
    return first.head is None and first.generation == 0 and first.state is MemberState.READY


def is_at_import(member: Member) -> bool:
    """Return whether a member is still at its import: it has completed no trial since."""
    return member.generation == 0 and member.head is not None and member.head.order is None


def import_start(view: View, index: int, imports: Sequence[Imported]) -> list[Command]:
    """Give a member its start: entry `index` modulo their number, as a completed trial without steps."""
    now = view.now()
    entry = imports[index % len(imports)]
    member = view.locked_member(index)
    trial = TrialRecord(
        id=view.new_job_id(),
        study=member.study,
        member=index,
        generation=0,
        kind=JobKind.IMPORT,
        state=JobState.COMPLETED,
        params=entry.params,
        start_step=entry.step,
        end_step=entry.step,
        reached_step=entry.step,
        seed=0,
        checkpoint=entry.name,
        checkpoint_index=entry.index,
        reason={"decision": "import", "digest": entry.digest},
        created_at=now,
        started_at=now,
        ended_at=now,
        origin=entry.origin,
    )
    row = Checkpoint(
        name=entry.name,
        study=member.study,
        trial=trial.id,
        step=entry.step,
        identity=entry.digest,
        size_bytes=entry.size_bytes,
        created_at=now,
    )
    # Several members may start from one checkpoint; the first one inserts it.
    brought: list[Command] = [Insert(row)] if index < len(imports) else []
    return [Insert(trial), *brought, Update(replace(member, head=scored_trial(trial)))]


def youngest(view: View) -> Member:
    """Return the unretired member with the least progress; of equals, one that is not done."""
    return min(_active(view), key=lambda m: (m.state is MemberState.DONE, m.progress, m.generation, m.index))


def join(view: View, rules: TrainRules, beside: Member, number: int, *, fresh: bool) -> list[Command]:
    """Add a member at the steps and generations of another member.

    Barriers, burn-in and the end of the study stay common to all: the new member has the same remaining training
    as the other. It starts from the better half of the published members, the best first, with hyperparameters
    near theirs; or fresh, if no member has published a score.
    """
    strategy = rules.strategy
    # Weights ahead of the other member would move the new member's clock forward.
    line = strategy.line(beside.progress) if strategy.quorum > 0 else math.inf
    scores = [] if fresh else ranked(as_of(_active(view), line, strategy))
    donor = scores[number % max(1, len(scores) // 2)] if scores else None
    member = Member(
        study=beside.study,
        index=view.study().population_size,
        state=MemberState.READY,
        progress=beside.progress,
        generation=beside.generation,
        decided_at=beside.progress,
        head=donor if donor is not None and donor.can_donate else None,
        joined_steps=beside.progress,
        joined_generation=beside.generation,
    )
    return [Insert(member)]


def joining(member: Member) -> bool:
    """Return whether a member joined with another's state and has completed no trial since."""
    head = member.head
    return head is not None and head.member != member.index and member.generation == member.joined_generation


def explore_after_join(decision: Decision, member: Member, rules: TrainRules, context: Context) -> Decision:
    """Make a joined member explore if the strategy would continue another member's state unchanged."""
    head = member.head
    if not isinstance(decision, Start) or head is None:
        return decision
    giver: JsonObject = {"member": head.member, "trial": head.trial, "step": head.step}
    reason: JsonObject = {"decision": "join", "donor": giver}
    if decision.weights != head or decision.params != head.params:
        return replace(decision, reason={**decision.reason, "joined": reason["donor"]}, exploited=True)
    params, changes = rules.space.perturb(head.params, context.rng)
    changed: Any = changes
    return replace(decision, params=params, reason={**reason, "changes": changed}, exploited=True)


def reopen(view: View, index: int) -> list[Command]:
    """Make a member ready again that a process with outdated settings marked as done."""
    member = view.locked_member(index)
    if member.state is not MemberState.DONE or member.retired:
        return []
    return [Update(replace(member, state=MemberState.READY))]


def reopen_study(view: View, rules: TrainRules) -> list[Command]:
    """Resume a completed study after a change, unless no member has anything left to train."""
    members = [view.locked_member(member.index) for member in _active(view)]
    if not all(map(rules.strategy.finished, members)):
        return [SetStudyState(StudyState.RUNNING)]
    return [Update(replace(member, state=MemberState.DONE)) for member in members]


def _active(view: View) -> list[Member]:
    return [member for member in view.members() if not member.retired]


def to_retire(view: View, count: int) -> list[int]:
    """Return the members to retire when the population shrinks by `count`: those without a score, then the worst.

    Of those without a score, the last are retired first.
    """
    active = _active(view)
    worst = [state.member for state in reversed(ranked(active))]
    unscored = [member.index for member in reversed(active) if member.index not in worst]
    return [*unscored, *worst][:count]


def retire(view: View, index: int) -> list[Command]:
    """Retire a member: its unfinished trial is cancelled, and its checkpoints become collectable."""
    commands: list[Command] = []
    # Trials are locked before members; until then a trial may complete, and its member start the next.
    current = view.member(index).current_trial
    trial = None if current is None else view.locked_trial(current)
    member = view.locked_member(index)
    if member.current_trial not in (None, current):
        trial = view.locked_trial(member.current_trial)
    if trial is not None and trial.state in (JobState.PENDING, JobState.RUNNING):
        why, now = "its member was retired: the population shrank", view.now()
        if trial.state is JobState.RUNNING:
            commands.append(
                EndAttempt(job=trial.id, token=trial.token, state=AttemptState.CANCELLED, ended_at=now, error=why)
            )
        cancelled = change_state(trial, JobState.CANCELLED, progress=None, error=why, ended_at=now)
        commands.append(Update(cancelled))
    out = replace(
        member,
        state=MemberState.DONE,
        head=None,
        states=(),
        best=None,
        current_trial=None,
        broken_trial=None,
        measures_left=0,
        retired=True,
    )
    return [*commands, Update(out)]
