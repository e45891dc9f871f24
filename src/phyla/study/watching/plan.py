"""What a watch would do: `phyla watch --plan`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import queries, settings
from phyla.evaluation import Suite
from phyla.machine import SUITE_LEFT, Reader
from phyla.records import Checkpoint, CheckpointState, Group, GroupState, JobState
from phyla.study.files.load import chosen_suites
from phyla.study.places import Places, open_if_there
from phyla.study.watching.targets import Target, targets_of

if TYPE_CHECKING:
    from phyla.store import Store
    from phyla.watcher import CheckpointFormat, Following


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What one eval task would take: `cells` are shards to compute, `known` are in the ledger.

    The seconds are those of one shard on average, and of all by all workers; None if it never ran. `location` is
    the directory or URL that is watched, empty for a study; `checkpoints` is how many are there or were seen
    before.
    """

    run: str
    suite: str
    task: str
    cells: int
    known: int
    mean_s: float | None
    seconds: float | None
    location: str
    checkpoints: int


def plan(
    paths: str | Path | Sequence[str | Path],
    suites: "Suite | str | Sequence[Suite | str]",
    workers: int = 0,
    *,
    name: str | None = None,
    format: str = "auto",  # noqa: A002 -- the word that users know
    options: Mapping[str, Any] | None = None,
    following: "Following | None" = None,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> list[Planned]:
    """Return what `watch` with the same arguments would evaluate among the present checkpoints; changes nothing.

    Checkpoints that were never seen count as new, even if the ledger has results for their content.
    """
    from phyla.store import open_store
    from phyla.watcher import Following, get_format

    places = Places.of(home, storage, checkpoints)
    chosen = chosen_suites(suites)
    done = (following or Following()).done
    scanner = get_format(format, **(options or {}))
    planned: list[Planned] = []
    # A database that is not there is not made.
    with closing(open_if_there(places) or open_store("memory://")) as store:
        for target in targets_of(store, paths, name):
            present = _present(store, target, scanner, done)
            run = store.find_study(target.name)
            tasks = [(suite.name, task.identity, task.shards) for suite in chosen for task in suite.tasks]
            there = Known(seen=[], mean_s=[None] * len(tasks))
            if run is not None and run.watched:
                there = store.look(run.id, known_shards, tasks)
            cells, known = _count(there.seen, chosen, present)
            pairs = [(suite, task) for suite in chosen for task in suite.tasks]
            for (suite, task), mean_s in zip(pairs, there.mean_s, strict=True):
                wanted = cells[suite.name, task.name]
                planned.append(
                    Planned(
                        run=target.name,
                        suite=suite.name,
                        task=task.name,
                        cells=wanted,
                        known=known[suite.name, task.name],
                        mean_s=mean_s,
                        seconds=None if mean_s is None else wanted * mean_s / max(1, workers),
                        location=str(target.directory or ""),
                        checkpoints=len(present) + len(there.seen),
                    )
                )
    return planned


def _present(store: "Store", target: Target, scanner: "CheckpointFormat", done: str) -> list[tuple[str, str, int]]:
    """Return name, fingerprint and step of the checkpoints that are there; -1 for a step that is not known."""
    if target.directory is not None:
        from phyla.watcher.aliases import resolve
        from phyla.watcher.remote import Remote

        root = Remote(target.directory) if isinstance(target.directory, str) else target.directory
        now = settings.system_clock()
        scan = resolve(root, scanner, scanner.scan(root, now=now, previous={}), now=now)
        return [
            (item.name, item.fingerprint, -1 if item.step is None else item.step)
            for item in scan
            if not item.bad and item.alias is None and item.name != done
        ]
    assert target.study is not None
    live = store.look(target.study.id, queries.checkpoints, state=CheckpointState.LIVE)
    return [(row.name, "", row.step) for row in live]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SeenShards:
    """A checkpoint that was seen, and its first group of each suite.

    Attributes:
        shards: into how many shards each of the wanted eval tasks is divided, or would be; none if it is unusable.
        done: how many of these the ledger has.
    """

    seen: Checkpoint
    groups: dict[str, Group]
    shards: list[int]
    done: list[int]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a run has of some eval tasks, and how long a shard of each took on average; None if it never ran."""

    seen: list[SeenShards]
    mean_s: list[float | None]


def known_shards(reader: Reader, tasks: Sequence[tuple[str, str, int]]) -> Known:
    """Return what a run has of some eval tasks, each by its suite, its identity and its number of shards."""
    return Known(
        seen=[_shards(reader, seen, tasks if seen.usable else ()) for seen in reader.all_seen()],
        mean_s=[reader.mean_duration_s(identity) for _, identity, _ in tasks],
    )


def _shards(reader: Reader, seen: Checkpoint, tasks: Sequence[tuple[str, str, int]]) -> SeenShards:
    groups = {group.suite: group for group in reader.groups_of(seen.id) if group.replicate == 0}
    jobs = [job for group in groups.values() for job in reader.group_jobs(group.id)]
    # It keeps the shards that it was queued with.
    queued = {(job.group, job.identity): job.shards for job in jobs if job.state is not JobState.CANCELLED}
    row = SeenShards(seen=seen, groups=groups, shards=[], done=[])
    for suite, identity, shards in tasks:
        group = groups[suite].id if suite in groups else 0
        count = queued.get((group, identity), shards)
        row.shards.append(count)
        row.done.append(len({result.shard for result in reader.ledger(seen.identity, identity, 0, count)}))
    return row


def _count(
    known_seen: Sequence[SeenShards], suites: Sequence[Suite], present: Sequence[tuple[str, str, int]]
) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Return how many shards of each eval task are to be computed, and how many are in the ledger."""
    wanted: Counter[tuple[str, str]] = Counter()
    known: Counter[tuple[str, str]] = Counter()
    there: dict[str, Checkpoint] = {}
    for evaluated in known_seen:
        seen = evaluated.seen
        if seen.index == 0:
            there[seen.name] = seen
        counts = iter(zip(evaluated.shards, evaluated.done, strict=True))
        for suite in suites if seen.usable else ():
            group = evaluated.groups.get(suite.name)
            waits = group is None or group.why == SUITE_LEFT
            skipped = group is not None and group.state in (GroupState.SKIPPED, GroupState.GONE)
            left_out = (skipped and not waits) or (group is None and not _takes(suite, seen.step, seen.number))
            for task, (shards, done) in zip(suite.tasks, counts, strict=False):
                if not left_out:
                    known[suite.name, task.name] += done
                    wanted[suite.name, task.name] += shards - done
    number = max((seen.number for seen in there.values()), default=-1)
    for name, fingerprint, step in present:
        before = there.get(name)
        if before is not None and before.state is not CheckpointState.GONE and before.fingerprint == fingerprint:
            continue
        number += 1
        for suite in suites:
            if _takes(suite, step, number):
                wanted.update({(suite.name, task.name): task.shards for task in suite.tasks})
    return wanted, known


def _takes(suite: Suite, step: int, number: int) -> bool:
    policy = suite.policy
    return policy.is_milestone(step) or (policy.backfill and number % policy.every == 0)
