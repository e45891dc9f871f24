"""Members that were given up in a completed study."""

from dataclasses import dataclass
from typing import final

from phyla.formatting import join_names
from phyla.records import (
    Member,
    StudyRecord,
    StudyState,
    TrialRecord,
    summarize_error,
)
from phyla.store import Reader, Store


def list_given_up(store: Store, study: StudyRecord) -> list[Member]:
    """Return the members that a completed study gave up; they may be retried."""
    return store.look(study.id, given_up).members


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """Members that a completed study gave up, and the last trial that failed among theirs."""

    members: list[Member]
    trial: TrialRecord | None


def given_up(reader: Reader) -> GivenUp:
    """Read which members a completed study gave up."""
    every = reader.members() if reader.study().state is StudyState.COMPLETED else ()
    members = [member for member in every if member.given_up]
    last = max((member.broken_trial or 0 for member in members), default=0)
    return GivenUp(members=members, trial=reader.trial(last) if last else None)


def describe_given_up(store: Store, study: StudyRecord) -> str | None:
    """Describe which members a completed study gave up, and why; None without any."""
    lack = store.look(study.id, given_up)
    members, last = lack.members, lack.trial
    if not members or last is None:
        return None
    which = join_names([f"{member.index} (given up after {member.progress:,} steps)" for member in members])
    subject = f"member{'' if len(members) == 1 else 's'} {which}"
    return (
        f"study {study.name!r} is complete except for {subject}: their trials failed repeatedly, the last "
        f"one, trial {last.id}, with: {summarize_error(last.error)}. Fix the cause, then run the study again; "
        "that trains only what is missing"
    )
