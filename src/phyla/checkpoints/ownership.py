"""Ownership of checkpoint directories: by a marker inside, repeated in the names of checkpoints."""

import re
import socket
import uuid
from contextlib import suppress
from dataclasses import dataclass
from json import dumps, loads  # training may replace them where they are
from pathlib import Path
from typing import NamedTuple, final

from blake3 import blake3

from phyla.checkpoints.disk import Disk, make_dirs, storage_errors
from phyla.checkpoints.manifest import MANIFEST_NAME
from phyla.checkpoints.objects import Objects
from phyla.errors import CheckpointError, CheckpointsAbsent, CheckpointsNotOurs
from phyla.formatting import join_names

OWNER_NAME = ".phyla-owner.json"
FORMAT = 1
WORK_DIRS = (".staging", ".deleting")

_ATTEMPT = re.compile(r"(\d+)\.(\d+)\.([0-9a-f]{6})([0-9a-f]{6})(?:\.p\d+)?")
_IMPORT = re.compile(r"start-\d+-([0-9a-f]{6})[0-9a-f]{6}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The study of one store that a checkpoint directory belongs to.

    Names of its checkpoints contain `prefix`, six digits of the store's id. `copied_from` is the id of the store
    that this one is a copy of, if it is one. `directory` is the name of the study's directory in its
    marker; empty if the store knows of none.
    """

    store: str
    study: str
    prefix: str
    copied_from: str | None = None
    directory: str = ""


@final
class OwnerMarker(NamedTuple):
    """What a marker says: to which study of which store the directory belongs, and its unique name."""

    store: str
    study: str
    directory: str


@final
class Made(NamedTuple):
    """The creator of a directory, by its name: a store, and trial, token and claim digest of an attempt."""

    prefix: str
    claim: tuple[int, int, str] | None


def attempt_name(prefix: str, trial: int, token: int, worker: str | None, claimed_at: float | None) -> str:
    """Return the name of an attempt's checkpoint, which no other attempt of any store has.

    A store that was restored from a backup gives out the same trials and tokens again, to other workers at
    other times; hence the digest of both.
    """
    return f"{trial}.{token}.{prefix}{claim_digest(worker, claimed_at)}"


def claim_digest(worker: str | None, claimed_at: float | None) -> str:
    """Return six hexadecimal digits that identify one claim of a trial."""
    return blake3(f"{worker} {claimed_at!r}".encode()).hexdigest()[:6]


def import_name(prefix: str, number: int) -> str:
    """Return a new name for the copy of what members start from."""
    return f"start-{number}-{prefix}{uuid.uuid4().hex[:6]}"


def parse_name(name: str) -> Made | None:
    """Return the creator of a directory by its name; None for a foreign name."""
    match = _ATTEMPT.fullmatch(name)
    if match is not None:
        return Made(match[3], (int(match[1]), int(match[2]), match[4]))
    match = _IMPORT.fullmatch(name)
    return None if match is None else Made(match[1], None)


@final
class Ownership:
    """Claims a place for a study, and verifies that it still belongs to the study.

    Methods raise CheckpointsAbsent, CheckpointsNotOurs, or CheckpointStorageFailed where it cannot be marked.
    """

    def __init__(self, place: "MarkedDirectory | MarkedPrefix", owner: Owner) -> None:
        self._place = place
        self._owner = owner
        self._directory = owner.directory
        self._is_study = True

    def check(self) -> str:
        """Verify that the place exists and is this study's, and return the name of the directory."""
        marker = self._marker() or self._marker_or_refuse_content()
        if marker is None:
            raise self._absent("the directory is empty" if self._place.is_there() else "no such directory")
        self._compare(marker)
        if self._directory and marker.directory != self._directory:
            raise self._absent(f"the directory there was marked as {marker.directory}")
        return marker.directory

    def claim(self, directory: str | None) -> str:
        """Verify that the place belongs to this study, as `check`; create and mark it if the study has none.

        `directory` is the name of the study's; empty if it has none, None if the store has no such study yet.
        """
        self._is_study, self._directory = directory is not None, directory or ""
        if not directory and self._marker() is None and self._marker_or_refuse_content() is None:
            self._write(replace=False)
        return self.check()

    def adopt(self) -> str:
        """Mark the place as this study's, and return its former owner; deletes nothing."""
        entries = self._entries()
        if not self._place.is_there():
            raise self._absent("no such directory")
        try:
            marker = self._marker()
        except CheckpointsNotOurs:
            marker = None
        if marker is not None and marker.study != self._owner.study:
            self._compare(marker)
        if marker is None:
            self._refuse_content([name for name in entries if not self._place.is_checkpoint(name)])
        before, self._directory = self._directory, self._write(replace=True)
        if marker is not None and marker.store == self._owner.store:
            return f"the study had {before}"
        if marker is not None:
            return f"it belonged to store {marker.store}"
        return "it had no marker, and only checkpoints in it" if entries else "it was empty"

    def make_restored_error(self, names: list[str]) -> CheckpointsNotOurs:
        """Return the error for checkpoints that this store created but does not have."""
        return self._not_ours(
            f"it holds {join_names([*map(repr, names)])}, which this store created but does not know: it was "
            "restored from a backup, or lost its last commits",
            adoptable=True,
        )

    def _marker(self) -> OwnerMarker | None:
        try:
            content = self._place.read()
            if content is None:
                return None
            raw = loads(content)
            if raw["format"] != FORMAT:
                raise ValueError(f"format {raw['format']!r}")
            return OwnerMarker(str(raw["store"]), str(raw["study"]), str(raw.get("directory", "")))
        except CheckpointError as error:
            raise self._unreachable(str(error)) from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._not_ours(
                f"its marker {self._place}/{OWNER_NAME} is damaged: {error}", adoptable=True
            ) from error

    def _compare(self, marker: OwnerMarker) -> None:
        store, study = marker.store, marker.study
        if study != self._owner.study:
            raise self._not_ours(f"it belongs to study {study!r} of store {store}", adoptable=False)
        if store == self._owner.store:
            return
        if store == self._owner.copied_from:
            reason = f"it belongs to store {store}, of which this store is a copy or a restored backup"
        else:
            reason = f"it belongs to a study of this name in another store, {store}"
        raise self._not_ours(reason, adoptable=True)

    def _entries(self) -> list[str]:
        try:
            return self._place.entries()
        except CheckpointError as error:
            raise self._unreachable(str(error)) from error

    def _marker_or_refuse_content(self) -> OwnerMarker | None:
        # The marker is written before everything else: entries without it are foreign only if there still is none.
        entries = self._entries()
        marker = self._marker()
        if marker is None:
            self._refuse_content(entries)
        return marker

    def _refuse_content(self, entries: list[str]) -> None:
        if entries:
            adoptable = all(map(self._place.is_checkpoint, entries))
            raise self._not_ours(
                f"it has no marker {OWNER_NAME}, and holds {join_names([*map(repr, entries)])}",
                adoptable=adoptable,
            )

    def _write(self, *, replace: bool) -> str:
        directory = f"{self._place} on {socket.gethostname()} ({uuid.uuid4().hex})"
        marker = OwnerMarker(self._owner.store, self._owner.study, directory)
        self._place.write(dumps({"format": FORMAT, **marker._asdict()}) + "\n", replace=replace)
        return directory

    def _unreachable(self, why: str) -> CheckpointsAbsent:
        return CheckpointsAbsent(
            f"{socket.gethostname()} cannot look for the checkpoints of study {self._owner.study!r} in "
            f"{self._place}: {why}. Nothing was decided, deleted or marked as lost"
        )

    def _absent(self, why: str) -> CheckpointsAbsent:
        study = self._owner.study
        host = socket.gethostname()
        marked = f"; the study's directory was marked as {self._directory}" if self._directory else ""
        creation = "" if self._place.is_there() else "make the directory and "
        return CheckpointsAbsent(
            f"the checkpoints of study {study!r} are not in {self._place} on {host}: {why}{marked}. "
            f"Nothing was decided, deleted or marked as lost. {self._place.recovery}, "
            "or say where they are with checkpoints= (on the command line: --checkpoints). If they are gone for "
            f"good, {creation}run: phyla doctor {study} --adopt"
        )

    def _not_ours(self, reason: str, *, adoptable: bool) -> CheckpointsNotOurs:
        study = self._owner.study
        adopt = (
            f". If study {study!r} of this store should go on with what is there, and no other store does, run: "
            f"phyla doctor {study} --adopt (it deletes nothing)"
            if adoptable and self._is_study
            else ""
        )
        return CheckpointsNotOurs(
            f"{self._place} on {socket.gethostname()} is not the checkpoint directory of study {study!r} of this "
            f"store: {reason}. Nothing in it was changed or deleted. Choose another place with checkpoints= (on "
            f"the command line: --checkpoints), or another name for the study{adopt}"
        )


@final
class MarkedDirectory:
    """A directory with a marker; methods raise CheckpointStorageFailed where it is out of reach."""

    recovery = "Mount the disk, run from where the study was begun"
    """How to recover a missing place."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._root = root
        self._disk = disk

    def __str__(self) -> str:
        return str(self._root)

    def read(self) -> bytes | None:
        """Return the marker's content, if there is one."""
        marker = self._root / OWNER_NAME
        with storage_errors("read", marker), suppress(FileNotFoundError, NotADirectoryError):
            return marker.read_bytes()
        return None

    def entries(self) -> list[str]:
        """Return the names inside, without the marker and leftovers of an interrupted claim."""
        if self._root.is_file():
            return [self._root.name]
        with storage_errors("read", self._root), suppress(FileNotFoundError):
            return sorted(path.name for path in self._root.iterdir() if not path.name.startswith(OWNER_NAME))
        return []

    def is_there(self) -> bool:
        """Return whether the directory exists."""
        return self._root.is_dir()

    def is_checkpoint(self, name: str) -> bool:
        """Return whether an entry is a checkpoint, or created by phyla."""
        return name in WORK_DIRS or (self._root / name / MANIFEST_NAME).is_file()

    def write(self, text: str, *, replace: bool) -> None:
        """Write the marker; without `replace` an existing one stays."""
        marker = self._root / OWNER_NAME
        temporary = self._root / f"{OWNER_NAME}.{uuid.uuid4().hex}"
        with storage_errors("mark", self._root):
            make_dirs(self._disk, self._root)
            try:
                self._disk.write_file(temporary, text.encode())
                self._disk.fsync_file(temporary)
                if replace:
                    temporary.replace(marker)
                else:
                    # Another process may claim it, too: the second one finds the marker of the first.
                    self._place(temporary, marker, text)
            finally:
                temporary.unlink(missing_ok=True)
            self._disk.fsync_dir(self._root)

    def _place(self, temporary: Path, marker: Path, text: str) -> None:
        try:
            marker.hardlink_to(temporary)
        except FileExistsError:
            return
        except OSError:
            # A file system without hard links.
            with suppress(FileExistsError), marker.open("x") as file:
                file.write(text)
            self._disk.fsync_file(marker)


@final
class MarkedPrefix:
    """A prefix of an object store with a marker, as `MarkedDirectory`; methods raise CheckpointError."""

    recovery = "Check that it is the right bucket and prefix"

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def __str__(self) -> str:
        return self._objects.url

    def read(self) -> bytes | None:
        try:
            return self._objects.read(OWNER_NAME)
        except FileNotFoundError:
            return None

    def entries(self) -> list[str]:
        return sorted({key.partition("/")[0] for key in self._objects.sizes() if not key.startswith(OWNER_NAME)})

    def is_there(self) -> bool:
        """Return True: a prefix exists as soon as its bucket does."""
        return True

    def is_checkpoint(self, name: str) -> bool:
        return f"{name}/{MANIFEST_NAME}" in self._objects.sizes(name)

    def write(self, text: str, *, replace: bool) -> None:
        (self._objects.write if replace else self._objects.create)(OWNER_NAME, text.encode())
