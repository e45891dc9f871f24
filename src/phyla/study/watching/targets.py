"""What there is to watch, under which name, and what watching it would compute."""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import settings
from phyla.checkpoints import place_of
from phyla.errors import ConfigurationError, StudyNotFound
from phyla.evaluation import Suite
from phyla.formatting import masked
from phyla.machine import SUITE_LEFT
from phyla.records import Checkpoint, CheckpointState, GroupState, JobState, StudyRecord, shown
from phyla.study.files.load import chosen_suites
from phyla.study.places import Places, names_in, open_if_there
from phyla.validation import check_name

if TYPE_CHECKING:
    from phyla.store import Reader, Store
    from phyla.watcher import CheckpointFormat, Following

COMMON = frozenset(
    {"checkpoints", "checkpoint", "ckpt", "ckpts", "models", "model", "weights", "output", "outputs"}
)
"""Names of directories that say nothing about the run; the one above does."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to watch under the name of a run: a directory, a URL in place of one, or a study."""

    name: str
    directory: Path | str | None = None
    study: StudyRecord | None = None


def targets_of(store: "Store", paths: str | Path | Sequence[str | Path], name: str | None) -> list[Target]:
    """Return what to watch: each a directory that exists, a URL, or one study of the store."""
    many = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not many:
        raise ConfigurationError("there is nothing to watch: give a directory, or the name of a study")
    if name is not None and len(many) > 1:
        raise ConfigurationError(f"name={name!r} names one run, and there are {len(many)} directories")
    found = [_target(store, path, name) for path in many]
    names = Counter(target.name for target in found)
    found = [
        replace(target, name=_clean("-".join(_parts(target.directory))[-100:]))
        if names[target.name] > 1 and target.directory is not None
        else target
        for target in found
    ]
    for each, count in Counter(target.name for target in found).items():
        check_name(f"run name {each!r}", each, "; give it with name= (on the command line: --name)")
        if count > 1:
            raise ConfigurationError(f"{each!r} is given twice")
    for directory in (target.directory for target in found if isinstance(target.directory, Path)):
        where = shown(str(directory))
        if directory.exists() and not directory.is_dir():
            raise ConfigurationError(f"{where} is a file; name the directory that holds the checkpoints")
        if not directory.is_dir():
            existing = next(parent for parent in directory.parents if parent.is_dir())
            raise ConfigurationError(
                f"there is no directory {where} ({shown(str(existing))} is there): training has not made it yet, "
                f"or the path is wrong. Check the path, or create it with: mkdir -p {shlex.quote(str(directory))}"
            )
    return found


def _target(store: "Store", path: str | Path, name: str | None) -> Target:
    is_s3 = str(path).startswith("s3://")
    if "://" in str(path) and not is_s3:
        raise ConfigurationError(
            f"{shown(masked(str(path)))} cannot be watched: phyla watch follows directories and s3:// URLs. Copy "
            "it into a directory from time to time, or mount it, and watch that"
        )
    study = None if is_s3 or isinstance(path, Path) or Path(path).is_dir() else store.find_study(path)
    if study is not None and not study.watched:
        if name == study.name:
            raise ConfigurationError(
                f"name={name!r}: the study's own suites are evaluated under that name; leave it out for "
                f"{study.name}-watch, or give another one"
            )
        return Target(name=name or f"{study.name}-watch", study=study)
    if isinstance(path, str) and "/" not in path and not Path(path).is_dir():
        raise StudyNotFound(
            f"there is neither a directory {shown(str(Path(path).absolute()))} nor a study {path!r} (studies in "
            f"{store.url}: {names_in(store, watched=False)}); check the path, or create the directory that "
            "training will write to"
        )
    directory = str(place_of(path, Path())) if is_s3 else Path(path).expanduser().absolute()
    parts = _parts(directory)
    telling = [part for part in parts if part.lower() not in COMMON]
    return Target(name=name or _clean((telling or parts or ["run"])[-1]), directory=directory)


def _parts(directory: Path | str) -> list[str]:
    return [part for part in str(directory).removeprefix("s3://").split("/") if part.strip("./")]


def _clean(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).lstrip("-.") or "run"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What one eval task would take: `cells` are shards to compute, `known` are in the ledger.

    The seconds are those of one shard on average, and of all by all workers; None if it never ran.
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
    format: str = "auto",  # noqa: A002 -- the word that users know
    options: Mapping[str, Any] | None = None,
    following: "Following | None" = None,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> list[Planned]:
    """Return what `watch` with the same arguments would compute for what is there now; changes nothing.

    Checkpoints that were never seen count as new, also where their content turns out to be known.
    """
    from phyla.store import open_store
    from phyla.watcher import Following, get_format

    places = Places.of(home, storage, checkpoints)
    chosen = chosen_suites(suites)
    done = (following or Following()).done
    scanner = get_format(format, **(options or {}))
    found: list[Planned] = []
    # A database that is not there is not made.
    with closing(open_if_there(places) or open_store("memory://")) as store:
        for target in targets_of(store, paths, name):
            present = _present(store, target, scanner, done)
            run = store.find_study(target.name)
            with nullcontext() if run is None or not run.watched else store.reader(run.id) as reader:
                cells, known = _count(reader, chosen, present)
                for suite, task in ((each, task) for each in chosen for task in each.tasks):
                    mean_s = None if reader is None else reader.mean_duration_s(task.identity)
                    wanted = cells[suite.name, task.name]
                    found.append(
                        Planned(
                            run=target.name,
                            suite=suite.name,
                            task=task.name,
                            cells=wanted,
                            known=known[suite.name, task.name],
                            mean_s=mean_s,
                            seconds=None if mean_s is None else wanted * mean_s / max(1, workers),
                        )
                    )
    return found


def _present(store: "Store", target: Target, scanner: "CheckpointFormat", done: str) -> list[tuple[str, str, int]]:
    """Return name, fingerprint and step of the checkpoints that are there; -1 for a step that is not known."""
    if target.directory is not None:
        from phyla.watcher.remote import Remote

        root = Remote(target.directory) if isinstance(target.directory, str) else target.directory
        found = scanner.scan(root, now=settings.system_clock(), previous={})
        return [
            (item.name, item.fingerprint, -1 if item.step is None else item.step)
            for item in found
            if not item.bad and item.name != done
        ]
    assert target.study is not None
    with store.reader(target.study.id) as reader:
        return [(row.name, "", row.step) for row in reader.checkpoints(CheckpointState.LIVE)]


def _count(
    reader: "Reader | None", suites: Sequence[Suite], present: Sequence[tuple[str, str, int]]
) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Return how many shards of each eval task are to be computed, and how many are in the ledger."""
    wanted: Counter[tuple[str, str]] = Counter()
    known: Counter[tuple[str, str]] = Counter()
    there: dict[str, Checkpoint] = {}
    if reader is not None:
        for seen in reader.all_seen():
            if seen.index == 0:
                there[seen.name] = seen
            for suite in suites if seen.usable else ():
                its = (one for one in reader.groups_of(seen.id) if one.suite == suite.name)
                group = next((one for one in its if one.replicate == 0), None)
                waits = group is None or group.why == SUITE_LEFT
                skipped = group is not None and group.state in (GroupState.SKIPPED, GroupState.GONE)
                if (skipped and not waits) or (group is None and not _takes(suite, seen.step, seen.number)):
                    continue
                jobs = [] if group is None else reader.group_jobs(group.id)
                jobs = [job for job in jobs if job.state is not JobState.CANCELLED]
                for task in suite.tasks:
                    its_jobs = [job for job in jobs if job.identity == task.identity]
                    # It keeps the shards that it was queued with.
                    shards = its_jobs[0].shards if its_jobs else task.shards
                    done = {result.shard for result in reader.ledger(seen.identity, task.identity, 0, shards)}
                    known[suite.name, task.name] += len(done)
                    wanted[suite.name, task.name] += shards - len(done)
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
