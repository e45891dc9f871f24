"""A check-up of the installation, the home, the store and the studies in it; changes nothing."""

import os
import platform
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, final

from phyla.errors import CheckpointError, CheckpointsAbsent, PhylaError
from phyla.records import CheckpointState, StudyKind, StudyRecord, StudyState, shown
from phyla.study.evaluations import Evaluations
from phyla.study.opening import find_study, sqlite_file
from phyla.study.places import Places
from phyla.study.watch_status import standing

if TYPE_CHECKING:
    from phyla.store import Store

LITTLE_DISK_BYTES = 1 << 30
FSYNC_ROUNDS = 5
SLOW_FSYNC_S = 0.05
REQUIRED = ("numpy", "scipy", "sqlalchemy", "blake3", "jinja2", "plotly", "rich", "typer")
EXTRAS = (
    ("pandas", "pandas"),
    ("psycopg", "postgres"),
    ("tensorboardX", "tensorboard"),
    ("pyarrow", "parquet"),
    ("scikit-learn", "digits"),
)
PROBLEMS_SHOWN = 3
UNKNOWN_SHOWN = 20


class Verdict(StrEnum):
    """How something is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        verdict: how it is.
        about: what was looked at.
        text: what was seen.
        advice: what to do; empty if there is nothing to do.
    """

    verdict: Verdict
    about: str
    text: str
    advice: str = ""


def examine(places: Places, name: str | None = None, *, digests: bool = False) -> Iterator[Finding]:
    """Check everything, one finding after the other.

    Args:
        places: where studies live.
        name: of a study or a watched run, if only that is to be checked, and the store it is in.
        digests: also read every byte of every checkpoint.

    Raises:
        StudyNotFound: there is neither of that name.
    """
    if name is None:
        yield from _installation()
        yield from _directory("home", places.home)
        if not places.checkpoint_root.is_relative_to(places.home):
            yield from _directory("checkpoints", places.checkpoint_root)
        yield from _gpus()
    else:
        find_study(name, places, watched=True)[0].close()
    yield from _store(places, name, digests=digests)


def _installation() -> Iterator[Finding]:
    packages = ", ".join(f"{name} {_version(name)}" for name in ("phyla", *REQUIRED))
    yield Finding(Verdict.OK, "versions", f"Python {platform.python_version()}, {packages}")
    for name, extra in EXTRAS:
        found = _version(name)
        advice = f'if you want it: pip install "phyla[{extra}]"' if found is None else ""
        yield Finding(Verdict.OK, f"optional {name}", found or "not installed", advice)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _directory(about: str, path: Path) -> Iterator[Finding]:
    # What does not exist yet is made by the first run, inside the nearest directory that does.
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield Finding(
            Verdict.FAIL,
            about,
            f"{path} cannot be written: {existing} is {'read-only' if existing.is_dir() else 'no directory'}",
            "make it writable, or choose another place with --home or PHYLA_HOME",
        )
        return
    yield Finding(Verdict.OK, about, f"{path}{'' if existing == path else ' (made by the first run)'}")
    free = shutil.disk_usage(existing).free
    little = free < LITTLE_DISK_BYTES
    yield Finding(
        Verdict.WARN if little else Verdict.OK,
        f"{about} disk",
        f"{free / (1 << 30):.1f} GiB free",
        "make room, or choose another place: a study stops when the disk is full" if little else "",
    )
    yield from _file_system(about, existing)
    yield from _fsync(about, existing)


def _file_system(about: str, path: Path) -> Iterator[Finding]:
    from phyla.store.sql.file_systems import network_file_system

    network = network_file_system(path)
    yield Finding(
        Verdict.OK if network is None else Verdict.WARN,
        f"{about} file system",
        "local" if network is None else f"{network}, a network file system",
        ""
        if network is None
        else "checkpoints are fine there; for the store name a local file or a PostgreSQL server with --storage",
    )


def _fsync(about: str, path: Path) -> Iterator[Finding]:
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".phyla-doctor-") as file:
            before = time.perf_counter()
            for _ in range(FSYNC_ROUNDS):
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())
            seconds = (time.perf_counter() - before) / FSYNC_ROUNDS
    except OSError as error:
        yield Finding(Verdict.FAIL, f"{about} flush", f"writing to {path} failed: {error.strerror}")
        return
    slow = seconds > SLOW_FSYNC_S
    yield Finding(
        Verdict.WARN if slow else Verdict.OK,
        f"{about} flush",
        f"{seconds * 1000:.1f} ms",
        "every checkpoint and every completed trial waits for a few of these; use longer trials or a faster disk"
        if slow
        else "",
    )


def _gpus() -> Iterator[Finding]:
    from phyla.launchers import visible_gpus

    gpus = visible_gpus()
    yield Finding(Verdict.OK, "GPUs", ", ".join(gpus) if gpus else "none visible")


def _store(places: Places, name: str | None, *, digests: bool) -> Iterator[Finding]:
    from phyla.store import open_store, schema_revisions

    if places.storage == "memory://":
        yield Finding(Verdict.OK, "store", "memory://, which ends with its process")
        return
    try:
        file = sqlite_file(places.storage)
    except PhylaError as error:
        yield Finding(Verdict.FAIL, "store", str(error))
        return
    if file is not None:
        if not file.exists():
            yield Finding(Verdict.OK, "SQLite", sqlite3.sqlite_version)
            yield Finding(Verdict.OK, "store", f"{file} does not exist yet; the first run makes it")
            return
        try:
            yield _sqlite(file)
        except OSError as error:
            yield Finding(Verdict.FAIL, "store", f"{file}: {error.strerror}", "make it readable and writable")
            return
    try:
        found, head = schema_revisions(places.storage)
        if found != head:
            yield _schema(found, head)
            return
        store = open_store(places.storage)
        known = store.studies()
    except PhylaError as error:
        yield Finding(Verdict.FAIL, "store", str(error))
        return
    runs = sum(study.watched for study in known)
    studies = len(known) - runs
    yield Finding(
        Verdict.OK,
        "store",
        f"{store.url}, schema {found}, {studies} {'study' if studies == 1 else 'studies'}"
        + (f", {runs} watched run{'' if runs == 1 else 's'}" if runs else ""),
    )
    try:
        for study in sorted(known, key=lambda study: study.watched):
            if name in (None, study.name):
                yield from (
                    _run(store, study, places) if study.watched else _study(store, study, places, digests=digests)
                )
    finally:
        store.close()


def _run(store: "Store", run: StudyRecord, places: Places) -> Iterator[Finding]:
    about = f"watched run {run.name}"
    how = standing(Evaluations(store, run, places), places)
    with store.reader(run.id) as reader:
        now = reader.now()
        running = reader.running()
        held = [reader.seen(number) for number in sorted(reader.held_paths())]
    where = shown(run.location)
    if run.kind is StudyKind.DIRECTORY and not Path(run.location).is_dir():
        ended = run.state is StudyState.COMPLETED
        yield Finding(
            Verdict.WARN if ended else Verdict.FAIL,
            f"{about} directory",
            f"{where} does not exist",
            "checkpoints without a snapshot are gone" if ended else "mount its file system, or check the path",
        )
    elif run.kind is StudyKind.DIRECTORY:
        yield Finding(Verdict.OK, f"{about} directory", where)
    lost = [seen for seen in held if seen.path and not Path(seen.path).exists()]
    if lost:
        texts = "; ".join(shown(seen.path) for seen in lost[:PROBLEMS_SHOWN])
        yield Finding(
            Verdict.FAIL,
            about,
            f"{len(lost)} of {len(held)} checkpoints that are best or wait for evaluation are not there: {texts}",
            "put them back; what waits for evaluation ends as gone, results are kept",
        )
    else:
        yield Finding(
            Verdict.OK,
            about,
            f"{how.state}, {how.checkpoints} checkpoint{'' if how.checkpoints == 1 else 's'} seen; "
            f"{len(held)} best or waiting for evaluation, none missing",
        )
    orphaned = sorted({attempt.worker for attempt in running if attempt.expires_at < now})
    if orphaned:
        yield Finding(
            Verdict.WARN,
            f"{about} leases",
            f"held by {', '.join(orphaned)}, and ran out",
            "nothing to do: the next worker takes them back",
        )
    if how.quarantined:
        texts = "; ".join(
            f"{shown(seen.name)}: {(seen.error or 'no reason').strip().splitlines()[-1]}"
            for seen in how.quarantined[-PROBLEMS_SHOWN:]
        )
        yield Finding(
            Verdict.WARN,
            f"{about} quarantine",
            f"{len(how.quarantined)} cannot be evaluated: {texts}",
            f"each is looked at again when that changes; all of them: phyla status {run.name}",
        )


def _sqlite(file: Path) -> Finding:
    # The header's bytes 18 and 19 are 2 for a file in write-ahead mode.
    with file.open("rb") as opened:
        header = opened.read(20)
    if header[18:20] == b"\2\2":
        return Finding(Verdict.OK, "SQLite", f"{sqlite3.sqlite_version}, write-ahead log")
    return Finding(
        Verdict.WARN,
        "SQLite",
        f"{sqlite3.sqlite_version}, no write-ahead log: readers hold up writers",
        "phyla turns it on when it opens the file; something else turned it off since",
    )


def _schema(found: str | None, head: str) -> Finding:
    if found is None:
        return Finding(Verdict.OK, "store", "empty; the first run makes its tables")
    return Finding(
        Verdict.FAIL,
        "store",
        f"schema {found}, made by another version of phyla; this one uses {head}",
        "open it with the version that made it, or name another store",
    )


def _study(store: "Store", study: StudyRecord, places: Places, *, digests: bool) -> Iterator[Finding]:
    from phyla.local_client import known_checkpoints, open_checkpoints, sort_out
    from phyla.worker import dead_launches, launch_of

    about = f"study {study.name}"
    repository = open_checkpoints(store, study.name, places.checkpoints(study.name))
    if known_checkpoints(store, study):
        try:
            repository.check_owner()
        except CheckpointsAbsent as error:
            yield Finding(Verdict.FAIL, about, str(error))
            return
    names = {*repository.names(), *repository.staged(), *repository.deleting()}
    with store.reader(study.id) as reader:
        found = sort_out(reader, names, repository.prefix)
        rows = reader.live_checkpoints()
        damaged = reader.damaged_checkpoints()
        running = reader.running()
        now = reader.now()
    root = places.checkpoints(study.name)
    back = sorted(
        name for name, row in found.rows.items() if row.state is CheckpointState.DELETED and (root / name).exists()
    )
    strange = [*found.unknown, *found.forgotten]
    for listed, what, unused in (
        (strange, f"directories in {root} are not known to this store", "phyla leaves them alone"),
        (
            back,
            f"checkpoints that were deleted are in {root} again",
            "the study does not use them and leaves them alone",
        ),
    ):
        if listed:
            more = "" if len(listed) <= UNKNOWN_SHOWN else f" and {len(listed) - UNKNOWN_SHOWN} more"
            yield Finding(
                Verdict.WARN,
                about,
                f"{len(listed)} {what}: {', '.join(listed[:UNKNOWN_SHOWN])}{more}",
                f"{unused}; delete them yourself if nobody needs them",
            )
    problems = []
    for row in rows:
        try:
            digest = (repository.verify(row.name) if digests else repository.check(row.name)).digest
        except CheckpointError as error:
            problems.append((row.name, str(error)))
        else:
            if digest != row.digest:
                text = f"the manifest of checkpoint {row.name} has digest {digest}, the study {row.digest}"
                problems.append((row.name, text))
    if problems:
        # A worker that collects or a study that is deleted at this moment is no problem.
        with store.reader(study.id) as reader:
            still = {row.name for row in reader.checkpoints() if row.state is CheckpointState.LIVE}
        problems = [(name, text) for name, text in problems if name in still]
    if problems:
        texts = "; ".join(text for _, text in problems[:PROBLEMS_SHOWN])
        yield Finding(
            Verdict.FAIL,
            about,
            f"{len(problems)} of {len(rows)} checkpoints are damaged or missing: {texts}",
            "members that need one start from another's state; if all are missing, say where they are with "
            "--checkpoints",
        )
    else:
        yield Finding(
            Verdict.OK,
            about,
            f"{study.state}, {len(rows)} checkpoint{'' if len(rows) == 1 else 's'} as they should be"
            f"{', every byte' if digests else ''}",
        )
    if damaged:
        texts = "; ".join(f"{row.damage}" for row in damaged[:PROBLEMS_SHOWN])
        yield Finding(
            Verdict.WARN,
            f"{about} damage",
            f"found damaged when the study used them: {len(damaged)}: {texts}",
            "the study does not use them any more, and their files are kept; look at the disk's health",
        )
    dead = dead_launches(places.locks, {launch_of(attempt.worker) for attempt in running})
    held = sorted({row.worker for row in running if row.expires_at < now or launch_of(row.worker) in dead})
    if held:
        yield Finding(
            Verdict.WARN,
            f"{about} leases",
            f"held by {', '.join(held)}, which ended without giving them back, or do not renew them",
            "nothing to do: they are taken back when the study is run again, or when they run out",
        )
