"""The requests of watchers about the checkpoints of a study."""

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
        store: the store of the study.
        study: the study.
        suites: the suites to run on its checkpoints.
    """

    def __init__(self, store: Store, study: StudyRecord, suites: Sequence[Suite]) -> None:
        self._store = store
        self._study = study
        self.suites = tuple(suites)

    def observe(
        self, checkpoints: Sequence[Checkpoint], *, first_look: bool = False, rewinds: bool = True
    ) -> None:
        """Register checkpoints, oldest first, and queue or skip suites on them; see `phyla.machine.observe`."""
        failpoint("watch.before_observe")
        with self._exclusive() as tx:
            for checkpoint in checkpoints:
                tx.apply([*machine.observe(tx, self.suites, checkpoint, first_look=first_look, rewinds=rewinds)])
        failpoint("watch.after_observe")

    def gone(self, seen: Mapping[int, str], *, unless_held: bool = False) -> frozenset[int]:
        """Record that checkpoints vanished.

        Returns:
            The checkpoints for which it is recorded, now or earlier.
        """
        if not seen:
            return frozenset()
        with self._exclusive() as tx:
            held = tx.held_paths() if unless_held else frozenset[int]()
            noted = frozenset(seen) - held
            for number in sorted(noted):
                row = tx.seen(number)
                if row.state is CheckpointState.READY:
                    tx.apply([*machine.gone(tx, row, seen[number])])
            return noted

    def note(self, kind: str, message: str, *, seen: int | None = None, suite: str | None = None) -> None:
        """Record an event that users should see; that an eval task of a suite was edited is recorded once."""
        with self._exclusive() as tx:
            event = EvalEvent(
                study=self._study.id, kind=kind, seen=seen, suite=suite, message=message, created_at=tx.now()
            )
            tx.apply([machine.Insert(event)] if machine.is_news(tx, event) else [])

    def backfill(self) -> int:
        """Queue missing evaluations of registered checkpoints; return the number of changes."""
        return len(self._on_all(machine.backfill))

    def retry(self) -> int:
        """Queue permanently failed evaluations again; return their number."""
        return sum(isinstance(command, machine.InsertJobs) for command in self._on_all(machine.try_again))

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
        """Run a suite on a checkpoint again, at a user's request; see `phyla.machine.evaluate_again`."""
        with self._exclusive() as tx:
            tx.apply(machine.evaluate_again(tx, suite_named(self.suites, suite), tx.seen(seen)))

    def drain(self, why: str) -> None:
        """Drain the study: no more checkpoints will come; the final one is evaluated, then the study ends."""
        with self._exclusive() as tx:
            tx.apply([*machine.drain(tx, self.suites, why)])
            tx.apply(machine.finish_watching(tx))
        failpoint("watch.after_drain")

    def seen(self, after: int = 0) -> list[Checkpoint]:
        """Return the registered checkpoints by id, from the first id above `after`."""
        return self._store.look(self._study.id, queries.seen, after=after)

    def held(self) -> tuple[frozenset[int], Mapping[str, Checkpoint]]:
        """Return the checkpoints of queued or best groups, and the best checkpoint of each suite."""
        needed = self._store.look(self._study.id, queries.in_use, [suite.name for suite in self.suites])
        return needed.held, needed.checkpoints

    def _exclusive(self) -> AbstractContextManager[Transaction]:
        return self._store.transaction(self._study.id, exclusive=True, source=self._study.source)
