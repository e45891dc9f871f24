"""What watching would compute, and how long that may take; changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import settings
from phyla.evaluation import Skip, Suite, decide
from phyla.records import GroupState, RunRecord, Seen, SeenState
from phyla.study.opening import sqlite_file
from phyla.study.places import Places
from phyla.study.suites import chosen_suites
from phyla.study.targets import Target, check_directories, targets_of

if TYPE_CHECKING:
    from phyla.store import EvalReader, Store
    from phyla.watcher import Following

OPEN = (GroupState.QUEUED, GroupState.COMPLETE, GroupState.PARTIAL)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What one eval task would take.

    Attributes:
        run: name of the run.
        suite: name of the suite.
        task: name of the eval task.
        cells: shards on checkpoints that would be computed.
        known: shards on checkpoints whose results are in the ledger.
        mean_s: seconds that a shard took on average; None if it never ran.
        seconds: estimate for all cells by all workers; None if it never ran.
    """

    run: str
    suite: str
    task: str
    cells: int
    known: int
    mean_s: float | None
    seconds: float | None


def plan(
    paths: str | Path | Sequence[str | Path],
    suites: "Suite | str | Sequence[Suite | str]",
    workers: int = 0,
    *,
    name: str | None = None,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
    format: str = "auto",  # noqa: A002 -- the word that users know
    options: Mapping[str, Any] | None = None,
    following: "Following | None" = None,
) -> list[Planned]:
    """Return what `watch` with the same arguments would compute for what is there now.

    Checkpoints that were never seen count as new, also where their content turns out to be known.

    Args:
        paths: as for `watch`.
        suites: as for `watch`.
        workers: as for `watch`.
        name: as for `watch`.
        home: as for `watch`.
        storage: as for `watch`.
        checkpoints: as for `watch`.
        format: as for `watch`.
        options: as for `watch`.
        following: as for `watch`.

    Raises:
        UsageError: an argument makes no sense.
        StoreError: the database failed.
    """
    from phyla.store import open_store
    from phyla.watcher import Following, get_format

    places = Places.of(home, storage, checkpoints)
    chosen = chosen_suites(suites)
    how = following or Following()
    scanner = get_format(format, **(options or {}))
    file = sqlite_file(places.storage)
    # A database that is not there is not made.
    exists = file is None or file.exists()
    store = open_store(places.storage if exists else "memory://")
    try:
        found: list[Planned] = []
        targets = targets_of(store, paths, name)
        check_directories(targets)
        for target in targets:
            run = store.find_run(target.name)
            cells = _Cells(chosen)
            if run is None:
                _count_new(cells, store, target, scanner, how, {})
                found += cells.rows(target.name, workers, None)
                continue
            with store.evaluations(run) as reader:
                newest = _count_seen(cells, reader, run, chosen)
                _count_new(cells, store, target, scanner, how, newest)
                found += cells.rows(target.name, workers, reader)
        return found
    finally:
        store.close()


@final
class _Cells:
    def __init__(self, suites: Sequence[Suite]) -> None:
        self.suites = suites
        self.wanted: dict[tuple[str, str], int] = {}
        self.known: dict[tuple[str, str], int] = {}

    def add(self, suite: Suite, reader: "EvalReader | None" = None, identity: str = "") -> None:
        for task in suite.tasks:
            done = 0
            if reader is not None:
                done = len(reader.shards_done(identity, task.identity, 0, task.shards))
            key = (suite.name, task.name)
            self.known[key] = self.known.get(key, 0) + done
            self.wanted[key] = self.wanted.get(key, 0) + task.shards - done

    def rows(self, run: str, workers: int, reader: "EvalReader | None") -> list[Planned]:
        found = []
        for suite in self.suites:
            for task in suite.tasks:
                cells = self.wanted.get((suite.name, task.name), 0)
                mean_s = None if reader is None else reader.mean_duration_s(task.identity)
                found.append(
                    Planned(
                        run=run,
                        suite=suite.name,
                        task=task.name,
                        cells=cells,
                        known=self.known.get((suite.name, task.name), 0),
                        mean_s=mean_s,
                        seconds=None if mean_s is None else cells * mean_s / max(1, workers),
                    )
                )
        return found


def _count_seen(
    cells: _Cells, reader: "EvalReader", run: RunRecord, suites: Sequence[Suite]
) -> dict[tuple[str, int], Seen]:
    newest: dict[tuple[str, int], Seen] = {}
    for seen in reader.all_seen():
        newest[seen.name, seen.index] = seen
        if seen.state is not SeenState.READY:
            continue
        for suite in suites:
            group = reader.find_group(seen.id, suite.name)
            if group is None:
                taken = not isinstance(_decision(suite, seen.number, seen.step), Skip)
            else:
                taken = group.state in OPEN
            if taken:
                cells.add(suite, reader, seen.identity)
    return newest


def _count_new(
    cells: _Cells,
    store: "Store",
    target: Target,
    scanner: Any,
    how: "Following",
    newest: Mapping[tuple[str, int], Seen],
) -> None:
    number = 1 + max((seen.number for seen in newest.values()), default=-1)
    for name, fingerprint, step in _present(store, target, scanner, how):
        before = newest.get((name, 0))
        if before is not None and before.state is not SeenState.GONE and before.fingerprint == fingerprint:
            continue
        for suite in cells.suites:
            if not isinstance(_decision(suite, number, step), Skip):
                cells.add(suite)
        number += 1


def _present(store: "Store", target: Target, scanner: Any, how: "Following") -> list[tuple[str, str, int]]:
    if target.directory is not None:
        found = scanner.scan(target.directory, now=settings.system_clock(), previous={})
        return [
            (item.name, item.fingerprint, -1 if item.step is None else item.step)
            for item in found
            if not item.bad and item.name != how.done
        ]
    assert target.study is not None
    with store.reader(target.study.id) as reader:
        return [(row.name, "", row.step) for row in reader.live_checkpoints()]


def _decision(suite: Suite, number: int, step: int) -> object:
    return decide(suite.policy, number=number, step=step, existed=True)
