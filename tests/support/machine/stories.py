"""The story of a job: each command that was committed about it, in order, with when, and who asked for what.

Of a study whose processes are others, the story is what its store and its recordings say.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

from phyla.controller import Controller
from phyla.machine import Command
from phyla.records import EvalJob, JobState, TrialRecord
from phyla.store import Store, Transaction
from phyla.study import Results

REQUESTS = ("claim", "complete", "fail", "release", "lose_worker", "renew", "report", "save_progress")
MOST, JOBS, LINES, WIDTH = 10_000, 3, 12, 80


class Entry(NamedTuple):
    """One command about one job, and the state that the job had before, if that is known."""

    at: float
    request: tuple[object, ...]
    job: int
    record: object
    before: JobState | None

    @property
    def line(self) -> str:
        """When, who asked for what, and what changed; formatted here, since few stories are shown."""
        name, *arguments = self.request or ("no request",)
        move = f"{self.before} -> {self.record.state}, " if isinstance(self.record, TrialRecord | EvalJob) else ""
        return f"  {self.at:.1f}  {name}{arguments!r:.{WIDTH}}: {move}{self.record!r:.{WIDTH}}"


class Stories:
    """Listens to a store, and to controllers, and remembers what was committed about each job; for one thread."""

    newest: ClassVar["Stories | None"] = None

    def __init__(self, store: Store) -> None:
        Stories.newest = self
        self._begin = store.transaction
        self._request: tuple[object, ...] = ()
        self._states: dict[int, JobState] = {}
        self._entries: deque[Entry] = deque(maxlen=MOST)
        vars(store)["transaction"] = self._transaction

    def listen(self, controller: Controller) -> Controller:
        """Return a controller whose requests are part of the stories."""
        for name in REQUESTS:
            vars(controller)[name] = partial(self._ask, name, getattr(controller, name))
        return controller

    @contextmanager
    def _transaction(self, *study: Any, **how: Any) -> Iterator[Transaction]:
        commands: list[Command] = []
        with self._begin(*study, **how) as tx:
            apply = tx.apply

            def note(new: Sequence[Command]) -> list[str]:
                names = apply(new)
                commands.extend(new)
                return names

            vars(tx)["apply"] = note
            yield tx
        for command in commands:
            self._remember(tx.now(), getattr(command, "record", command))

    def _ask(self, name: str, act: Any, *arguments: Any, **how: Any) -> Any:
        outer = self._request
        self._request = outer or (name, *arguments, *how.values())
        try:
            return act(*arguments, **how)
        finally:
            self._request = outer

    def _remember(self, at: float, record: object) -> None:
        job = record.id if isinstance(record, TrialRecord | EvalJob) else _job_of(record)
        if job is not None:
            self._entries.append(Entry(at, self._request, job, record, self._states.get(job)))
        if isinstance(record, TrialRecord | EvalJob):
            self._states[record.id] = record.state

    def entries(self, job: int) -> list[Entry]:
        """Return what was committed about a job."""
        return [entry for entry in self._entries if entry.job == job]

    def story(self, job: int) -> str:
        """Return the end of the story of a job, one line for each command."""
        return "\n".join([f"story of job {job}:", *(entry.line for entry in self.entries(job)[-LINES:])])

    def touched_last(self) -> str:
        """Return the stories of the jobs that were touched last, the last one first."""
        jobs = dict.fromkeys(entry.job for entry in reversed(self._entries))
        return "\n".join(map(self.story, list(jobs)[:JOBS]))


def jobs_in(violations: Iterable[str]) -> list[int]:
    """Return the jobs that these sentences speak of, the first one first."""
    words = r"\b(?:trial|job|attempt|lease|completion|checkpoint|parent|of|in) (\d+)(?:\.\d+)?"
    return list(dict.fromkeys(int(job) for text in violations for job in re.findall(words, text)))


Event = tuple[float, object]
"""When, and what."""


def tell(job: int, events: Iterable[Event], others: Sequence[Event] = ()) -> str:
    """Return the end of the story of a job from what is known of it, among others of that time."""
    mine = sorted(events, key=itemgetter(0))[-LINES:]
    near = [event for event in others if mine and mine[0][0] - 1.0 <= event[0] <= mine[-1][0]]
    lines = [f"  {at:.3f}  {what!s:.{4 * WIDTH}}" for at, what in sorted([*mine, *near], key=itemgetter(0))]
    return "\n".join([f"story of job {job}:", *lines])


def recorded_stories(results: Results, violations: Iterable[str], others: Sequence[Event] = ()) -> str:
    """Return the stories of the jobs that violations speak of, from a study's rows, among other events."""
    attempts, trials = results.attempts(), {row.id: row for row in results.trials()}
    stories = []
    for job in jobs_in(violations)[:JOBS]:
        mine = [attempt for attempt in attempts if attempt.job == job]
        claims = [(row.claimed_at, f"attempt {row.token} claimed by {row.worker}") for row in mine]
        ends = [(row.ended_at, f"attempt {row.token} {row.state}: {row.why}") for row in mine if row.ended_at]
        stories += [tell(job, [*claims, *ends], others), f"  now: {trials.get(job)}"]
    return "\n".join(stories)


def _job_of(record: object) -> int | None:
    """Return the job that an attempt, reports, a checkpoint or a group belongs to, if it is one."""
    job: int | None = getattr(record, "job", None) or getattr(record, "trial", None)
    return job
