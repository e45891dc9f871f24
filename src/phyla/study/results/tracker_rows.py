"""The rows that trackers log of a study, read from its store."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, final

from phyla import queries
from phyla.integrations.tensorboard import scalars, series
from phyla.integrations.trackers import Row, TrackedStudy, Tracker, Value, variables_of
from phyla.records import Group, GroupState, JobKind, JobState, JsonObject, Report, StudyRecord, TrialRecord
from phyla.store import Reader, Store, reports_that_count
from phyla.strategies import describe
from phyla.study.places import Places
from phyla.study.results.evaluations import Evaluations
from phyla.study.results.watched_runs import COMMITTED_WITHIN_S

PAGE = 200
"""Trials, or evaluation groups, that are read in one transaction and logged at once."""


@final
@dataclass(slots=True, kw_only=True)
class Cursor:
    """How much of a member is logged: up to `progress` of `trial`, with `count` reports there, until `at`."""

    trial: int = 0
    count: int = 0
    progress: int = 0
    at: float = 0.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """Trials by id, and what trackers are given with them.

    Attributes:
        now: the database's time, in seconds since the epoch.
        reports: what the trials reported that are running or have completed, by trial.
        joined_steps: how far each member had come when it joined.
        sources: the member of each trial whose weights one of the trials took over.
    """

    now: float
    trials: list[TrialRecord]
    reports: dict[int, list[Report]]
    joined_steps: dict[int, int]
    sources: dict[int, int]


def tracked_trials(
    reader: Reader, *, ids: Sequence[int], after: int, limit: int, newest: Mapping[int, int]
) -> Tracked:
    """Return trials of some ids, and after one; `newest` has the last trial of each member that is known."""
    trials = [*queries.trials(reader, ids=ids), *reader.trials(after=after, limit=limit)]
    counts = [trial for trial in trials if trial.ended_at is None or trial.state is JobState.COMPLETED]
    jumps = {trial.parent for trial in trials if trial.jump_from is not None and trial.parent is not None}
    return Tracked(
        now=reader.now(),
        trials=trials,
        reports={
            trial.id: reports_that_count(reader, trial)
            for trial in counts
            if trial.kind is JobKind.TRAIN and trial.id >= newest.get(trial.member, 0)
        },
        joined_steps={number: reader.member(number).joined_steps for number in {trial.member for trial in trials}},
        sources={number: reader.trial(number).member for number in jumps},
    )


@final
class Feed:
    """Yields the rows of a study that are new, from a position on; without one from its beginning.

    Trials that failed or were stopped are left out, except for rows that were logged while they ran.
    """

    def __init__(
        self, store: Store, study: StudyRecord, places: Places, position: JsonObject | None = None
    ) -> None:
        stored: Any = position or {}
        self._store = store
        self._study = study.id
        self._evaluations = Evaluations(store, study, places) if study.config.get("suites") else None
        self._cursors = {int(member): Cursor(**cursor) for member, cursor in stored.get("members", {}).items()}
        self._groups_after: int = stored.get("groups", 0)
        self._ended: set[int] = set(stored.get("ended", ()))
        self._after = 0
        self._open: set[int] = set()
        # Progress of each member, after its completed trials.
        self._progress: dict[int, int] = {}
        # The member of each completed trial, and its progress then.
        self._ends: dict[int, tuple[int, int]] = {}

    def position(self) -> JsonObject:
        """Return the position in the history, as JSON."""
        members = {str(member): asdict(cursor) for member, cursor in self._cursors.items()}
        return {"members": members, "groups": self._groups_after, "ended": sorted(self._ended)}

    def batches(self) -> Iterator[list[Row]]:
        """Yield new rows, one batch per transaction; some are empty."""
        more = True
        while more:
            newest = {member: cursor.trial for member, cursor in self._cursors.items()}
            page = self._store.look(
                self._study, tracked_trials, ids=sorted(self._open), after=self._after, limit=PAGE, newest=newest
            )
            after = self._after
            rows = [row for trial in page.trials for row in self._trial(page, trial)]
            self._after = max([after, *(trial.id for trial in page.trials)])
            more = sum(trial.id > after for trial in page.trials) == PAGE
            yield rows
        yield from self._evaluated()

    def _trial(self, page: "Tracked", trial: TrialRecord) -> Iterator[Row]:
        member = trial.member
        if trial.kind is not JobKind.TRAIN:
            self._ends[trial.id] = member, trial.age
            return
        if member not in self._progress:
            self._progress[member] = page.joined_steps[member]
        # As the member's clock goes: weights that are older than it has come take it along.
        start = max(self._progress[member], trial.age)
        if trial.ended_at is None:
            self._open.add(trial.id)
        else:
            self._open.discard(trial.id)
        if trial.ended_at is None or trial.state is JobState.COMPLETED:
            yield from self._rows(page, trial, start)
        if trial.state is JobState.COMPLETED:
            assert trial.reached_step is not None
            self._progress[member] = start + max(0, trial.reached_step - trial.start_step)
            self._ends[trial.id] = member, self._progress[member]

    def _rows(self, page: "Tracked", trial: TrialRecord, start: int) -> Iterator[Row]:
        """Yield the rows of a trial that are new: its hyperparameters, its reports, its fitness.

        Progress that was logged for an earlier attempt, or for the trial that this one replaces, is not logged
        again.
        """
        cursor = self._cursors.setdefault(trial.member, Cursor())
        if trial.id < cursor.trial:
            return
        if trial.id > cursor.trial:
            cursor.trial, cursor.progress, cursor.count = trial.id, max(cursor.progress, start), 0
            yield self._first(page, trial, cursor, start)
        reported = [(report.step, dict(report.metrics)) for report in page.reports.get(trial.id, ())]
        if trial.state is JobState.COMPLETED and trial.fitness is not None:
            last = max([trial.reached_step or trial.end_step, *(step for step, _ in reported)])
            reported.append((last, {"phyla/fitness": trial.fitness}))
        for step, group in groupby(reported, key=itemgetter(0)):
            progress, reports = start + step - trial.start_step, list(group)
            if progress >= cursor.progress:
                known = cursor.count if progress == cursor.progress else 0
                cursor.progress, cursor.count = progress, max(known, len(reports))
                for _, values in reports[known:]:
                    yield _row(trial, step, cursor, values, page.now)

    def _first(self, page: "Tracked", trial: TrialRecord, cursor: Cursor, start: int) -> Row:
        values: dict[str, Value] = {f"params/{name}": _value(value) for name, value in trial.params.items()}
        values |= {"phyla/trial": trial.id, "phyla/generation": trial.generation}
        note = None
        if trial.jump_from is not None and trial.parent is not None:
            source = page.sources[trial.parent]
            values["phyla/source_member"] = source
            note = (
                f"progress {start}: {describe(trial.reason)}; trial {trial.id} starts from trial "
                f"{trial.parent} of member {source} and leaves trial {trial.jump_from}"
            )
        return _row(trial, trial.start_step, cursor, values, page.now, note)

    def _evaluated(self) -> Iterator[list[Row]]:
        """Yield ended evaluations, each at the progress of its checkpoint, even if it ends late."""
        if self._evaluations is None:
            return
        all_ended, after = True, self._groups_after
        while True:
            groups = self._store.look(self._study, queries.groups, after=after, limit=PAGE)
            if not groups:
                return
            seen = self._store.look(self._study, queries.seen, ids=[group.seen for group in groups])
            trials = {group.id: checkpoint.trial for group, checkpoint in zip(groups, seen, strict=True)}
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
                        rows.append(Row(member=member, progress=progress, at=at, values=scalars(points)))
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
    """Return the row of a trial at a cursor; in an ended trial the time is interpolated by step."""
    at, trained = now, step - trial.start_step
    if trial.started_at is not None and trial.ended_at is not None:
        length = max(1, (trial.reached_step or trial.end_step) - trial.start_step)
        at = trial.started_at + (trial.ended_at - trial.started_at) * min(1.0, max(0.0, trained / length))
    # Rows logged while the trial ran have the time of logging, which may be later.
    cursor.at = max(cursor.at, at)
    row_values = {**values, "phyla/age": trial.age + trained}
    return Row(member=trial.member, progress=cursor.progress, at=cursor.at, values=row_values, note=note)


@final
class WatchedFeed:
    """Yields the evaluations of a watched run that are new, from a position on, each at its checkpoint's step.

    They may come in any order. When a group ends again, after a retry or with more eval tasks, only what was
    measured since is new.
    """

    def __init__(self, store: Store, run: StudyRecord, places: Places, position: JsonObject | None = None) -> None:
        stored: Any = position or {}
        self._store = store
        self._run = run.id
        self._evaluations = Evaluations(store, run, places)
        self._since: float = stored.get("since", 0.0)
        # When each group ended that is logged.
        self._ended: dict[int, float] = {int(group): at for group, at in stored.get("ended", {}).items()}

    def position(self) -> JsonObject:
        """Return what is logged, as JSON."""
        return {"since": self._since, "ended": {str(group): at for group, at in self._ended.items()}}

    def batches(self) -> Iterator[list[Row]]:
        """Yield new rows, by step."""
        now, groups = self._store.look(self._run, queries.ended_groups, self._since)
        news = [group for group in groups if not group.replicate and self._ended.get(group.id) != group.ended_at]
        for first in range(0, len(news), PAGE):
            page = news[first : first + PAGE]
            rows = [row for group in page if (row := self._row(group)) is not None]
            self._ended |= {group.id: group.ended_at or 0.0 for group in page}
            yield sorted(rows, key=attrgetter("progress"))
        self._since = now - COMMITTED_WITHIN_S

    def _row(self, group: Group) -> Row | None:
        logged_until = self._ended.get(group.id, float("-inf"))
        points = [
            point
            for point in self._evaluations.points_of(group)
            # An aggregate over some eval tasks only is replaced once the rest is there.
            if not (point.partial and point.task is None) and point.evaluated_at > logged_until
        ]
        if not points:
            return None
        first, at = points[0], max(point.evaluated_at for point in points)
        step = first.step if first.step >= 0 else first.number
        return Row(member=0, progress=step, at=at, values=scalars(points, f"{series('eval', first)}/"))


def feed_of(
    store: Store, study: StudyRecord, places: Places, position: JsonObject | None = None
) -> Feed | WatchedFeed:
    """Return what is to be logged of a study of any kind, from a position on; see `Feed`."""
    return (WatchedFeed if study.watched else Feed)(store, study, places, position)


def make_tracked_study(study: StudyRecord, places: Places, existing: str | None = None) -> TrackedStudy:
    """Return the study as trackers see it; `existing` is the id of a tracker's run to write to."""
    keys = ("space", "objective", "strategy", "seed")
    config = {name: study.config[name] for name in keys if name in study.config}
    return TrackedStudy(
        name=study.name,
        created_at=study.created_at,
        config=config | ({"checkpoints": study.location} if study.watched and study.location else {}),
        home=places.home,
        watched=study.watched,
        existing=existing,
    )


def write_evaluations(tracker: Tracker, evaluations: Evaluations) -> int:
    """Write all results of a watched run to a tracker; see `rebuild`."""
    return rebuild(tracker, evaluations._store, evaluations.run, evaluations.places)


def rebuild(tracker: Tracker, store: Store, study: StudyRecord, places: Places) -> int:
    """Write all that is stored of a study to a tracker; return how many numbers there were."""
    variables_of(tracker, make_tracked_study(study, places))  # raises where it cannot be used
    tracker.open(make_tracked_study(study, places))
    count = 0
    try:
        for rows in feed_of(store, study, places).batches():
            tracker.log(rows)
            count += sum(len(row.values) for row in rows)
    finally:
        tracker.close()
    return count
