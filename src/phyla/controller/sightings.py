"""What a watcher tells and asks about the checkpoints of a study."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import final

from phyla import machine, queries
from phyla.evaluation import Suite
from phyla.evaluation.suite import suite_named
from phyla.machine import Command
from phyla.records import Checkpoint, CheckpointState, EvalEvent, StudyRecord
from phyla.store import Store, Transaction
from phyla.system.failpoints import failpoint

BACKFILLED_AT_ONCE = 50


@final
class Sightings:
    """Registers the checkpoints of a study as they appear.

    Every call is one transaction, and may raise `StoreError`.

    Args:
        store: where the study is remembered.
        study: the study.
        suites: what is run on its checkpoints.
    """

    def __init__(self, store: Store, study: StudyRecord, suites: Sequence[Suite]) -> None:
        self._store = store
        self._study = study
        self.suites = tuple(suites)

    def observe(self, found: Sequence[Checkpoint], *, first_look: bool = False, rewinds: bool = True) -> None:
        """Note checkpoints, oldest first, and queue or skip suites on them; see `phyla.machine.observe`."""
        failpoint("watch.before_observe")
        with self._exclusive() as tx:
            for each in found:
                tx.apply([*machine.observe(tx, self.suites, each, first_look=first_look, rewinds=rewinds)])
        failpoint("watch.after_observe")

    def gone(self, seen: Mapping[int, str], *, unless_held: bool = False) -> frozenset[int]:
        """Note that checkpoints vanished.

        Returns:
            Those of which it was noted, now or before.
        """
        if not seen:
            return frozenset()
        with self._exclusive() as tx:
            held = tx.held_paths() if unless_held else frozenset[int]()
            told = frozenset(seen) - held
            for number in sorted(told):
                row = tx.seen(number)
                if row.state is CheckpointState.READY:
                    tx.apply([*machine.gone(tx, row, seen[number])])
            return told

    def note(self, kind: str, message: str, *, seen: int | None = None) -> None:
        """Remember something that a person should know."""
        with self._exclusive() as tx:
            event = EvalEvent(study=self._study.id, kind=kind, seen=seen, message=message, created_at=tx.now())
            tx.apply([machine.Insert(event)])

    def backfill(self) -> int:
        """Queue what suites miss on checkpoints that were seen before; return how many changes that is."""
        return len(self._on_all(machine.backfill))

    def retry(self) -> int:
        """Queue once more what failed for good; return how many evaluations that is."""
        return sum(isinstance(one, machine.InsertJobs) for one in self._on_all(machine.try_again))

    def _on_all(
        self, decide: Callable[[Transaction, Sequence[Suite], Checkpoint], Sequence[Command]]
    ) -> list[Command]:
        done: list[Command] = []
        after = 0
        while True:
            with self._exclusive() as tx:
                page = tx.all_seen(after=after, limit=BACKFILLED_AT_ONCE)
                for seen in page:
                    commands = decide(tx, self.suites, seen)
                    done += commands
                    tx.apply(commands)
            if not page:
                return done
            after = page[-1].id

    def evaluate_again(self, seen: int, suite: str) -> None:
        """Run a suite on a checkpoint again, as a person asks; see `phyla.machine.evaluate_again`."""
        with self._exclusive() as tx:
            tx.apply(machine.evaluate_again(tx, suite_named(self.suites, suite), tx.seen(seen)))

    def drain(self, why: str) -> None:
        """Say that no more checkpoints come: the final one is guaranteed, then the study ends."""
        with self._exclusive() as tx:
            tx.apply([*machine.drain(tx, self.suites, why)])
            tx.apply(machine.finish_watching(tx))
        failpoint("watch.after_drain")

    def seen(self, after: int = 0) -> list[Checkpoint]:
        """Return the checkpoints seen, by id, from the first one whose id is above `after`."""
        return self._store.look(self._study.id, queries.seen, after=after)

    def held(self) -> tuple[frozenset[int], Mapping[str, Checkpoint]]:
        """Return which checkpoints queued or best groups refer to, and the best one of each suite."""
        needed = self._store.look(self._study.id, queries.in_use, [suite.name for suite in self.suites])
        return needed.held, needed.checkpoints

    def _exclusive(self) -> AbstractContextManager[Transaction]:
        return self._store.transaction(self._study.id, exclusive=True, source=self._study.source)
