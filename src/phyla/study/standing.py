"""How watched runs stand, and what happened in them since one looked last."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, final

from phyla.errors import ConfigurationError
from phyla.records import Checkpoint, CheckpointState, EvalEvent, Group, GroupState, StudyRecord, StudyState
from phyla.study.evaluations import BestEvaluation, Evaluations
from phyla.study.places import Places

if TYPE_CHECKING:
    from phyla.store import Store

ChangeKind: TypeAlias = Literal["seen", "quarantined", "complete", "partial", "skipped", "gone", "event"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteStanding:
    """How one suite of a watched run stands: evaluations by state, without repetitions, and the best one."""

    name: str
    objective: str | None
    counts: Mapping[str, int]
    best: BestEvaluation | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a watched run stands.

    Attributes:
        run: the run.
        watcher: the process of this machine that watches it; None if there is none here.
        checkpoints: how many were seen, each version of a name counted.
        newest: the one seen last that can be evaluated, or could; None before there is one.
        step_from: where its step comes from; None for a study.
        suites: its suites.
        quarantined: checkpoints that cannot be evaluated as they are now, with the reason as `error`.
    """

    run: StudyRecord
    watcher: str | None
    checkpoints: int
    newest: Checkpoint | None
    step_from: str | None
    suites: tuple[SuiteStanding, ...]
    quarantined: tuple[Checkpoint, ...]

    @property
    def state(self) -> str:
        """The run's state; a run that has not ended and that no process of this machine watches says so."""
        if self.watcher is None and self.run.state is not StudyState.COMPLETED:
            return f"{self.run.state}, not watched here"
        return self.run.state.value

    @property
    def counts(self) -> Counter[str]:
        """Evaluations of all suites by their state."""
        return sum((Counter(suite.counts) for suite in self.suites), Counter[str]())


def standing(found: Evaluations, places: Places) -> Standing:
    """Return how a watched run stands."""
    from phyla.watcher import holder

    run = found.run
    checkpoints = 0
    newest: Checkpoint | None = None
    quarantined: dict[tuple[str, int], Checkpoint] = {}
    for seen in found.checkpoints():
        checkpoints += 1
        if seen.state is CheckpointState.QUARANTINED:
            quarantined[seen.name, seen.index] = seen
        else:
            newest = seen
            quarantined.pop((seen.name, seen.index), None)
    counts: dict[str, Counter[str]] = {suite.name: Counter() for suite in found.suites}
    for group in found.groups():
        if group.replicate == 0 and group.suite in counts:
            counts[group.suite][group.state.value] += 1
    suites = []
    for suite in found.suites:
        best = None
        if suite.objective is not None and counts[suite.name][GroupState.COMPLETE.value]:
            try:
                best = found.best(suite.name)
            except ConfigurationError:
                # Its objective is another one since; the next evaluation finds the best one.
                best = None
        suites.append(
            SuiteStanding(name=suite.name, objective=suite.objective, counts=counts[suite.name], best=best)
        )
    return Standing(
        run=run,
        watcher=holder(places.watch_lock(run.name)),
        checkpoints=checkpoints,
        newest=newest,
        step_from=None if newest is None else _step_from(run, newest),
        suites=tuple(suites),
        quarantined=tuple(quarantined.values()),
    )


def _step_from(run: StudyRecord, newest: Checkpoint) -> str | None:
    from phyla.watcher import get_format

    options: Any = run.config.get("format")
    if newest.trial is not None or not isinstance(options, dict):
        return None
    settings = dict(options)
    try:
        return get_format(str(settings.pop("name", "auto")), **settings).step_rule(newest.name)
    except ConfigurationError:
        # A later version of phyla wrote it.
        return None


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
    seen: Checkpoint
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
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing


def account(store: "Store", names: Iterable[str]) -> Watched:
    """Return how runs stand."""
    runs = [run for run in map(store.find_study, names) if run is not None]
    counts: Counter[str] = Counter()
    missing: list[Missing] = []
    checkpoints = 0
    for run in runs:
        with store.reader(run.id) as reader:
            rows = {seen.id: seen for seen in reader.all_seen()}
            groups = reader.groups()
        checkpoints += len(rows)
        for seen in {(seen.name, seen.index): seen for seen in rows.values()}.values():
            if seen.state is CheckpointState.QUARANTINED:
                why = seen.error or "it cannot be evaluated"
                missing.append(Missing(run=run.name, suite=None, seen=seen, state="quarantined", why=why))
        for group in groups:
            state = group.state.value
            counts[state] += 1
            if _is_missing(group):
                why = group.why or "its turn has not come yet"
                seen = rows[group.seen]
                missing.append(Missing(run=run.name, suite=group.suite, seen=seen, state=state, why=why))
    return Watched(runs=tuple(runs), counts=counts, checkpoints=checkpoints, missing=tuple(missing))


def _is_missing(group: Group) -> bool:
    if group.state is GroupState.GONE:
        # A checkpoint may be gone before its turn, or before its evaluation.
        return group.started and "before its" not in (group.why or "")
    return group.state in (GroupState.QUEUED, GroupState.PARTIAL)


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
    seen: Checkpoint | None = None
    group: Group | None = None
    event: EvalEvent | None = None
    lag_s: float | None = None


@final
class Changes:
    """Tells at each call what happened in a run since the call before; what it holds already is not told."""

    def __init__(self, store: "Store", run: StudyRecord) -> None:
        self._store = store
        self._run = run
        self._seen: dict[int, Checkpoint] = {}
        self._seen_after = 0
        self._events_after = 0
        self._groups_after = 0
        self._ended: set[int] = set()
        self.new()

    def new(self) -> list[Change]:
        """Return what happened."""
        name = self._run.name
        found: list[Change] = []
        with self._store.reader(self._run.id) as reader:
            for seen in reader.all_seen(after=self._seen_after):
                self._seen[seen.id] = seen
                self._seen_after = seen.id
                kind: ChangeKind = "quarantined" if seen.state is CheckpointState.QUARANTINED else "seen"
                found.append(Change(run=name, kind=kind, seen=seen))
            # Groups up to the first one that has not ended are looked at once.
            all_ended = True
            for group in reader.groups(after=self._groups_after):
                if group.state is GroupState.QUEUED:
                    self._ended.discard(group.id)
                    all_ended = False
                elif group.id not in self._ended:
                    self._ended.add(group.id)
                    seen = self._seen.get(group.seen) or reader.seen(group.seen)
                    lag_s = None if group.ended_at is None else max(0.0, group.ended_at - seen.written_at)
                    kind = cast("ChangeKind", group.state.value)
                    found.append(Change(run=name, kind=kind, seen=seen, group=group, lag_s=lag_s))
                if all_ended:
                    self._groups_after = group.id
                    self._ended.discard(group.id)
            for event in reader.events(after=self._events_after):
                self._events_after = event.id
                if event.kind not in ("gone", "quarantined"):
                    of = None if event.seen is None else self._seen.get(event.seen)
                    found.append(Change(run=name, kind="event", seen=of, event=event))
        return found
