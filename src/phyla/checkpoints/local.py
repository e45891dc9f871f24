"""Checkpoints as directories below one root, on a local or a shared file system."""

import errno
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import final

from phyla import settings
from phyla.checkpoints.disk import Disk, make_dirs, storage_errors
from phyla.checkpoints.manifest import MANIFEST_NAME, Manifest, ManifestFile, Tree, digests, is_small, scan
from phyla.checkpoints.ownership import OWNER_NAME, WORK_DIRS, MarkedDirectory, Owner, Ownership
from phyla.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing, NoCheckpoint, UsageError
from phyla.system.failpoints import failpoint

FLUSHED_IN_TURN = 8
"""Up to this many small files and directories, starting threads costs more than it saves."""
FLUSH_THREADS = 16

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@final
class LocalCheckpoints:
    """Keeps checkpoints by name, in one directory.

    A name is used for one attempt only (see `attempt_name`): at most one caller stages and commits it.
    Calls about different names may come from any threads and processes at once. Methods raise `CheckpointMissing`
    for a missing checkpoint, `CheckpointCorrupt` for one that differs from its commit, and
    `CheckpointStorageFailed` if the storage itself fails; `check_owner`, `stage`, `commit` and `use` also
    `CheckpointsAbsent` where the directory of all checkpoints is gone, and `CheckpointsNotOurs` where something
    else is in its place.

    `root/NAME` is a committed checkpoint, `root/.staging/NAME` one that is being written, and
    `root/.deleting/NAME` one that is being removed; directories only ever move between these by an
    atomic rename. Files lose every permission to write; directories keep theirs, since a directory
    that its owner may not write to cannot be renamed, and removing it would take more calls.

    Args:
        root: created when it is claimed for its owner; without an owner, when the first checkpoint is staged.
        disk: what changes the file system.
        owner: the study that the directory belongs to; None checks nothing.
    """

    def __init__(self, root: Path, disk: Disk | None = None, *, owner: Owner | None = None) -> None:
        self._root = root.absolute()
        self._staging = self._root / ".staging"
        self._deleting = self._root / ".deleting"
        self._disk = disk or Disk()
        self._verify_bytes = settings.verify_bytes()
        self._verified: dict[str, tuple[str, int]] = {}
        self._manifest_begun: set[str] = set()
        self.prefix = "000000" if owner is None else owner.prefix
        self.ownership = None if owner is None else Ownership(MarkedDirectory(self._root, self._disk), owner)

    def check_owner(self) -> None:
        """Verify that the directory exists and belongs to its owner."""
        if self.ownership is not None:
            self.ownership.check()

    def stage(self, name: str) -> Path:
        """Return a new empty directory to save into; removes leftovers of an earlier call with that name."""
        path = self._staging / check_name(name)
        self._manifest_begun.discard(name)
        # A missing root is not created again: its checkpoints are elsewhere.
        self.check_owner()
        with storage_errors("create", path):
            try:
                self._disk.make_dir(path)
            except FileNotFoundError:
                self._make_staging()
                self._disk.make_dir(path)
            except FileExistsError:
                self._disk.remove_tree(path)
                self._disk.make_dir(path)
        try:
            # Something else may have taken the root's place in the meantime.
            self.check_owner()
        except CheckpointError:
            with suppress(OSError):
                path.rmdir()
            raise
        return path

    def _make_staging(self) -> None:
        if self.ownership is None:
            make_dirs(self._disk, self._staging)
            return
        with suppress(FileExistsError):
            self._disk.make_dir(self._staging)
        self._disk.fsync_dir(self._root)

    def commit(self, name: str, *, step: int, now: float) -> Manifest:
        """Make staged files durable and visible under their name, atomically.

        When it returns, the checkpoint survives a power cut. When it raises, nothing is visible
        under the name and the staged files are still there, to be discarded.
        """
        staging = self._staging / check_name(name)
        self.check_owner()
        with storage_errors("commit", staging):
            try:
                manifest = self._commit(name, step, now)
            except FileNotFoundError:
                self.check_owner()
                if staging.is_dir():
                    raise
                why = f"{staging} was removed during its commit; write into it, and never remove or replace it"
                raise CheckpointMissing(f"checkpoint {name}: {why}") from None
        self._manifest_begun.discard(name)
        return manifest

    def _commit(self, name: str, step: int, now: float) -> Manifest:
        """Commit as `commit` does; raises OSError."""
        final_path, staging = self._root / name, self._staging / name
        if final_path.exists():
            raise make_taken_error(name, final_path)
        if not staging.is_dir():
            raise CheckpointMissing(f"checkpoint {name}: no directory {staging}; call stage before commit")
        written = staging / MANIFEST_NAME
        if name not in self._manifest_begun:
            _refuse_other_manifest(written)
        failpoint("checkpoint.before_flush")
        tree = _scan_staging(staging)
        if not tree.entries:
            how = "save at least one file into trial.checkpoint_dir"
            raise NoCheckpoint(f"no checkpoint was saved: {staging} is empty; {how}")
        try:
            pairs = zip(tree.entries, self._flush_files(tree), strict=True)
        except FileNotFoundError as error:
            raise _make_unfinished_error(error.filename) from error
        files = [
            ManifestFile(entry.relative, entry.size_bytes, digest, None if entry.is_link else entry.modified_ns)
            for entry, digest in pairs
        ]
        manifest = Manifest.of(files, step=step, created_at=now)
        failpoint("checkpoint.after_flush")
        self._manifest_begun.add(name)
        self._disk.write_file(written, manifest.to_json().encode())
        self._disk.fsync_file(written)
        self._disk.fsync_dir(staging)
        failpoint("checkpoint.after_manifest")
        changed = set(tree.entries) ^ set(_scan_staging(staging).entries)
        if changed:
            raise _make_unfinished_error(min(entry.path for entry in changed))
        try:
            self._disk.rename(staging, final_path)
        except OSError as error:
            if error.errno in {errno.EEXIST, errno.ENOTEMPTY}:
                raise make_taken_error(name, final_path) from error
            raise
        failpoint("checkpoint.after_rename")
        try:
            self._disk.fsync_dir(self._root)
        except OSError:
            with suppress(OSError):
                self._disk.rename(final_path, staging)
            raise
        return manifest

    def _flush_files(self, tree: Tree) -> list[str]:
        """Flush and digest staged files; the entries of the staging directory itself wait for the manifest."""

        def flush_file(path: Path) -> None:
            self._disk.make_read_only(path)
            self._disk.fsync_file(path)

        calls = [partial(flush_file, entry.path) for entry in tree.entries if not entry.is_link]
        calls += [partial(self._disk.fsync_dir, folder) for folder in tree.folders]
        if len(calls) <= FLUSHED_IN_TURN and is_small(tree.entries):
            for call in calls:
                call()
            return digests(tree.entries)
        # Flushes that wait at the same time share what the file system writes for them; hashing hides behind them.
        with ThreadPoolExecutor(FLUSH_THREADS, "phyla-flush") as pool:
            flushing = [pool.submit(call) for call in calls]
            hashes = digests(tree.entries)
            for done in flushing:
                done.result()
        return hashes

    def discard(self, name: str) -> None:
        """Remove the staged files of a name, if any."""
        path = self._staging / check_name(name)
        with storage_errors("remove", path):
            self._disk.remove_tree(path)

    def release(self, *names: str) -> None:
        """Release checkpoints that this process no longer reads; a no-op here."""

    def path(self, name: str) -> Path:
        """Return the directory of a committed checkpoint, or raise `CheckpointMissing`."""
        path = self._root / check_name(name)
        with storage_errors("find", path):
            if not path.is_dir():
                why = "it was collected, moved or never committed"
                raise CheckpointMissing(f"checkpoint {name}: no directory {path}; {why}")
        return path

    def use(self, name: str, digest: str | None = None, *, again: bool = False) -> Path:
        """Verify a committed checkpoint that is about to be read, and return its directory.

        Names, sizes and the manifest's digest are compared every time; the content when this object first uses the
        checkpoint, when a file was changed since, and with `again`, but not above `PHYLA_VERIFY_BYTES`.
        """
        if again:
            self._verified.pop(name, None)
        try:
            return self._sound(name, digest)
        except (CheckpointMissing, CheckpointCorrupt):
            # If the whole directory is unreachable, or just came back, no checkpoint is lost or damaged.
            self.check_owner()
            return self._sound(name, digest)

    def _sound(self, name: str, digest: str | None) -> Path:
        path, (manifest, tree) = self._root / name, self._compare_sizes(name)
        if digest is not None and manifest.digest != digest:
            raise CheckpointCorrupt(
                f"checkpoint {name}: {path} is not what was committed: its manifest has digest {manifest.digest}, "
                f"the study recorded {digest}; the directory was replaced"
            )
        state = (manifest.digest, hash(tree.entries))
        if manifest.size_bytes <= self._verify_bytes and self._verified.get(name) != state:
            self._compare_content(name, manifest, tree)
            self._verified[name] = state
        return path

    def check(self, name: str) -> Manifest:
        """Compare names and sizes with the manifest, without reading content."""
        return self._compare_sizes(name)[0]

    def verify(self, name: str) -> Manifest:
        """Read every byte and compare it with the manifest."""
        manifest, tree = self._compare_sizes(name)
        self._compare_content(name, manifest, tree)
        return manifest

    def _compare_sizes(self, name: str) -> tuple[Manifest, Tree]:
        path = self.path(name)
        with storage_errors("read", path):
            try:
                manifest = Manifest.from_bytes((path / MANIFEST_NAME).read_bytes())
                tree = scan(path)
            except FileNotFoundError as error:
                self.path(name)
                raise CheckpointCorrupt(f"checkpoint {name}: {error.filename} is gone") from error
            except CheckpointError as error:
                raise CheckpointCorrupt(f"checkpoint {name}, in {path}: {error}") from error
        sizes = {entry.relative: entry.size_bytes for entry in tree.entries}
        manifest.compare(f"checkpoint {name}: {path}", sizes)
        return manifest, tree

    def _compare_content(self, name: str, manifest: Manifest, tree: Tree) -> None:
        path = self._root / name
        with storage_errors("read", path):
            try:
                manifest.compare_content(f"checkpoint {name}: {path}", tree.entries)
            except FileNotFoundError as error:
                raise CheckpointMissing(f"checkpoint {name}: {error.filename} is gone") from error

    def delete(self, *names: str) -> int:
        """Remove checkpoints, and return the bytes that this freed; 0 for those gone already."""
        freed = 0
        doomed: list[Path] = []
        for name in names:
            path = self._root / check_name(name)
            with storage_errors("delete", path):
                failpoint("checkpoint.before_delete")
                freed += self._remove(self._deleting / name)
                if path.is_dir():
                    self._doom(path, self._deleting / name)
                    doomed.append(self._deleting / name)
        if doomed:
            with storage_errors("delete", self._root):
                # The names have to be gone for good before the first byte goes.
                self._disk.fsync_dir(self._root)
                failpoint("checkpoint.during_delete")
                freed += sum(map(self._remove, doomed))
        return freed

    def _doom(self, path: Path, doomed: Path) -> None:
        if not self._deleting.is_dir():
            make_dirs(self._disk, self._deleting)
        try:
            self._disk.rename(path, doomed)
        except PermissionError:
            self._disk.make_writable(path)
            self._disk.rename(path, doomed)
        except FileNotFoundError:
            if path.exists():
                raise

    def _remove(self, path: Path) -> int:
        if not path.is_dir():
            return 0
        freed = 0
        for folder, _, files in os.walk(path):
            for file in files:
                # Another host may be removing the same name: each counts the entries that it removes.
                with suppress(FileNotFoundError):
                    freed += Path(folder, file).lstat().st_size
        self._disk.remove_tree(path)
        return freed

    def remove_empty(self) -> None:
        """Remove the directory, if nothing is left in it but the marker and empty directories."""
        with suppress(OSError):
            if {path.name for path in self._root.iterdir()} <= {OWNER_NAME, *WORK_DIRS}:
                for folder in (self._staging, self._deleting):
                    if folder.is_dir():
                        folder.rmdir()
                (self._root / OWNER_NAME).unlink(missing_ok=True)
                self._root.rmdir()

    def names(self) -> tuple[str, ...]:
        """Return the names of the committed checkpoints."""
        return self._directories(self._root)

    def staged(self) -> tuple[str, ...]:
        """Return the names that are staged and not committed."""
        return self._directories(self._staging)

    def deleting(self) -> tuple[str, ...]:
        """Return the names whose deletion was started and not finished."""
        return self._directories(self._deleting)

    def _directories(self, path: Path) -> tuple[str, ...]:
        names: list[str] = []
        with storage_errors("list", path), suppress(FileNotFoundError), os.scandir(path) as items:
            names = [item.name for item in items if item.is_dir(follow_symlinks=False)]
        return tuple(sorted(name for name in names if _NAME.fullmatch(name)))


def _scan_staging(staging: Path) -> Tree:
    try:
        return scan(staging)
    except FileNotFoundError as error:
        raise _make_unfinished_error(error.filename) from error


def _refuse_other_manifest(path: Path) -> None:
    """Reject a foreign file under the manifest's name; a copied manifest is replaced."""
    if not os.path.lexists(path):
        return
    try:
        copied = path.is_file() and not path.is_symlink() and bool(Manifest.from_bytes(path.read_bytes()))
    except CheckpointCorrupt:
        copied = False
    if not copied:
        raise CheckpointError(
            f"{path} was saved under the name of phyla's own manifest, {MANIFEST_NAME}: save it under another name"
        )


def is_name(name: str) -> bool:
    """Return whether a checkpoint may have this name."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Return a name that a checkpoint may have, or raise UsageError."""
    if not is_name(name):
        allowed = "1 to 100 of letters, digits, '.', '_' and '-', the first a letter or a digit"
        raise UsageError(f"{name!r} cannot name a checkpoint: use {allowed}")
    return name


def make_taken_error(name: str, path: object) -> CheckpointError:
    """Return the error for a name that is already committed."""
    advice = "stage under a new name, or recover this one"
    return CheckpointError(f"checkpoint {name} is already committed in {path}, and immutable: {advice}")


def _make_unfinished_error(path: object) -> CheckpointError:
    advice = "wait for background savers before training returns or reports a checkpoint"
    return CheckpointError(f"{path} was changed while its checkpoint was committed: {advice}")
