"""Keeps a foreign checkpoint readable while its writer overwrites and deletes.

`target_dir/SNAPSHOT` is a whole snapshot, `target_dir/.tmp-SNAPSHOT.NUMBER` one that was never finished. A
snapshot of links costs no space and no time, and survives that the writer deletes or replaces files; a
file that is overwritten in place changes in the snapshot too, which `unchanged` tells.
"""

import errno
import itertools
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from phyla.errors import CheckpointChanged, CheckpointGone, CheckpointStorageFailed, ConfigurationError
from phyla.failpoints import failpoint
from phyla.records import shown
from phyla.watcher.found import Found
from phyla.watcher.identity import changed, look_again
from phyla.watcher.listing import Listing, listing

Mode = Literal["link", "copy", "none"]
SEAL = ".phyla-snapshot"
"""In a snapshot of copies: the fingerprint that the copies had when it was made."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")
_SNAPSHOT = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*@[0-9a-f]{16}")
_NAME_LENGTH_AT_MOST = 120
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


def snapshot_name(found: Found) -> str:
    """Return the name of the directory that a snapshot of this checkpoint gets; one for each fingerprint."""
    readable = _UNSAFE.sub("-", found.name).lstrip(".")[-_NAME_LENGTH_AT_MOST:] or "checkpoint"
    return f"{readable.lstrip('.') or 'checkpoint'}@{found.fingerprint[:16]}"


def take(root: Path, found: Found, target_dir: Path, mode: Mode) -> Path:
    """Make a snapshot of a checkpoint, and return where to load it from.

    A crash leaves nothing but a `.tmp-*` directory. Taking what was taken before returns it again.

    Args:
        root: the directory that was scanned.
        found: the checkpoint.
        target_dir: where snapshots are; on the file system of `root` for links. Made where missing.
        mode: hard links, copies, or nothing: then the original is returned.

    Returns:
        The file or directory that `found.paths` names, or the directory that holds all of them.

    Raises:
        CheckpointGone: it, or a file of it, was deleted before it was taken.
        CheckpointChanged: it was written to since it was found.
        CheckpointStorageFailed: it cannot be linked or copied to there; the message names the alternatives.
        ConfigurationError: there is no such mode.
    """
    if mode not in get_args(Mode):
        raise ConfigurationError(f"snapshot mode {mode!r} is unknown; choose one of: {', '.join(get_args(Mode))}")
    if mode == "none":
        look_again(root, found)
        return _entrance(root, found)
    final = target_dir / snapshot_name(found)
    if final.is_dir() and unchanged(_entrance(final, found), found):
        return _entrance(final, found)
    listed = look_again(root, found)
    staged = _stage(target_dir, final.name)
    try:
        failpoint("snapshot.before_link")
        _fill(root, found, listed, staged, mode)
        failpoint("snapshot.after_link")
        if mode == "link":
            # The links are the files themselves: what they are is what will be read.
            _check_links(root, found, staged)
        else:
            look_again(root, found)
            _seal(staged, listing(staged, found.paths))
        failpoint("snapshot.before_rename")
        _rename(staged, final, found)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    failpoint("snapshot.after_rename")
    return _entrance(final, found)


def unchanged(path: Path, found: Found) -> bool:
    """Return whether what `take` returned still holds exactly what was found.

    To be asked after an evaluation: False means that its result belongs to no known content.

    Args:
        path: what `take` returned, in whatever mode.
        found: what it was taken of.
    """
    base = path if len(found.paths) != 1 else path.parents[found.paths[0].count("/")]
    try:
        listed = listing(base, found.paths)
    except FileNotFoundError:
        return False
    wanted = found.fingerprint
    if base.name == snapshot_name(found):
        with suppress(OSError, UnicodeDecodeError):
            wanted = (base / SEAL).read_text("ascii")
    return not listed.problems and listed.fingerprint == wanted


def clean(target_dir: Path, keep: set[str]) -> tuple[str, ...]:
    """Remove snapshots that are not kept, and what crashes left of unfinished ones.

    Nothing else in the directory is touched. An unfinished one goes when it is not kept, or is there whole too.

    Args:
        target_dir: where snapshots are; one that does not exist holds none.
        keep: names as `snapshot_name` gives them: of snapshots in use, and of those that others are
            taking at this moment.

    Returns:
        The names of the directories that were removed, sorted.

    Raises:
        CheckpointStorageFailed: one cannot be removed.
    """
    removed = []
    try:
        names = sorted(item.name for item in target_dir.iterdir())
        for name in names:
            unfinished = name.startswith(".tmp-")
            of = name.removeprefix(".tmp-").rpartition(".")[0] if unfinished else name
            kept = of in keep and not (unfinished and of in names)
            if _SNAPSHOT.fullmatch(of) and not kept:
                shutil.rmtree(target_dir / name)
                removed.append(name)
    except FileNotFoundError:
        return tuple(removed)
    except OSError as error:
        raise CheckpointStorageFailed(f"snapshots in {target_dir} cannot be removed: {error}") from error
    return tuple(removed)


def _entrance(base: Path, found: Found) -> Path:
    return base / found.paths[0] if len(found.paths) == 1 else base


def _stage(target_dir: Path, name: str) -> Path:
    try:
        target_dir.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(os.getpid()):
            staged = target_dir / f".tmp-{name}.{number}"
            with suppress(FileExistsError):
                staged.mkdir()
                return staged
    except OSError as error:
        raise CheckpointStorageFailed(
            f"no snapshot can be made in {target_dir}: {error.strerror or error}; name another directory, "
            "or use mode 'none' to evaluate the original files"
        ) from error
    raise AssertionError("unreachable")


def _fill(root: Path, found: Found, listed: Listing, staged: Path, mode: Mode) -> None:
    for file in listed.files:
        source, target = root / file.relative, staged / file.relative
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if mode == "link":
                # Linux links to a link, not to what it leads to.
                os.link(os.path.realpath(source), target)
            else:
                shutil.copy2(source, target)
        except FileNotFoundError as error:
            if not staged.is_dir():
                raise CheckpointStorageFailed(
                    f"the unfinished snapshot {staged} was removed while it was made: give `clean` the names of "
                    "snapshots that are being taken"
                ) from error
            raise CheckpointGone(
                f"checkpoint {shown(found.name)} in {root} was deleted while it was taken: "
                f"{shown(file.relative)} is gone"
            ) from error
        except OSError as error:
            if mode == "link" and error.errno in _NO_LINKS:
                raise CheckpointStorageFailed(
                    f"{source} cannot be linked into {staged.parent}: {error.strerror}; use a directory on the "
                    "same file system, with files that you own; or mode 'copy', which takes space; or mode "
                    "'none', which evaluates the original files and notices afterwards if they changed"
                ) from error
            raise CheckpointStorageFailed(
                f"{source} cannot be taken into {staged.parent}: {error.strerror or error}; make room there, "
                "name another directory, or use mode 'none' to evaluate the original files"
            ) from error


def _check_links(root: Path, found: Found, staged: Path) -> None:
    linked = listing(staged, found.paths)
    if linked.fingerprint != found.fingerprint:
        look_again(root, found)
        raise changed(root, found, linked)


def _seal(staged: Path, copies: Listing) -> None:
    (staged / SEAL).write_text(copies.fingerprint, "ascii")


def _rename(staged: Path, final: Path, found: Found) -> None:
    try:
        staged.rename(final)
    except OSError as error:
        if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
            raise CheckpointStorageFailed(f"{staged} cannot be renamed to {final.name}: {error}") from error
        if not unchanged(_entrance(final, found), found):
            raise CheckpointChanged(
                f"an older snapshot {final} of checkpoint {shown(found.name)} was written to through its links; "
                "clean it away once nothing uses it, and scan again"
            ) from error
        shutil.rmtree(staged, ignore_errors=True)
