"""Checkpoints that cannot be used any more: their bytes are gone, or are not what was committed."""

from phyla.machine.commands import Command, SetCheckpointState, UpdateMember
from phyla.machine.states import without_states_on
from phyla.machine.view import View
from phyla.records import CheckpointState


def set_unusable(view: View, name: str, damage: str | None, *, taker: int | None = None) -> list[Command]:
    """Mark a live checkpoint as lost or damaged, so that it is neither donor nor parent any more.

    Args:
        view: the study.
        name: the checkpoint.
        damage: what is wrong with its files; None if there are none any more.
        taker: index of a member whose row the caller writes, without that checkpoint.
    """
    row = view.checkpoint(name)
    if row is None or row.state is not CheckpointState.LIVE:
        return []
    state = CheckpointState.LOST if damage is None else CheckpointState.DAMAGED
    commands: list[Command] = [SetCheckpointState(name, state, damage)]
    owner = view.trial(row.trial).member
    if owner != taker:
        member = view.locked_member(owner)
        changed = without_states_on(member, name)
        if changed != member:
            commands.append(UpdateMember(changed))
    return commands
