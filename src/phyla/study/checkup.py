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

from phyla.errors import CheckpointError, PhylaError
from phyla.records import CheckpointState, StudyRecord
from phyla.study.opening import sqlite_file
from phyla.study.places import Places

if TYPE_CHECKING:
    from phyla.store import Store

LITTLE_DISK_BYTES = 1 << 30
FSYNC_ROUNDS = 5
SLOW_FSYNC_S = 0.05
REQUIRED = ("numpy", "scipy", "sqlalchemy", "blake3", "plotly", "rich", "typer")
EXTRAS = (
    ("pandas", "pandas"),
    ("psycopg", "postgres"),
    ("tensorboardX", "tensorboard"),
    ("pyarrow", "parquet"),
    ("scikit-learn", "digits"),
)
PROBLEMS_SHOWN = 3


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


def examine(places: Places) -> Iterator[Finding]:
    """Check everything, one finding after the other."""
    yield from _installation()
    yield from _home(places)
    yield from _gpus()
    yield from _store(places)


def _installation() -> Iterator[Finding]:
    packages = ", ".join(f"{name} {_version(name)}" for name in ("phyla", *REQUIRED))
    yield Finding(Verdict.OK, "versions", f"Python {platform.python_version()}, {packages}")
    for name, extra in EXTRAS:
        found = _version(name)
        if found is None:
            yield Finding(
                Verdict.OK, f"optional {name}", "not installed", f'if you want it: pip install "phyla[{extra}]"'
            )
        else:
            yield Finding(Verdict.OK, f"optional {name}", found)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _home(places: Places) -> Iterator[Finding]:
    for about, path in {"home": places.home, "checkpoints": places.checkpoint_root}.items():
        if about == "checkpoints" and path.is_relative_to(places.home):
            continue
        yield from _directory(about, path)


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

    network = network_file_system(path.resolve())
    if network is None:
        yield Finding(Verdict.OK, f"{about} file system", "local")
    else:
        yield Finding(
            Verdict.WARN,
            f"{about} file system",
            f"{network}, a network file system",
            "checkpoints are fine there; for the store name a local file or a PostgreSQL server with --storage",
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


def _store(places: Places) -> Iterator[Finding]:
    from phyla.store import open_store, schema_revisions

    if places.storage == "memory://":
        yield Finding(Verdict.OK, "store", "memory://, which ends with its process")
        return
    file = sqlite_file(places.storage)
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
        studies = store.studies()
    except PhylaError as error:
        yield Finding(Verdict.FAIL, "store", str(error))
        return
    yield Finding(
        Verdict.OK,
        "store",
        f"{store.url}, schema {found}, {len(studies)} {'study' if len(studies) == 1 else 'studies'}",
    )
    try:
        for study in studies:
            yield from _study(store, study, places)
    finally:
        store.close()


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


def _study(store: "Store", study: StudyRecord, places: Places) -> Iterator[Finding]:
    from phyla.checkpoints import LocalCheckpoints
    from phyla.worker import is_alive_here

    about = f"study {study.name}"
    repository = LocalCheckpoints(places.checkpoints(study.name))
    with store.reader(study.id) as reader:
        rows = reader.live_checkpoints()
        running = reader.running()
    problems = []
    for row in rows:
        try:
            size_bytes = repository.check(row.name).size_bytes
        except CheckpointError as error:
            problems.append((row.name, str(error)))
        else:
            if size_bytes != row.size_bytes:
                problems.append((row.name, f"checkpoint {row.name} has {size_bytes} bytes, not {row.size_bytes}"))
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
            f"{study.state}, {len(rows)} checkpoint{'' if len(rows) == 1 else 's'} as they should be",
        )
    dead = sorted({attempt.worker for attempt in running if is_alive_here(attempt.worker) is False})
    if dead:
        yield Finding(
            Verdict.WARN,
            f"{about} leases",
            f"held by {', '.join(dead)}, which ended without giving them back",
            "nothing to do: they are taken back when the study is run again, or when they run out",
        )
