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
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, cast, final

from phyla import queries, settings
from phyla.checkpoints import RemotePlace
from phyla.errors import CheckpointError, ConfigurationError, PhylaError
from phyla.formatting import format_count, join_names, size
from phyla.records import CheckpointState, StudyKind, StudyRecord, StudyState, escape_name
from phyla.study.places import Places, find_study
from phyla.study.results.evaluations import Evaluations
from phyla.study.results.watched_runs import read_run_status

if TYPE_CHECKING:
    from phyla.store import RemoteStore, Store

LITTLE_DISK_BYTES = 1 << 30
FSYNC_ROUNDS = 5
SLOW_FSYNC_S = 0.05
SKEW_S = 1.0
PACKAGES = ("phyla", "numpy", "scipy", "sqlalchemy", "blake3", "plotly", "typer", "pandas", "psycopg", "s3fs")
PROBLEMS_SHOWN = 3
UNKNOWN_SHOWN = 20


class CheckResult(StrEnum):
    """How something is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@final
@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of a check: status, subject, observation, and advice if any."""

    verdict: CheckResult
    about: str
    text: str
    advice: str = ""


_ok = partial(DoctorFinding, CheckResult.OK)
_warn = partial(DoctorFinding, CheckResult.WARN)
_fail = partial(DoctorFinding, CheckResult.FAIL)


def _warn_if(bad: bool, about: str, text: str, advice: str) -> DoctorFinding:
    return _warn(about, text, advice) if bad else _ok(about, text)


def examine(places: Places, name: str | None = None, *, digests: bool = False) -> Iterator[DoctorFinding]:
    """Check everything, or only the study or watched run of a name and its store, one finding after the other.

    With `digests` every byte of every checkpoint is read.
    """
    from phyla.supervision.gpus import visible_gpus

    place = places.checkpoint_root
    if name is None:
        packages = ", ".join(f"{package} {_version(package)}" for package in PACKAGES)
        yield _ok("versions", f"Python {platform.python_version()}, {packages}")
        yield from _directory("home", places.home)
        if isinstance(place, Path) and not place.is_relative_to(places.home):
            yield from _directory("checkpoints", place)
        gpus = visible_gpus()
        yield _ok("GPUs", f"{len(gpus)} visible: {', '.join(gpus)}" if gpus else "none visible")
    else:
        find_study(name, places, watched=True)[0].close()
    yield from _store(places, name, {place} if name is None else set(), digests=digests)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _directory(about: str, path: Path) -> Iterator[DoctorFinding]:
    from phyla.system.file_systems import network_file_system

    # The first run creates a missing directory inside the nearest existing one.
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield _fail(
            about,
            f"{path} cannot be written: {existing} is {'read-only' if existing.is_dir() else 'no directory'}",
            "make it writable, or choose another place with --home or PHYLA_HOME",
        )
        return
    yield _ok(about, f"{path}{'' if existing == path else ' (the first run creates it)'}")
    free = shutil.disk_usage(existing).free
    yield _warn_if(
        free < LITTLE_DISK_BYTES,
        f"{about} disk",
        f"{size(free)} free",
        "make room, or choose another place: a study stops when the disk is full",
    )
    network = network_file_system(existing)
    yield _warn_if(
        network is not None,
        f"{about} file system",
        "local" if network is None else f"{network}, a network file system",
        "checkpoints are fine there; for the store name a local file or a PostgreSQL server with --storage",
    )
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".phyla-doctor-") as file:
            before = time.perf_counter()
            for _ in range(FSYNC_ROUNDS):
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())
            seconds = (time.perf_counter() - before) / FSYNC_ROUNDS
    except OSError as error:
        yield _fail(f"{about} flush", f"writing to {existing} failed: {error.strerror}")
        return
    yield _warn_if(
        seconds > SLOW_FSYNC_S,
        f"{about} flush",
        f"{seconds * 1000:.1f} ms",
        "every checkpoint and completed trial waits for a few of these; use longer trials or a faster disk",
    )


def _service(store: "RemoteStore") -> Iterator[DoctorFinding]:
    began = settings.system_clock()
    answer = store.service()
    took_s = settings.system_clock() - began
    yield _warn_if(
        answer["version"] != version("phyla"),
        "versions",
        f"the service has phyla {answer['version']}, this machine {version('phyla')}",
        "install the same version on both",
    )
    skew_s = abs(answer["time"] - began - took_s / 2)
    yield _warn_if(
        skew_s > took_s + SKEW_S,
        "clocks",
        f"{skew_s:.1f} s between the service and this machine",
        "leases go by the store's clock, so nothing breaks; times in logs do not agree. Set the clocks",
    )


def _store(
    places: Places, name: str | None, checked: set[Path | RemotePlace], *, digests: bool
) -> Iterator[DoctorFinding]:
    from phyla.store import SERVICES, open_store, schema_revision

    if places.storage == "memory://":
        yield _ok("store", "memory://, which ends with its process")
        return
    try:
        file = places.sqlite_file
        if file is not None:
            yield _ok("SQLite", sqlite3.sqlite_version)
            if not file.exists():
                yield _ok("store", f"{file} does not exist yet; the first run creates it")
                return
        if places.storage.startswith(SERVICES):
            store, schema = open_store(places.storage), ""
            yield from _service(cast("RemoteStore", store))
        else:
            revision = schema_revision(places.storage)
            if revision is None:
                yield _ok("store", "empty; the first run creates its tables")
                return
            store, schema = open_store(places.storage), f", schema {revision}"
        known = store.studies()
    except PhylaError as error:
        yield _fail("store", str(error))
        return
    runs = sum(study.watched for study in known)
    counts = format_count(len(known) - runs, "study", "studies")
    counts += f", {format_count(runs, 'watched run')}" if runs else ""
    yield _ok("store", f"{store.url}{schema}, {counts}")
    try:
        for study in sorted(known, key=lambda study: study.watched):
            if name not in (None, study.name):
                continue
            if study.watched:
                yield from _run(store, study, places)
            else:
                try:
                    root = places.checkpoints(study.name, study.config)
                except ConfigurationError as error:
                    yield _fail(f"study {study.name}", str(error))
                    continue
                yield from _own_disk(root, places, checked)
                yield from _study(store, study, root, digests=digests)
    finally:
        store.close()


def _run(store: "Store", run: StudyRecord, places: Places) -> Iterator[DoctorFinding]:
    about = f"watched run {run.name}"
    how = read_run_status(Evaluations(store, run, places))
    ids = sorted(store.look(run.id, queries.in_use, ()).held)
    held = store.look(run.id, queries.seen, ids=ids)
    where = escape_name(run.location)
    if run.kind is StudyKind.DIRECTORY and "://" not in run.location:
        directory, absent = f"{about} directory", f"{where} does not exist"
        if Path(run.location).is_dir():
            yield _ok(directory, where)
        elif run.state is StudyState.COMPLETED:
            yield _warn(directory, absent, "checkpoints without a snapshot are gone")
        else:
            yield _fail(directory, absent, "mount its file system, or check the path")
    lost = [escape_name(seen.path) for seen in held if not ("://" in seen.path or Path(seen.path).exists())]
    if lost:
        yield _fail(
            about,
            f"{len(lost)} of {len(held)} checkpoints that are best or wait for evaluation are not there: "
            f"{'; '.join(lost[:PROBLEMS_SHOWN])}",
            "if the home was moved, watch again: snapshots are found in the new one. Else put them back; what "
            "waits for evaluation ends as gone, results are kept",
        )
    else:
        yield _ok(
            about,
            f"{how.state}, {format_count(how.checkpoints, 'checkpoint')} seen; "
            f"{len(held)} best or waiting for evaluation, none missing",
        )


def _own_disk(
    root: Path | RemotePlace, places: Places, checked: set[Path | RemotePlace]
) -> Iterator[DoctorFinding]:
    """Check the directory of a study's checkpoints, if it is outside the home and was not checked for another."""
    if isinstance(root, Path) and root.is_dir() and not root.is_relative_to(places.home):
        if root.parent not in checked:
            yield from _directory("checkpoints", root.parent)
        checked.add(root.parent)


def _study(
    store: "Store", study: StudyRecord, root: Path | RemotePlace, *, digests: bool
) -> Iterator[DoctorFinding]:
    from phyla.client import known_checkpoints, open_checkpoints, placed, sort_out

    about = f"study {study.name}"
    repository = open_checkpoints(store, study, root)
    try:
        if known_checkpoints(store, study):
            repository.check_owner()
        committed = {*repository.names()}
        names = sorted({*committed, *repository.staged(), *repository.deleting()})
    except CheckpointError as error:
        yield _fail(about, str(error))
        return
    listing = store.look(study.id, sort_out, names, repository.prefix)
    every = store.look(study.id, queries.checkpoints)
    live = [row for row in every if row.state is CheckpointState.LIVE]
    rows, clients = placed(live), sum(row.weak for row in live)
    damaged = [row for row in every if row.state is CheckpointState.DAMAGED]
    lost = [row.name for row in placed(every) if row.state is CheckpointState.LOST]
    again = {name for name, row in listing.rows.items() if row.state is CheckpointState.DELETED} & committed
    strange = [*listing.unknown, *listing.forgotten, *sorted(again)]
    if strange:
        yield _warn(
            about,
            f"{len(strange)} directories in {root} are not known to this store, or were deleted and are there "
            f"again: {join_names(strange, UNKNOWN_SHOWN)}",
            "phyla leaves them alone; delete them yourself if they are not needed",
        )
    problems = {}
    for row in rows:
        try:
            digest = (repository.verify(row.name) if digests else repository.check(row.name)).digest
        except CheckpointError as error:
            problems[row.name] = str(error)
        else:
            if digest != row.digest:
                problem = f"the manifest of checkpoint {row.name} has digest {digest}, the study {row.digest}"
                problems[row.name] = problem
    if problems:
        # A worker that collects or a study that is deleted at this moment is no problem.
        still = {row.name for row in store.look(study.id, queries.checkpoints, state=CheckpointState.LIVE)}
        problems = {name: text for name, text in problems.items() if name in still}
    if problems:
        yield _fail(
            about,
            f"{len(problems)} of {len(rows)} checkpoints are damaged or missing: "
            f"{'; '.join([*problems.values()][:PROBLEMS_SHOWN])}",
            "members that need one start from another's state; if all are missing, give their place with "
            "--checkpoints",
        )
    else:
        read = ", each read to its end" if digests else ""
        condition = f"{format_count(len(rows), 'checkpoint')} intact{read}"
        if clients:
            condition = f"{format_count(clients, 'checkpoint')}, whose files are with the clients that made them"
        yield _ok(about, f"{study.state}, {condition}")
    if lost:
        returned = [name for name in lost if name in committed]
        yield _warn(
            f"{about} missing",
            f"found missing when the study used them: {len(lost)}, of which {len(returned)} are there again: "
            f"{join_names([*returned, *(name for name in lost if name not in returned)], PROBLEMS_SHOWN)}",
            "restore what you need, and run the study again: it uses restored checkpoints",
        )
    if damaged:
        texts = "; ".join(f"{row.error}" for row in damaged[:PROBLEMS_SHOWN])
        yield _warn(
            f"{about} damage",
            f"found damaged when the study used them: {len(damaged)}: {texts}",
            "the study does not use them any more, and their files are kept; look at the disk's health",
        )
