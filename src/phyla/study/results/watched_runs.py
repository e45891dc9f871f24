"""The status of watched runs, and what changed since the last look."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, final

from phyla.errors import ConfigurationError
from phyla.evaluation import SuiteOutline
from phyla.formatting import format_count
from phyla.machine import Reader
from phyla.records import Checkpoint, CheckpointState, EvalEvent, Group, GroupState, StudyRecord, StudyState

if TYPE_CHECKING:
    from phyla.store import Store
    from phyla.study.results.evaluations import BestEvaluation, Evaluations

COMMITTED_WITHIN_S = 60.0
"""How long after its end a group may become visible: that is the time when its transaction began."""

ChangeKind: TypeAlias = Literal["seen", "quarantined", "complete", "partial", "skipped", "gone", "event"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """An evaluation that should be there and is not."""

    run: str
    suite: str | None  # name of the suite; None where the checkpoint itself cannot be evaluated
    seen: Checkpoint
    state: str  # queued, partial, gone (during its turn) or quarantined
    why: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRunStatus:
    """The status of a watched run."""

    run: StudyRecord
    watcher: str | None  # the process of this machine that watches it; None if there is none here
    checkpoints: int  # how many were seen, each version of a name counted
    newest: Checkpoint | None  # the one seen last that can be evaluated, or could; None before there is one
    step_from: str | None  # where its step comes from; None for a study
    suites: tuple[SuiteOutline, ...]
    # Of each suite, how many evaluations are in each state, without repetitions.
    evaluations: Mapping[str, Counter[str]]
    best: "Mapping[str, BestEvaluation]"  # the best checkpoint of each suite that has one
    # Checkpoints that cannot be evaluated at present, with the reason as `error`.
    quarantined: tuple[Checkpoint, ...]
    missing: tuple[Missing, ...]  # evaluations that should be there and are not

    @property
    def state(self) -> str:
        """The run's state, with a note if it has not ended and no process of this machine watches it."""
        ended = self.run.state is StudyState.COMPLETED
        return self.run.state.value if self.watcher or ended else f"{self.run.state}, not watched here"

    @property
    def counts(self) -> Counter[str]:
        """Evaluations of all suites by their state."""
        return sum(self.evaluations.values(), Counter())


@final
@dataclass(frozen=True, slots=True, repr=False)
class Watched:
    """The status of several watched runs."""

    standings: tuple[WatchedRunStatus, ...]

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.counts.items()) or "none"
        names = ", ".join(run.name for run in self.runs)
        return f"<Watched {names}: {format_count(self.checkpoints, 'checkpoint')}, evaluations: {states}>"

    @property
    def runs(self) -> tuple[StudyRecord, ...]:
        """The runs."""
        return tuple(status.run for status in self.standings)

    @property
    def counts(self) -> Counter[str]:
        """Evaluations by state, over all runs."""
        return sum((status.counts for status in self.standings), Counter())

    @property
    def checkpoints(self) -> int:
        """How many checkpoints were seen."""
        return sum(status.checkpoints for status in self.standings)

    @property
    def missing(self) -> list[Missing]:
        """Evaluations that should be there and are not."""
        return [missing for status in self.standings for missing in status.missing]

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing


def read_run_status(evaluated_run: "Evaluations") -> WatchedRunStatus:
    """Read the status of a watched run."""
    from phyla.watcher import holder

    run, suites = evaluated_run.run, evaluated_run.suites
    evaluations: dict[str, Counter[str]] = {suite.name: Counter() for suite in suites}
    lacking: dict[int, list[Group]] = {}
    for group in evaluated_run.groups():
        if group.suite not in evaluations:
            # The suite was removed, so nothing of it is missing.
            continue
        if group.replicate == 0:
            evaluations[group.suite][group.state.value] += 1
        # A checkpoint may be gone before its turn, or before its evaluation; then nothing is missing.
        lost = group.state is GroupState.GONE and group.started and "before its" not in (group.why or "")
        if lost or group.state in (GroupState.QUEUED, GroupState.PARTIAL):
            lacking.setdefault(group.seen, []).append(group)
    checkpoints, newest = 0, None
    quarantined: dict[tuple[str, int], Checkpoint] = {}
    missing = []
    for seen in evaluated_run.checkpoints():
        checkpoints += 1
        if seen.state is CheckpointState.QUARANTINED:
            quarantined[seen.name, seen.index] = seen
        else:
            # Copies may arrive out of order; without a step the order of arrival decides.
            if newest is None or (seen.branch, seen.step) >= (newest.branch, newest.step) or seen.step < 0:
                newest = seen
            quarantined.pop((seen.name, seen.index), None)
        for group in lacking.get(seen.id, ()):
            why = group.why or "its turn has not come yet"
            state = group.state.value
            missing.append(Missing(run=run.name, suite=group.suite, seen=seen, state=state, why=why))
    for seen in quarantined.values():
        why = seen.error or "it cannot be evaluated"
        missing.append(Missing(run=run.name, suite=None, seen=seen, state="quarantined", why=why))
    best = {}
    for suite in suites:
        # Its objective may have changed to an aggregate that the best checkpoint does not have yet.
        with suppress(ConfigurationError):
            best_evaluation = None if suite.objective is None else evaluated_run.best(suite.name)
            if best_evaluation is not None:
                best[suite.name] = best_evaluation
    return WatchedRunStatus(
        run=run,
        watcher=holder(evaluated_run.places.watch_lock(run.name)),
        checkpoints=checkpoints,
        newest=newest,
        step_from=None if newest is None else _step_from(run, newest),
        suites=suites,
        evaluations=evaluations,
        best=best,
        quarantined=tuple(quarantined.values()),
        missing=tuple(missing),
    )


def _step_from(run: StudyRecord, newest: Checkpoint) -> str | None:
    from phyla.watcher import StepFrom, get_format

    options: Any = run.config.get("format")
    if newest.trial is not None or not isinstance(options, dict):
        return None
    try:
        rule = get_format(**{"name": "auto", **options}).step_rule(newest.name)
        return StepFrom.describe(rule, newest.step)
    except ConfigurationError:
        # Its format is a plug-in that is not installed here.
        return None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that happened in a watched run."""

    run: str
    kind: ChangeKind  # a checkpoint was seen or put aside, a group ended, or `event`: something else
    seen: Checkpoint | None = None  # the checkpoint; None where an event is about none
    group: Group | None = None
    event: EvalEvent | None = None

    @property
    def lag_s(self) -> float | None:
        """Seconds from the writing of the checkpoint to the end of the group."""
        if self.group is None or self.seen is None or self.group.ended_at is None:
            return None
        return max(0.0, self.group.ended_at - self.seen.written_at)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunNews:
    """What is new in a run: checkpoints, groups that ended, events, and the checkpoints of these two by id."""

    now: float
    seen: list[Checkpoint]
    ended: list[Group]
    events: list[EvalEvent]
    subjects: dict[int, Checkpoint]


def run_news(reader: Reader, seen_after: int, events_after: int, ended_since: float) -> RunNews:
    """Return what is new in a run."""
    ended, events = list(reader.ended_groups(ended_since)), list(reader.events(after=events_after))
    ids = {group.seen for group in ended} | {event.seen for event in events if event.seen is not None}
    return RunNews(
        now=reader.now(),
        seen=list(reader.all_seen(after=seen_after)),
        ended=ended,
        events=events,
        subjects={number: reader.seen(number) for number in sorted(ids)},
    )


@final
class RunChanges:
    """Returns at each call what happened in a run since the previous call, beginning with the present."""

    def __init__(self, store: "Store", run: StudyRecord) -> None:
        self._store = store
        self._run = run
        self._seen_after = 0
        self._events_after = 0
        self._ended_since = 0.0
        self._ended: dict[int, float | None] = {}
        self.new()

    def new(self) -> list[Change]:
        """Return what happened."""
        name, changes = self._run.name, list[Change]()
        news = self._store.look(self._run.id, run_news, self._seen_after, self._events_after, self._ended_since)
        for seen in news.seen:
            kind: ChangeKind = "quarantined" if seen.state is CheckpointState.QUARANTINED else "seen"
            changes.append(Change(run=name, kind=kind, seen=seen))
        for group in news.ended:
            # One may be queued, and end, again.
            if self._ended.get(group.id) != group.ended_at:
                kind = cast("ChangeKind", group.state.value)
                changes.append(Change(run=name, kind=kind, seen=news.subjects[group.seen], group=group))
        for event in news.events:
            if event.kind not in ("gone", "quarantined"):
                of = None if event.seen is None else news.subjects[event.seen]
                changes.append(Change(run=name, kind="event", seen=of, event=event))
        self._seen_after = max([self._seen_after, *(seen.id for seen in news.seen)])
        self._events_after = max([self._events_after, *(event.id for event in news.events)])
        self._ended = {group.id: group.ended_at for group in news.ended}
        self._ended_since = news.now - COMMITTED_WITHIN_S
        return changes
