"""The population grows and shrinks while its study goes on."""

from dataclasses import replace
from typing import Any

from phyla.machine.commands import (
    Command,
    EndAttempt,
    InsertMember,
    SetStudyState,
    UpdateJob,
    UpdateMember,
)
from phyla.machine.jobs import moved
from phyla.machine.quorum import as_of
from phyla.machine.rules import TrainRules
from phyla.machine.view import View
from phyla.records import AttemptState, JobState, JsonObject, Member, MemberState, StudyState
from phyla.strategies import Context, Decision, Start, ranked


def youngest(view: View) -> Member:
    """Return the member that has come least far, of those that are not retired; of them, not done if there is one.

    Raises:
        ValueError: all are retired.
    """
    return min(_active(view), key=lambda m: (m.state is MemberState.DONE, m.progress, m.generation, m.index))


def join(view: View, rules: TrainRules, beside: Member, number: int, *, fresh: bool) -> list[Command]:
    """Add a member that stands, in steps and generations, where another one does.

    So barriers, burn-in and the end of the study stay common to all, and the new member trains what that one has
    still to train. It starts from the better half of the published members, the best one first, and with
    hyperparameters near theirs; or fresh, where nobody has published a score.

    Args:
        view: the study, inside the exclusive transaction that will apply the commands.
        rules: what decisions go by.
        beside: the member that has come least far.
        number: how many members joined just before, by which donors are dealt out.
        fresh: start fresh in any case.
    """
    strategy = rules.strategy
    # Weights that are ahead of that one would take the new member's clock along.
    line = strategy.line(beside.progress) if strategy.quorum > 0 else None
    scores = [] if fresh else ranked([as_of(one, line, strategy) for one in _active(view)])
    donor = scores[number % max(1, len(scores) // 2)] if scores else None
    member = Member(
        study=beside.study,
        index=view.size,
        state=MemberState.READY,
        progress=beside.progress,
        generation=beside.generation,
        decided_at=beside.progress,
        head=donor if donor is not None and donor.can_donate else None,
        joined_steps=beside.progress,
        joined_generation=beside.generation,
    )
    return [InsertMember(member)]


def joining(member: Member) -> bool:
    """Return whether a member joined with another's state and has completed no trial since."""
    head = member.head
    return head is not None and head.member != member.index and member.generation == member.joined_generation


def explored(decision: Decision, member: Member, rules: TrainRules, context: Context) -> Decision:
    """Let a member that joined explore, where the strategy would train another's state on as it is."""
    head = member.head
    if not isinstance(decision, Start) or head is None:
        return decision
    reason: JsonObject = {"decision": "join", "donor": {"member": head.member, "trial": head.trial}}
    if decision.weights != head or decision.params != head.params:
        return replace(decision, reason={**decision.reason, "joined": reason["donor"]}, exploited=True)
    params, changes = rules.space.perturb(head.params, context.rng)
    changed: Any = changes
    return replace(decision, params=params, reason={**reason, "changes": changed}, exploited=True)


def reopen(view: View, index: int) -> list[Command]:
    """Make a member ready again that a process called done which does not know how many steps it has to train."""
    member = view.locked_member(index)
    if member.state is not MemberState.DONE or member.retired:
        return []
    return [UpdateMember(replace(member, state=MemberState.READY))]


def reopen_study(view: View, rules: TrainRules) -> list[Command]:
    """Let a completed study that was changed run on; or leave it complete where nobody has anything left to train.

    Args:
        view: the study, inside the exclusive transaction that changed it; its members were made ready by that.
        rules: what decisions go by from now on.
    """
    members = [view.locked_member(index) for index in range(view.size) if not view.member(index).retired]
    if not all(map(rules.strategy.finished, members)):
        return [SetStudyState(StudyState.RUNNING)]
    return [UpdateMember(replace(member, state=MemberState.DONE)) for member in members]


def _active(view: View) -> list[Member]:
    return [member for member in view.members() if not member.retired]


def to_retire(view: View, count: int) -> list[int]:
    """Return the members that go when the population shrinks by `count`: those without a score, then the worst.

    Among those without a score the last ones go first.
    """
    active = _active(view)
    worst = [state.member for state in reversed(ranked(active))]
    unscored = [member.index for member in reversed(active) if member.index not in worst]
    return [*unscored, *worst][:count]


def retire(view: View, index: int) -> list[Command]:
    """Take a member out: its unfinished trial is cancelled, and nothing holds its checkpoints any more.

    Args:
        view: the study, inside the exclusive transaction that will apply the commands.
        index: the member.
    """
    commands: list[Command] = []
    # Trials are locked before members. Meanwhile one may complete, and its member may start the next.
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
        cancelled = moved(trial, JobState.CANCELLED, progress=None, error=why, ended_at=now)
        commands.append(UpdateJob(cancelled))
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
    return [*commands, UpdateMember(out)]
