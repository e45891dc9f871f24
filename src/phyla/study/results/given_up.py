"""Members that a completed study is complete without."""

from phyla.errors import (
    ConnectionLost,
)
from phyla.formatting import listed
from phyla.records import (
    Member,
    StudyRecord,
    StudyState,
    said_by,
)
from phyla.store import Store
from phyla.store.retry import again


def gave_up(store: Store, study: StudyRecord) -> list[Member]:
    """Return the members that a completed study is complete without; they may try again."""
    with store.reader(study.id) as reader:
        members = reader.members() if reader.study().state is StudyState.COMPLETED else ()
        return [member for member in members if member.given_up]


@again(ConnectionLost)
def incomplete(store: Store, study: StudyRecord) -> str | None:
    """Say which members a completed study is complete without, and why; None where it lacks none."""
    members = gave_up(store, study)
    if not members:
        return None
    last = max(member.broken_trial or 0 for member in members)
    with store.reader(study.id) as reader:
        error = said_by(reader.trial(last).error)
    which = listed([f"{member.index} (given up after {member.progress:,} steps)" for member in members])
    who = f"member{'' if len(members) == 1 else 's'} {which}"
    return (
        f"study {study.name!r} is complete except for {who}: trials broke again and again, the last one, "
        f"trial {last}, with: {error}. Once the cause is gone, run the study again; that trains only what is "
        "missing"
    )
