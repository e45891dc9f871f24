"""Members that start from checkpoints which exist before the study does."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from phyla.machine.commands import Command, InsertCheckpoint, InsertJob, UpdateMember
from phyla.machine.view import View
from phyla.records import (
    Checkpoint,
    JobKind,
    JobState,
    JsonObject,
    Member,
    MemberState,
    Scored,
    TrialRecord,
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A checkpoint that was copied into the study's place and committed there.

    Attributes:
        name: its name there.
        origin: where it was copied from.
        step: age of its weights.
        params: flat hyperparameters that are given with it; the others are chosen when a member starts.
        index: place within it.
        digest: identity of its content.
        size_bytes: bytes of its files together.
    """

    name: str
    origin: str
    step: int
    params: JsonObject
    index: int
    digest: str
    size_bytes: int


def awaits_imports(view: View) -> bool:
    """Return whether no member has got its import yet; they all get theirs at once, before the first trial."""
    first = view.member(0)
    return first.head is None and first.generation == 0 and first.state is MemberState.READY


def imported(member: Member) -> bool:
    """Return whether a member is at what was imported for it and has completed no trial since."""
    return member.generation == 0 and member.head is not None and member.head.order is None


def import_start(view: View, index: int, imports: Sequence[Imported]) -> list[Command]:
    """Give a member its start: entry `index` modulo their number, as a completed trial without steps.

    Args:
        view: the study, inside the exclusive transaction that gives all members theirs.
        index: the member.
        imports: at least one.
    """
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
        digest=entry.digest,
        size_bytes=entry.size_bytes,
        created_at=now,
    )
    head = Scored(
        trial=trial.id,
        member=index,
        checkpoint=entry.name,
        index=entry.index,
        step=entry.step,
        params=entry.params,
        fitness=None,
        order=None,
    )
    # Several members may start from one checkpoint; the first of them brings it.
    brought: list[Command] = [InsertCheckpoint(row)] if index < len(imports) else []
    return [InsertJob(trial), *brought, UpdateMember(replace(member, head=head))]
