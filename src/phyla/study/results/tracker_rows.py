"""What trackers are given of a study, from what is stored."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, final

from phyla.integrations.tensorboard import tag
from phyla.integrations.trackers import Row, TrackedStudy, Tracker, Value
from phyla.records import GroupState, JobKind, JobState, JsonObject, StudyRecord, TrialRecord
from phyla.store import Reader, Store, reports_that_count
from phyla.strategies import describe
from phyla.study.places import Places
from phyla.study.results.evaluations import Evaluations

PAGE = 200
"""Trials, or evaluation groups, that are read in one transaction and logged at once."""


@final
@dataclass(slots=True, kw_only=True)
class Cursor:
    """How much of a member was told: to `progress` in its trial `trial`, and `count` reports there, until `at`."""

    trial: int = 0
    count: int = 0
    progress: int = 0
    at: float = 0.0


@final
class Feed:
    """Yields the rows of a study that are new, from a position on; without one from its beginning.

    Trials that failed or were stopped are left out, but for what was told while they ran.
    """

    def __init__(
        self, store: Store, study: StudyRecord, places: Places, position: JsonObject | None = None
    ) -> None:
        told: Any = position or {}
        self._store = store
        self._study = study.id
        self._evaluations = Evaluations(store, study, places) if study.config.get("suites") else None
        self._cursors = {int(member): Cursor(**its) for member, its in told.get("members", {}).items()}
        self._groups_after: int = told.get("groups", 0)
        self._ended: set[int] = set(told.get("ended", ()))
        self._after = 0
        self._open: set[int] = set()
        # Progress of each member, after its completed trials.
        self._progress: dict[int, int] = {}
        # The member of each completed trial, and its progress then.
        self._ends: dict[int, tuple[int, int]] = {}

    def position(self) -> JsonObject:
        """Return how much was told, as JSON."""
        members = {str(member): asdict(cursor) for member, cursor in self._cursors.items()}
        return {"members": members, "groups": self._groups_after, "ended": sorted(self._ended)}

    def batches(self) -> Iterator[list[Row]]:
        """Yield what is new, in batches of what one transaction read; some are empty."""
        more = True
        while more:
            with self._store.reader(self._study) as reader:
                now = reader.now()
                trials = [reader.trial(known) for known in sorted(self._open)]
                page = reader.trials(after=self._after, limit=PAGE)
                rows = [row for trial in (*trials, *page) for row in self._trial(reader, trial, now)]
            self._after = page[-1].id if page else self._after
            more = len(page) == PAGE
            yield rows
        yield from self._evaluated()

    def _trial(self, reader: Reader, trial: TrialRecord, now: float) -> Iterator[Row]:
        member = trial.member
        if trial.kind is not JobKind.TRAIN:
            self._ends[trial.id] = member, trial.age
            return
        if member not in self._progress:
            self._progress[member] = reader.member(member).joined_steps
        # As the member's clock goes: weights that are older than it has come take it along.
        start = max(self._progress[member], trial.age)
        if trial.ended_at is None:
            self._open.add(trial.id)
        else:
            self._open.discard(trial.id)
        if trial.ended_at is None or trial.state is JobState.COMPLETED:
            yield from self._rows(reader, trial, start, now)
        if trial.state is JobState.COMPLETED:
            assert trial.reached_step is not None
            self._progress[member] = start + max(0, trial.reached_step - trial.start_step)
            self._ends[trial.id] = member, self._progress[member]

    def _rows(self, reader: Reader, trial: TrialRecord, start: int, now: float) -> Iterator[Row]:
        """Yield the rows of a trial that are new: its hyperparameters, its reports, its fitness.

        What an earlier attempt, or the trial that this one replaces, was told to have come to is not told again.
        """
        cursor = self._cursors.setdefault(trial.member, Cursor())
        if trial.id < cursor.trial:
            return
        if trial.id > cursor.trial:
            cursor.trial, cursor.progress, cursor.count = trial.id, max(cursor.progress, start), 0
            yield self._first(reader, trial, cursor, start, now)
        told = [(report.step, dict(report.metrics)) for report in reports_that_count(reader, trial)]
        if trial.state is JobState.COMPLETED and trial.fitness is not None:
            last = max([trial.reached_step or trial.end_step, *(step for step, _ in told)])
            told.append((last, {"phyla/fitness": trial.fitness}))
        for step, its in groupby(told, key=itemgetter(0)):
            progress, reports = start + step - trial.start_step, list(its)
            if progress >= cursor.progress:
                known = cursor.count if progress == cursor.progress else 0
                cursor.progress, cursor.count = progress, max(known, len(reports))
                for _, values in reports[known:]:
                    yield _row(trial, step, cursor, values, now)

    def _first(self, reader: Reader, trial: TrialRecord, cursor: Cursor, start: int, now: float) -> Row:
        values: dict[str, Value] = {f"params/{name}": _value(each) for name, each in trial.params.items()}
        values |= {"phyla/trial": trial.id, "phyla/generation": trial.generation}
        note = None
        if trial.jump_from is not None and trial.parent is not None:
            source = reader.trial(trial.parent).member
            values["phyla/source_member"] = source
            note = (
                f"progress {start}: {describe(trial.reason)}; trial {trial.id} starts from trial "
                f"{trial.parent} of member {source} and leaves trial {trial.jump_from}"
            )
        return _row(trial, trial.start_step, cursor, values, now, note)

    def _evaluated(self) -> Iterator[list[Row]]:
        """Yield the evaluations that have ended; those that come late are at the progress they belong to."""
        if self._evaluations is None:
            return
        all_ended, after = True, self._groups_after
        while True:
            with self._store.reader(self._study) as reader:
                groups = reader.groups(after=after, limit=PAGE)
                trials = {group.id: reader.seen(group.seen).trial for group in groups}
            if not groups:
                return
            rows = []
            for group in groups:
                after, trial = group.id, trials[group.id] or 0
                if group.state is GroupState.QUEUED or trial not in self._ends:
                    self._ended.discard(group.id)
                    all_ended = False
                elif group.id not in self._ended:
                    self._ended.add(group.id)
                    member, progress = self._ends[trial]
                    points = [] if group.replicate else list(self._evaluations.points_of(group, member))
                    if points:
                        at = max(point.evaluated_at for point in points)
                        values = {tag(point): point.value for point in points}
                        rows.append(Row(member=member, progress=progress, at=at, values=values))
                if all_ended:
                    self._groups_after = group.id
                    self._ended.discard(group.id)
            yield rows


def _value(value: Any) -> Value:
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, (int, float)) else str(value)


def _row(
    trial: TrialRecord, step: int, cursor: Cursor, values: Mapping[str, Value], now: float, note: str | None = None
) -> Row:
    """Return the row of a trial where a cursor is; that of an ended one has the time where its step lies in it."""
    at, trained = now, step - trial.start_step
    if trial.started_at is not None and trial.ended_at is not None:
        length = max(1, (trial.reached_step or trial.end_step) - trial.start_step)
        at = trial.started_at + (trial.ended_at - trial.started_at) * min(1.0, max(0.0, trained / length))
    # What was told while it ran has the time when it was told, which may be later.
    cursor.at = max(cursor.at, at)
    told = {**values, "phyla/age": trial.age + trained}
    return Row(member=trial.member, progress=cursor.progress, at=cursor.at, values=told, note=note)


def tracked(study: StudyRecord, places: Places) -> TrackedStudy:
    """Return what trackers know of a study."""
    shown = ("space", "objective", "strategy", "seed")
    config = {name: study.config[name] for name in shown if name in study.config}
    return TrackedStudy(name=study.name, created_at=study.created_at, config=config, home=places.home)


def rebuild(tracker: Tracker, store: Store, study: StudyRecord, places: Places) -> int:
    """Write all that is stored of a study to a tracker; return how many numbers there were."""
    tracker.environment(tracked(study, places))  # raises where it cannot be used
    tracker.open(tracked(study, places))
    count = 0
    try:
        for rows in Feed(store, study, places).batches():
            tracker.log(rows)
            count += sum(len(row.values) for row in rows)
    finally:
        tracker.close()
    return count
