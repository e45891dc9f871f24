"""What happened in watched runs since one looked last, and how everything ended."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, final

from phyla.records import EvalEvent, Group, GroupState, Seen, SeenState, StudyRecord, StudyState

if TYPE_CHECKING:
    from phyla.store import Reader, Store

ChangeKind: TypeAlias = Literal["seen", "quarantined", "complete", "partial", "skipped", "gone", "event"]
BEFORE = "before its"
"""In the reason why a checkpoint is gone: before its turn, or its evaluation."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that happened in a watched run.

    Attributes:
        run: name of the run.
        kind: a checkpoint was seen or put aside, a group ended, or `event`: something else.
        seen: the checkpoint; None where an event is about none.
        group: the group that ended, or None.
        event: the event, or None.
        lag_s: seconds from the writing of the checkpoint to the end of the group.
    """

    run: str
    kind: ChangeKind
    seen: Seen | None = None
    group: Group | None = None
    event: EvalEvent | None = None
    lag_s: float | None = None


@final
class Changes:
    """Tells at each call what happened since the call before.

    Args:
        store: where the runs are remembered.
        runs: the runs. What they hold already is not told.
    """

    def __init__(self, store: "Store", runs: Sequence[StudyRecord]) -> None:
        self._store = store
        self._of_runs = [_RunChanges(run) for run in runs]
        self.new()

    def new(self) -> list[Change]:
        """Return what happened.

        Raises:
            StoreError: the database failed.
        """
        found: list[Change] = []
        for each in self._of_runs:
            with self._store.reader(each.run.id) as reader:
                found += each.new(reader)
        return found


@final
class _RunChanges:
    def __init__(self, run: StudyRecord) -> None:
        self.run = run
        self._seen: dict[int, Seen] = {}
        self._seen_after = 0
        self._events_after = 0
        self._groups_after = 0
        self._ended: dict[int, float | None] = {}

    def new(self, reader: "Reader") -> list[Change]:
        found: list[Change] = []
        for seen in reader.all_seen(after=self._seen_after):
            self._seen[seen.id] = seen
            self._seen_after = seen.id
            kind: ChangeKind = "quarantined" if seen.state is SeenState.QUARANTINED else "seen"
            found.append(Change(run=self.run.name, kind=kind, seen=seen))
        # Groups up to the first one that has not ended are looked at once.
        all_ended = True
        for group in reader.groups(after=self._groups_after):
            if group.state is GroupState.QUEUED:
                self._ended.pop(group.id, None)
                all_ended = False
            elif group.id not in self._ended:
                self._ended[group.id] = group.ended_at
                seen = self._seen.get(group.seen) or reader.seen(group.seen)
                lag_s = None if group.ended_at is None else max(0.0, group.ended_at - seen.written_at)
                kind = cast("ChangeKind", group.state.value)
                found.append(Change(run=self.run.name, kind=kind, seen=seen, group=group, lag_s=lag_s))
            if all_ended:
                self._groups_after = group.id
                self._ended.pop(group.id, None)
        for event in reader.events(after=self._events_after):
            self._events_after = event.id
            if event.kind not in ("gone", "quarantined"):
                of = None if event.seen is None else self._seen.get(event.seen)
                found.append(Change(run=self.run.name, kind="event", seen=of, event=event))
        return found


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """An evaluation that should be there and is not.

    Attributes:
        run: name of the run.
        suite: name of the suite; None where the checkpoint itself cannot be evaluated.
        seen: the checkpoint.
        state: queued, partial, gone (during its turn) or quarantined.
        why: in words.
    """

    run: str
    suite: str | None
    seen: Seen
    state: str
    why: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """How watched runs stand.

    Attributes:
        runs: the runs.
        counts: groups by state, over all runs.
        checkpoints: how many checkpoints were seen.
        missing: evaluations that should be there and are not.
    """

    runs: tuple[StudyRecord, ...]
    counts: Mapping[str, int]
    checkpoints: int
    missing: tuple[Missing, ...]

    @property
    def ended(self) -> bool:
        """Whether every run has ended: no more checkpoints come, and every checkpoint is evaluated or skipped."""
        return all(run.state is StudyState.COMPLETED for run in self.runs)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing


def account(store: "Store", names: Iterable[str]) -> Watched:
    """Return how runs stand.

    Raises:
        StoreError: the database failed.
    """
    runs = [run for run in map(store.find_study, names) if run is not None]
    counts: dict[str, int] = {}
    missing: list[Missing] = []
    checkpoints = 0
    for run in runs:
        with store.reader(run.id) as reader:
            rows = {seen.id: seen for seen in reader.all_seen()}
            groups = reader.groups()
        checkpoints += len(rows)
        newest = {(seen.name, seen.index): seen.id for seen in rows.values()}
        for seen in rows.values():
            if seen.state is SeenState.QUARANTINED and newest[seen.name, seen.index] == seen.id:
                why = seen.error or "it cannot be evaluated"
                missing.append(Missing(run=run.name, suite=None, seen=seen, state="quarantined", why=why))
        for group in groups:
            counts[group.state.value] = counts.get(group.state.value, 0) + 1
            if _is_missing(group):
                why = group.why or "its turn has not come yet"
                missing.append(
                    Missing(
                        run=run.name, suite=group.suite, seen=rows[group.seen], state=group.state.value, why=why
                    )
                )
    return Watched(runs=tuple(runs), counts=counts, checkpoints=checkpoints, missing=tuple(missing))


def _is_missing(group: Group) -> bool:
    if group.state is GroupState.GONE:
        return group.started and BEFORE not in (group.why or "")
    return group.state in (GroupState.QUEUED, GroupState.PARTIAL)
