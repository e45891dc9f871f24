"""What watching would compute, and how long that may take; changes nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import settings
from phyla.evaluation import Skip, Suite, decide
from phyla.records import GroupState, Seen, SeenState
from phyla.study.opening import open_if_there
from phyla.study.places import Places
from phyla.study.suites import chosen_suites
from phyla.study.targets import Target, check_directories, targets_of

if TYPE_CHECKING:
    from phyla.store import Reader, Store
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
    # A database that is not there is not made.
    store = open_if_there(places) or open_store("memory://")
    try:
        found: list[Planned] = []
        targets = targets_of(store, paths, name)
        check_directories(targets)
        for target in targets:
            run = store.find_study(target.name)
            present = _present(store, target, scanner, how)
            with nullcontext() if run is None or not run.watched else store.reader(run.id) as reader:
                wanted, known = _count(reader, chosen, present)
                for suite, task in ((each, task) for each in chosen for task in each.tasks):
                    cells = wanted[suite.name, task.name]
                    mean_s = None if reader is None else reader.mean_duration_s(task.identity)
                    found.append(
                        Planned(
                            run=target.name,
                            suite=suite.name,
                            task=task.name,
                            cells=cells,
                            known=known[suite.name, task.name],
                            mean_s=mean_s,
                            seconds=None if mean_s is None else cells * mean_s / max(1, workers),
                        )
                    )
        return found
    finally:
        store.close()


def _count(
    reader: "Reader | None", suites: Sequence[Suite], present: Sequence[tuple[str, str, int]]
) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Return how many shards of each eval task are to be computed, and how many are in the ledger."""
    wanted: Counter[tuple[str, str]] = Counter()
    known: Counter[tuple[str, str]] = Counter()
    newest: dict[tuple[str, int], Seen] = {}
    for seen in () if reader is None else reader.all_seen():
        assert reader is not None
        newest[seen.name, seen.index] = seen
        for suite in suites if seen.state is SeenState.READY else ():
            group = reader.find_group(seen.id, suite.name)
            if not (_takes(suite, seen.number, seen.step) if group is None else group.state in OPEN):
                continue
            for task in suite.tasks:
                done = len(reader.shards_done(seen.identity, task.identity, 0, task.shards))
                known[suite.name, task.name] += done
                wanted[suite.name, task.name] += task.shards - done
    number = 1 + max((seen.number for seen in newest.values()), default=-1)
    for name, fingerprint, step in present:
        before = newest.get((name, 0))
        if before is not None and before.state is not SeenState.GONE and before.fingerprint == fingerprint:
            continue
        for suite in suites:
            if _takes(suite, number, step):
                wanted.update({(suite.name, task.name): task.shards for task in suite.tasks})
        number += 1
    return wanted, known


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


def _takes(suite: Suite, number: int, step: int) -> bool:
    return not isinstance(decide(suite.policy, number=number, step=step, existed=True), Skip)
