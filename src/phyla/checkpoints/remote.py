"""Checkpoints on an object store, read and written by way of a cache on this machine."""

import hashlib
import logging
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias, final

from phyla import settings
from phyla.checkpoints.cache import Cache
from phyla.checkpoints.disk import storage_errors
from phyla.checkpoints.local import LocalCheckpoints, check_name, is_name, make_taken_error
from phyla.checkpoints.manifest import MANIFEST_NAME, Manifest, ManifestFile, link_digest, scan
from phyla.checkpoints.objects import Objects, run_each
from phyla.checkpoints.ownership import OWNER_NAME, MarkedPrefix, Owner, Ownership
from phyla.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointMissing,
    CheckpointStorageFailed,
    ConfigurationError,
)
from phyla.formatting import join_names
from phyla.system.failpoints import failpoint

LOG = logging.getLogger("phyla")

LONGEST_LINK = 4096
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/@\s]+(/[^@]*)?")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:/")  # `Path("s3://b")` is "s3:/b"


@final
@dataclass(frozen=True, slots=True)
class RemotePlace:
    """A URL below which checkpoints are, and the directory of this machine's copies of them."""

    url: str
    cache: Path

    def __truediv__(self, name: str) -> "RemotePlace":
        return RemotePlace(f"{self.url}/{name}", self.cache)

    def __str__(self) -> str:
        return self.url


def place_of(where: str | Path, home: Path) -> Path | RemotePlace:
    """Return a directory, or the place of a URL such as `s3://bucket/prefix`.

    Raises:
        ConfigurationError: the URL has no bucket, or a password in it.
    """
    if not _SCHEME.match(str(where)):
        return Path(where)
    url = str(where).rstrip("/")
    if not _URL.fullmatch(url):
        masked = re.sub("//.*@", "//***@", url)
        raise ConfigurationError(
            f"checkpoints={masked!r}: give s3://bucket/prefix; credentials come from the environment or from "
            "~/.aws, never from the URL"
        )
    return RemotePlace(url, settings.cache() or home / "cache")


def local_copy(where: Path | RemotePlace, digest: str | None) -> Path:
    """Return the directory of a committed checkpoint that has this digest, on this machine until the process ends.

    Raises:
        CheckpointError: it is missing, has changed, or cannot be reached.
    """
    if isinstance(where, Path):
        return where
    root, _, name = where.url.rpartition("/")
    return _open_place(RemotePlace(root, where.cache)).use(name, digest)


@cache
def _open_place(place: RemotePlace) -> "RemoteCheckpoints":
    # One for all calls, so that each copy is held once.
    return RemoteCheckpoints(place)


def is_there(where: Path | RemotePlace) -> bool:
    """Return whether a committed checkpoint exists; True if the object store is unreachable."""
    if isinstance(where, Path):
        return where.exists()
    try:
        return MANIFEST_NAME in Objects(where.url).sizes()
    except (CheckpointError, ConfigurationError):
        return True


@final
class RemoteCheckpoints:
    """Keeps checkpoints by name below a URL, with the guarantees of `LocalCheckpoints`.

    `URL/NAME/` holds the files of a checkpoint, and its manifest, which is written last: without it there is no
    checkpoint. Staged files are on this machine, and stay there as the first copy once uploaded.
    """

    def __init__(self, place: RemotePlace, *, owner: Owner | None = None) -> None:
        study = place.url.rpartition("/")[2]
        self._objects = Objects(place.url)
        # Copies of two places never meet.
        folder = f"{study}-{hashlib.sha256(place.url.encode()).hexdigest()[:12]}"
        self._cache = Cache(place.cache, folder)
        self._staged: set[str] = set()
        self._began: set[str] = set()
        self.prefix = "000000" if owner is None else owner.prefix
        self.ownership = None if owner is None else Ownership(MarkedPrefix(self._objects), owner)

    def check_owner(self) -> None:
        if self.ownership is not None:
            self.ownership.check()

    def stage(self, name: str) -> Path:
        check_name(name)
        self.check_owner()
        self._cache.hold(name)
        self._staged.add(name)
        return self._cache.local.stage(name)

    def commit(self, name: str, *, step: int, now: float) -> Manifest:
        """Upload staged files; on return the store has the whole checkpoint, after an exception none."""
        check_name(name)
        self.check_owner()
        if MANIFEST_NAME in self._sizes(name):
            raise make_taken_error(name, f"{self._objects.url}/{name}")
        manifest = self._cache.local.commit(name, step=step, now=now)
        try:
            self._upload(name, manifest)
        except BaseException:
            self._cache.unplace(name)
            raise
        self._staged.discard(name)
        self._cache.release(name)
        self._cache.evict()
        return manifest

    def _upload(self, name: str, manifest: Manifest) -> None:
        path, text = self._cache.local.path(name), manifest.to_json().encode()

        def put(relative: str) -> None:
            file, key = path / relative, f"{name}/{relative}"
            if file.is_symlink():
                self._objects.write(key, os.fsencode(file.readlink()))
            else:
                self._objects.put(file, key)
            failpoint("upload.during_files")

        self._began.add(name)
        failpoint("upload.before_files")
        try:
            run_each(put, [file.path for file in manifest.files])
        except FileNotFoundError as error:
            why = "it was removed, since the claim of its trial has ended"
            raise CheckpointMissing(f"checkpoint {name}: its upload is gone; {why}") from error
        except UnicodeEncodeError as error:
            raise CheckpointError(f"{path} has a file whose name is not UTF-8; save it under another") from error
        sizes = self._sizes(name)
        lacking = [file.path for file in manifest.files if sizes.get(file.path) != file.size_bytes]
        if lacking:
            where = f"{self._objects.url}/{name}"
            raise CheckpointStorageFailed(f"{where} lacks files that were just written: {join_names(lacking)}")
        failpoint("upload.after_files")
        if MANIFEST_NAME in sizes or not self._objects.create(f"{name}/{MANIFEST_NAME}", text):
            raise make_taken_error(name, f"{self._objects.url}/{name}")
        failpoint("upload.after_manifest")
        self._began.discard(name)

    def discard(self, name: str) -> None:
        """Remove the staged and uploaded files of a name, unless it is committed."""
        self._cache.local.discard(name)
        # For names staged here it is known whether anything was uploaded.
        if name in self._began or name not in self._staged:
            self._abort(name)
            if MANIFEST_NAME not in (there := self._sizes(name)):
                self._objects.remove([f"{name}/{key}" for key in there])
        self._staged.discard(name)
        self._began.discard(name)
        self._cache.release(name)

    def release(self, *names: str) -> None:
        """Release checkpoints that this process no longer reads: their copies may be evicted."""
        for name in names:
            self._cache.release(name, count=1)

    def path(self, name: str) -> Path:
        """Return the directory of a copy of a committed checkpoint, which stays until `release`."""
        self._cache.hold(check_name(name), count=1)
        try:
            try:
                return self._cache.local.path(name)
            except CheckpointMissing:
                return self._download(name, None)
        except BaseException:
            self._cache.release(name, count=1)
            raise

    def use(self, name: str, digest: str | None = None, *, again: bool = False) -> Path:
        """Return the directory of a copy of a committed checkpoint that is about to be read.

        A copy is compared as `LocalCheckpoints.use` does, and downloaded if there is none or it is damaged. With
        `again`, the object store is checked, too.
        """
        self._cache.hold(check_name(name))
        try:
            try:
                return self._sound(name, digest, again=again)
            except (CheckpointMissing, CheckpointCorrupt):
                self.check_owner()
                return self._sound(name, digest, again=again)
        except BaseException:
            self._cache.release(name)
            raise

    def _sound(self, name: str, digest: str | None, *, again: bool) -> Path:
        if again:
            self.check(name)
        try:
            return self._cache.local.use(name, digest, again=again)
        except (CheckpointMissing, CheckpointCorrupt):
            return self._download(name, digest)

    def _download(self, name: str, digest: str | None) -> Path:
        """Replace the copy of a checkpoint that is missing or damaged; the name is held."""
        manifest = self.check(name)
        if digest is not None and manifest.digest != digest:
            where = f"{self._objects.url}/{name}"
            raise CheckpointCorrupt(
                f"checkpoint {name}: {where} is not what was committed: its manifest has digest "
                f"{manifest.digest}, the study recorded {digest}; it was replaced"
            )
        local = self._cache.local
        with self._cache.downloading(name):
            try:
                return local.use(name, manifest.digest)
            except CheckpointMissing:
                pass
            except CheckpointCorrupt as error:
                LOG.warning("%s; it is downloaded again", error)
            local.delete(name)
            self._fetch(name, manifest)
            path = self._cache.place(name, manifest.to_json().encode())
        self._cache.evict()
        return path

    def _fetch(self, name: str, manifest: Manifest) -> None:
        staged = self._cache.local.stage(name)
        with storage_errors("download into", staged):
            self._get(name, manifest, staged)
        try:
            entries = scan(staged).entries
        except CheckpointError as error:
            raise CheckpointCorrupt(f"checkpoint {name}: {error}") from error
        manifest.compare_content(f"checkpoint {name}: {self._objects.url}/{name}", entries)

    def _get(self, name: str, manifest: Manifest, staged: Path) -> None:
        def get(file: ManifestFile) -> None:
            target = staged / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            self._objects.get(f"{name}/{file.path}", target)
            if file.modified_ns is not None:
                os.utime(target, ns=(file.modified_ns, file.modified_ns))

        try:
            run_each(get, manifest.files)
        except FileNotFoundError as error:
            raise CheckpointMissing(f"checkpoint {name}: {error} is gone from {self._objects.url}") from error
        # Links come last, so that no file is written through one.
        for file in manifest.files:
            content = b"" if file.size_bytes > LONGEST_LINK else (staged / file.path).read_bytes()
            if content and link_digest(content) == file.digest:
                (staged / file.path).unlink()
                (staged / file.path).symlink_to(os.fsdecode(content))

    def check(self, name: str) -> Manifest:
        where = f"{self._objects.url}/{check_name(name)}"
        try:
            manifest = Manifest.from_bytes(self._objects.read(f"{name}/{MANIFEST_NAME}"))
        except FileNotFoundError as error:
            why = "it was collected, moved or never committed"
            raise CheckpointMissing(f"checkpoint {name}: no manifest in {where}; {why}") from error
        except CheckpointCorrupt as error:
            raise CheckpointCorrupt(f"checkpoint {name}, in {where}: {error}") from error
        sizes = self._sizes(name)
        if sizes.pop(MANIFEST_NAME, None) is None:
            raise CheckpointMissing(f"checkpoint {name}: it was removed from {where} just now")
        manifest.compare(f"checkpoint {name}: {where}", sizes)
        return manifest

    def verify(self, name: str) -> Manifest:
        manifest = self.check(name)
        self._cache.hold(name)
        try:
            with self._cache.downloading(name):
                self._fetch(name, manifest)
                self._cache.local.discard(name)
        finally:
            self._cache.release(name)
        return manifest

    def delete(self, *names: str) -> int:
        sizes: dict[str, int] = {}
        for name in names:
            failpoint("checkpoint.before_delete")
            sizes |= {f"{check_name(name)}/{key}": size for key, size in self._sizes(name).items()}
        manifests = {key for key in sizes if key.partition("/")[2] == MANIFEST_NAME}
        # Without its manifest it no longer is a checkpoint.
        self._objects.remove(manifests)
        failpoint("checkpoint.during_delete")
        self._objects.remove([key for key in sizes if key not in manifests])
        for name in names:
            self._abort(name)
            self._cache.forget(name)
        return sum(sizes.values())

    def _abort(self, name: str) -> None:
        self._objects.abort(self._objects.uploads(check_name(name)))

    def remove_empty(self) -> None:
        """Remove the marker, if it is the only object."""
        if not self._entries():
            self._objects.remove([OWNER_NAME])

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, committed in self._entries().items() if committed))

    def staged(self) -> tuple[str, ...]:
        """Return the names that are staged on this machine, or uploaded in part, and not committed."""
        return tuple(sorted({*self._cache.local.staged(), *self.deleting()}))

    def deleting(self) -> tuple[str, ...]:
        """Return the names with objects but no manifest: partly uploaded or partly deleted."""
        return tuple(sorted(name for name, committed in self._entries().items() if not committed))

    def _entries(self) -> dict[str, bool]:
        """Return the names that are on the store, and whether each is committed."""
        entries: dict[str, bool] = {}
        keys = [*self._objects.sizes(), *(key for key, _ in self._objects.uploads())]
        for name, _, relative in (key.partition("/") for key in keys):
            if relative and is_name(name):
                entries[name] = entries.get(name, False) or relative == MANIFEST_NAME
        return entries

    def _sizes(self, name: str) -> dict[str, int]:
        return {key.removeprefix(f"{name}/"): size for key, size in self._objects.sizes(check_name(name)).items()}


Checkpoints: TypeAlias = LocalCheckpoints | RemoteCheckpoints
"""Where a study keeps its checkpoints."""
