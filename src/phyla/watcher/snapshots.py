"""Keeps a foreign checkpoint readable, and identified by its content, while its writer overwrites and deletes.

`target_dir/SNAPSHOT` is a whole snapshot, `target_dir/.tmp-SNAPSHOT.SUFFIX` one that was never finished. Links
cost no space and no time, and survive deletion and replacement by the writer; a file that is overwritten in place
changes in the snapshot too, which `is_unchanged` detects.
"""

import errno
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, final

from phyla import settings
from phyla.checkpoints.cache import Cache
from phyla.checkpoints.disk import storage_errors
from phyla.checkpoints.objects import run_each
from phyla.errors import (
    CheckpointChanged,
    CheckpointError,
    CheckpointGone,
    CheckpointsAbsent,
    CheckpointStorageFailed,
    ConfigurationError,
)
from phyla.records import Checkpoint, escape_name
from phyla.system.failpoints import failpoint
from phyla.system.patience import PATIENCE_S
from phyla.watcher.format import Found
from phyla.watcher.listing import File, Listing, Place, listing
from phyla.watcher.remote import Remote, is_url

Mode = Literal["link", "copy", "none"]
SEAL = ".phyla-snapshot"
"""In a snapshot of copies: the fingerprint that the copies had when it was made, and that of the originals."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")
_SNAPSHOT = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*@[0-9a-f]{16}")
_NAME_LENGTH_AT_MOST = 120
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


def identity(root: Path, checkpoint: Found | Checkpoint) -> str:
    """Return the key of a checkpoint's results in the ledger; raises if the checkpoint has changed.

    It hashes names, sizes and times of the files, which is cheap but not unique to the content.
    """
    files = _look_again(root, checkpoint).files
    lines = "".join(f"{file.relative}\0{file.size_bytes}\0{file.modified_ns}\n" for file in files)
    return f"listing:{_sha256(lines)}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _look_again(
    root: Place, checkpoint: Found | Checkpoint, when: str = "after it was found; scan again"
) -> Listing:
    """Return the files of a checkpoint; raises if they have changed since the scan."""
    listed = Listing(())
    with suppress(FileNotFoundError):
        listed = listing(root, checkpoint.paths)
    if listed.fingerprint == checkpoint.fingerprint:
        return listed
    where = f"checkpoint {escape_name(checkpoint.name)} in {root}"
    if not listed.files:
        raise CheckpointGone(f"{where} was deleted {when}")
    raise CheckpointChanged(f"{where} was written to {when}")


def snapshot_name(checkpoint: Found | Checkpoint) -> str:
    """Return the directory name of this checkpoint's snapshot, one for each fingerprint."""
    readable = _UNSAFE.sub("-", checkpoint.name).lstrip(".")[-_NAME_LENGTH_AT_MOST:] or "checkpoint"
    return f"{readable.lstrip('.') or 'checkpoint'}@{checkpoint.fingerprint[:16]}"


def snapshot_path(target_dir: Path, seen: Found | Checkpoint) -> Path:
    """Return where to load a checkpoint from whose snapshot is in this place."""
    return _entrance(target_dir / snapshot_name(seen), seen)


def find_moved(target_dir: Path, seen: Checkpoint) -> Path | None:
    """Return where the snapshot of a checkpoint is now, if it was moved, or copied with times, into this place."""
    base, path = target_dir / snapshot_name(seen), snapshot_path(target_dir, seen)
    if seen.path == str(path) or not base.is_dir():
        return None
    if not is_unchanged(path, seen):
        # On another file system its files have other inodes.
        with suppress(OSError, CheckpointError):
            there = replace(seen, fingerprint=listing(base, seen.paths).fingerprint)
            if seen.identity == f"{seen.study}:{identity(base, there)}":
                (base / SEAL).write_text(f"{there.fingerprint}\n{seen.fingerprint}\n", "ascii")
    return path if is_unchanged(path, seen) else None


def take(root: Path, checkpoint: Found, target_dir: Path, mode: Mode) -> Path:
    """Make a snapshot of a checkpoint; return its single path, or the directory of several.

    A crash leaves only a `.tmp-*` directory. An existing snapshot is returned. It raises CheckpointGone or
    CheckpointChanged if the checkpoint has changed since the scan, ConfigurationError if files cannot be linked
    there, and CheckpointStorageFailed if linking or copying fails; both name the alternatives.
    """
    if mode == "none":
        _look_again(root, checkpoint)
        return _entrance(root, checkpoint)
    final = target_dir / snapshot_name(checkpoint)
    if final.is_dir() and is_unchanged(_entrance(final, checkpoint), checkpoint):
        return _entrance(final, checkpoint)
    listed = _look_again(root, checkpoint)
    staged = target_dir / f".tmp-{final.name}.{uuid.uuid4().hex}"
    try:
        with storage_errors("make a snapshot in", target_dir):
            staged.mkdir(parents=True)
            failpoint("snapshot.before_link")
            _fill(root, checkpoint, listed, staged, mode)
            failpoint("snapshot.after_link")
            if mode == "link":
                # The links are the files themselves, so check what will be read.
                _look_again(staged, checkpoint, "while it was linked to; scan again")
            else:
                _look_again(root, checkpoint)
                copies = listing(staged, checkpoint.paths).fingerprint
                (staged / SEAL).write_text(f"{copies}\n{checkpoint.fingerprint}\n", "ascii")
            failpoint("snapshot.before_rename")
            _rename(staged, final, checkpoint)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    failpoint("snapshot.after_rename")
    return _entrance(final, checkpoint)


def is_unchanged(path: Path, checkpoint: Found | Checkpoint) -> bool:
    """Return whether a snapshot is still identical to the scanned checkpoint."""
    base = path if len(checkpoint.paths) != 1 else path.parents[checkpoint.paths[0].count("/")]
    try:
        listed = listing(base, checkpoint.paths)
    except FileNotFoundError:
        return False
    wanted = checkpoint.fingerprint
    if base.name == snapshot_name(checkpoint):
        with suppress(OSError, UnicodeDecodeError, IndexError):
            wanted = (base / SEAL).read_text("ascii").split()[0]
    return not listed.problems and listed.fingerprint == wanted


def whole(target_dir: Path) -> list[Path]:
    """Return the snapshots that were finished."""
    with suppress(OSError):
        return [item for item in target_dir.iterdir() if is_snapshot(item.name)]
    return []


def original(base: Path, copied: Found) -> str:
    """Return the original fingerprint of a checkpoint in a snapshot."""
    with suppress(OSError, UnicodeDecodeError, ValueError):
        copies, of = (base / SEAL).read_text("ascii").split()
        return of if copies == copied.fingerprint else copied.fingerprint
    return copied.fingerprint


def is_snapshot(name: str) -> bool:
    """Return whether a directory of that name may be a snapshot."""
    return _SNAPSHOT.fullmatch(name) is not None


def clean(target_dir: Path, keep: set[str]) -> tuple[str, ...]:
    """Remove snapshots that are not in `keep`, and unfinished ones that are not, or that also exist whole."""
    removed = []
    with storage_errors("remove snapshots from", target_dir), suppress(FileNotFoundError):
        names = sorted(item.name for item in target_dir.iterdir())
        for name in names:
            unfinished = name.startswith(".tmp-")
            of = name.removeprefix(".tmp-").rpartition(".")[0] if unfinished else name
            needed = of in keep and not (unfinished and of in names)
            if is_snapshot(of) and not needed:
                shutil.rmtree(target_dir / name)
                removed.append(name)
    return tuple(removed)


def _entrance(base: Path, checkpoint: Found | Checkpoint) -> Path:
    return base / checkpoint.paths[0] if len(checkpoint.paths) == 1 else base


def _fill(root: Path, checkpoint: Found, listed: Listing, staged: Path, mode: Mode) -> None:
    for file in listed.files:
        source, target = root / file.relative, staged / file.relative
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if mode == "link":
                # Linux links to a symbolic link itself, not to its target.
                os.link(os.path.realpath(source), target)
            else:
                shutil.copy2(source, target)
        except FileNotFoundError as error:
            if source.exists():
                raise  # our own draft is gone
            where = f"checkpoint {escape_name(checkpoint.name)} in {root}"
            raise CheckpointGone(
                f"{where} was deleted while its snapshot was made: {escape_name(file.relative)} is gone"
            ) from error
        except OSError as error:
            if mode != "link" or error.errno not in _NO_LINKS:
                raise
            why = f"{error.strerror or error}; hard links need one file system"
            raise ConfigurationError(_no_links(escape_name(str(source)), staged.parent, why)) from error


def check_links(root: Path, target_dir: Path) -> None:
    """Verify that files of a directory can be hard-linked into another one; neither needs to exist yet.

    Raises:
        ConfigurationError: they are on different file systems.
    """
    source, there = (next(path for path in (at, *at.parents) if path.exists()) for at in (root, target_dir))
    if source.stat().st_dev != there.stat().st_dev:
        raise ConfigurationError(_no_links(escape_name(str(root)), target_dir, "it is on another file system"))


def _no_links(source: str, target_dir: Path, why: str) -> str:
    return (
        f"{source} cannot be hard-linked into {target_dir}: {why}. Without a snapshot, a checkpoint is lost if "
        "training deletes it before its evaluation. Name a directory on its file system (--snapshots link=DIR, in "
        "Python snapshot_dir=), let checkpoints be copied (--snapshots copy), or evaluate the originals "
        "(--snapshots none)"
    )


def _rename(staged: Path, final: Path, checkpoint: Found) -> None:
    try:
        staged.rename(final)
    except OSError as error:
        if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
            raise
        if not is_unchanged(_entrance(final, checkpoint), checkpoint):
            of = f"checkpoint {escape_name(checkpoint.name)}"
            raise CheckpointChanged(f"an older snapshot {final} of {of} was modified through its links") from error
        shutil.rmtree(staged, ignore_errors=True)


@final
class Copies:
    """Copies of the checkpoints of a prefix on this machine, shared by its processes and bounded by `Cache`.

    CheckpointGone and CheckpointChanged say that a checkpoint was deleted, or written to, before it was copied.
    """

    def __init__(self, seen: Checkpoint, root: Path | None = None) -> None:
        url = seen.path.removesuffix(f"/{seen.paths[0]}")
        root = root or settings.cache() or settings.home().absolute() / "cache"
        self._remote = Remote(url, patience_s=PATIENCE_S)
        self._cache = Cache(root, f"watched-{_sha256(url)[:12]}")
        self._held = ""

    def path(self, seen: Checkpoint) -> Path:
        """Return the copy of a checkpoint, which stays until another one is read."""
        name = seen.fingerprint
        if name != self._held:
            self._cache.release(self._held)
            self._cache.hold(name)
            self._held = name
        try:
            return _entrance(self._use(name) or self._download(seen, name), seen)
        except CheckpointsAbsent as error:
            # One attempt at an eval task fails; the run continues.
            raise CheckpointStorageFailed(str(error)) from error

    def check(self, seen: Checkpoint, *, again: bool = False) -> None:
        """Verify that the copy is unchanged, even if the original changed."""
        if seen.fingerprint == self._held:
            self._cache.local.use(self._held, again=again)

    def _use(self, name: str) -> Path | None:
        with suppress(CheckpointError):
            return self._cache.local.use(name)
        return None

    def _download(self, seen: Checkpoint, name: str) -> Path:
        local = self._cache.local
        with self._cache.downloading(name):
            if (path := self._use(name)) is not None:
                return path  # another process was faster
            files = _look_again(self._remote, seen, "before its evaluation").files
            local.delete(name)
            staged = local.stage(name)

            def get(file: File) -> None:
                target = staged / file.relative
                target.parent.mkdir(parents=True, exist_ok=True)
                self._remote.objects.get(file.relative, target)
                if target.stat().st_size != file.size_bytes:
                    raise CheckpointChanged(f"{seen.path} was written to while it was downloaded")

            with storage_errors("download into", staged):
                try:
                    run_each(get, files)
                except FileNotFoundError as error:
                    raise CheckpointGone(f"{seen.path} was deleted while it was downloaded: {error}") from error
            _look_again(self._remote, seen, "while it was downloaded")
            local.commit(name, step=seen.step, now=seen.written_at)
        self._cache.evict()
        return local.path(name)


@final
class DirectorySources:
    """Where workers read the checkpoints of a watched directory: snapshots, or else the originals.

    Of objects it has copies. CheckpointGone means that the checkpoint was deleted since, CheckpointChanged that it
    was written to.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._given: dict[int, Path] = {}
        self._copies: Copies | None = None

    def path(self, seen: Checkpoint) -> Path:
        """Return the path of a checkpoint: its snapshot, or else the original if that is unchanged."""
        if is_url(seen.path):
            self._copies = self._copies or Copies(seen)
            return self._copies.path(seen)
        path = Path(seen.path)
        if not (seen.snapshot and is_unchanged(path, seen)):
            _look_again(self._root, seen, "before its evaluation")
            path = _entrance(self._root, seen)
        self._given[seen.id] = path
        return path

    def check(self, seen: Checkpoint, *, again: bool = False) -> None:
        """Verify that the checkpoint did not change while it was read."""
        if self._copies is not None:
            self._copies.check(seen, again=again)
            return
        path = Path(seen.path)
        if not seen.snapshot or self._given.get(seen.id) != path:
            _look_again(self._root, seen, "during evaluation")
        elif not is_unchanged(path, seen):
            name = escape_name(seen.name)
            if not path.exists():
                raise CheckpointGone(f"the snapshot of checkpoint {name} was deleted during evaluation")
            why = "its files were overwritten in place, and links change with them; watch with --snapshots copy"
            raise CheckpointChanged(f"checkpoint {name} was changed during evaluation: {why}")


@final
class BestLinks:
    """Links `FOLDER/SUITE` to the best checkpoints; if they cannot be made, it warns once."""

    def __init__(self, folder: Path, note: Callable[[str, str], None]) -> None:
        self._folder = folder
        self._note = note
        self._failed = False

    def lead_to(self, best: Mapping[str, Path]) -> None:
        """Update the link of each suite atomically, so that readers always find one."""
        try:
            for name, target in best.items():
                link = self._folder / name
                if link.is_symlink() and os.readlink(link) == str(target):  # noqa: PTH115 -- compared as text
                    continue
                self._folder.mkdir(parents=True, exist_ok=True)
                draft = self._folder / f".{name}.{os.getpid()}"
                draft.unlink(missing_ok=True)
                draft.symlink_to(target)
                draft.replace(link)
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._note("best", f"links to the best checkpoints cannot be made in {self._folder}: {error}")
