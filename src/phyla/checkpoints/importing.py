"""Import of checkpoints from elsewhere into a repository."""

import errno
import os
import shutil
from pathlib import Path

from phyla.checkpoints.disk import storage_errors
from phyla.checkpoints.manifest import CHANGED_BY, MANIFEST_NAME, Manifest, scan
from phyla.checkpoints.remote import Checkpoints
from phyla.errors import CheckpointChanged, CheckpointCorrupt, CheckpointGone, CheckpointMissing
from phyla.system.failpoints import failpoint

_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def look_at_source(source: Path) -> Manifest | None:
    """Return the manifest of a source that is a checkpoint of phyla, else None; read-only."""
    with storage_errors("read", source):
        if not source.exists():
            raise CheckpointMissing(f"the checkpoint to start from, {source}, does not exist; correct the path")
        if not _files(source):
            raise CheckpointMissing(f"the checkpoint to start from, {source}, has no files; correct the path")
        path = source / MANIFEST_NAME
        if not path.is_file():
            return None
        try:
            return Manifest.from_bytes(path.read_bytes())
        except CheckpointCorrupt as error:
            raise CheckpointCorrupt(f"{source}: {error}") from error


def import_checkpoint(
    repository: Checkpoints,
    source: Path,
    name: str,
    *,
    step: int | None,
    now: float,
    digest: str | None = None,
) -> Manifest:
    """Commit a copy of a source under a new name; the source stays unchanged.

    Files of a checkpoint of phyla, which are immutable, are linked where the file system can; all others are
    copied, because their owner may write to them, with links in them followed. Without a `step`, that of a
    checkpoint of phyla is taken, and 0 for others. CheckpointMissing, CheckpointChanged, CheckpointGone and
    CheckpointCorrupt report errors of the source; the content must have the `digest`.
    """
    manifest = look_at_source(source)
    staged = repository.stage(name)
    failpoint("import.before_copy")
    with storage_errors(f"import {source} into", staged):
        try:
            if manifest is not None:
                _take_over(source, manifest, staged)
            else:
                _copy(source, staged)
        except FileNotFoundError as error:
            raise CheckpointGone(
                f"{source} was removed while it was imported: {error.filename} is gone"
            ) from error
    failpoint("import.after_copy")
    if step is None:
        step = 0 if manifest is None else manifest.step
    committed = repository.commit(name, step=step, now=now)
    wrong = None
    if manifest is not None and committed.digest != manifest.digest:
        wrong = (
            f"is not what was committed: its content has digest {committed.digest}, its manifest says "
            f"{manifest.digest}; {CHANGED_BY}"
        )
    elif digest not in (None, committed.digest):
        wrong = f"is not the requested checkpoint: its content has digest {committed.digest}, not {digest}"
    if wrong is not None:
        repository.delete(name)
        raise CheckpointCorrupt(f"{source} {wrong}")
    failpoint("import.after_checkpoint")
    return committed


def _take_over(source: Path, manifest: Manifest, staged: Path) -> None:
    listed = {file.path for file in manifest.files}
    for entry in scan(source).entries:
        if entry.relative not in listed:
            advice = f"remove that file, or remove {source / MANIFEST_NAME} to import all files as they are"
            raise CheckpointCorrupt(
                f"{source} is not what was committed: {entry.path} is not in its manifest; {advice}"
            )
    for file in manifest.files:
        origin, target = source / file.path, staged / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_symlink():
            target.symlink_to(origin.readlink())
        elif origin.stat().st_mode & 0o222:
            _copy_file(origin, target)
        else:
            try:
                target.hardlink_to(origin)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _copy_file(origin, target)


def _copy(source: Path, staged: Path) -> None:
    base = source.parent if source.is_file() else source
    before = _files(source)
    for relative in before:
        target = staged / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(base / relative, target)
    if _files(source) != before:
        raise CheckpointChanged(f"{source} was written to while it was imported; wait until it is complete")


def _copy_file(origin: Path, target: Path) -> None:
    """Copy content and time: training may load the newest file."""
    shutil.copyfile(origin, target)
    status = origin.stat()
    os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _files(source: Path) -> dict[str, tuple[int, int, int]]:
    """Return size, time and inode of the files below a path, with links followed."""

    def fail(error: OSError) -> None:
        raise error

    files = {}
    paths, base = [source], source.parent
    if not source.is_file():
        walk = os.walk(source, followlinks=True, onerror=fail)
        paths, base = [Path(folder, name) for folder, _, names in walk for name in names], source
    for path in sorted(paths):
        relative = path.relative_to(base).as_posix()
        if relative != MANIFEST_NAME:
            status = path.stat()
            files[relative] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return files
