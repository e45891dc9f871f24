"""What happens to the files of a committed checkpoint on a disk that fails, or under careless hands."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from phyla.checkpoints import MANIFEST_NAME

STATE = Path("optimizer/state")


def overwrite(path: Path, content: bytes, *, silent: bool = True) -> None:
    """Change a file, and, if silent, nothing that a look at the directory would show."""
    status = path.stat()
    path.chmod(0o644)
    path.write_bytes(content)
    if silent:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def flip(path: Path, name: Path = STATE, at: int = 7, *, silent: bool = True) -> None:
    """Flip one bit."""
    content = bytearray((path / name).read_bytes())
    if content:
        content[at % len(content)] ^= 1 << at % 8
        overwrite(path / name, bytes(content), silent=silent)


def cut(path: Path, name: Path = STATE, at: int = -1) -> None:
    """Cut off the end of a file."""
    content = (path / name).read_bytes()
    if content:
        overwrite(path / name, content[: at % len(content)])


def delete(path: Path, name: Path = STATE, at: int = 0) -> None:
    """Remove a file."""
    (path / name).unlink()


def add(path: Path) -> None:
    """Put another file beside the others."""
    (path / "optimizer" / "added").write_bytes(b"")


def without_manifest(path: Path) -> None:
    """Remove the manifest."""
    (path / MANIFEST_NAME).unlink()


def another_manifest(path: Path) -> None:
    """Change the manifest."""
    file = path / MANIFEST_NAME
    overwrite(file, file.read_bytes().replace(b'"step"', b'"Step"'))


def swap(path: Path) -> None:
    """Put another checkpoint of the study, which is sound in itself, in its place."""
    other = next(near for near in sorted(path.parent.iterdir()) if near.name[0] != "." and near != path)
    shutil.rmtree(path)
    shutil.copytree(other, path)


HARM: Mapping[str, Callable[..., None]] = {"flipped bit": flip, "another size": cut, "deleted file": delete}
"""What may happen to any file of a checkpoint: to that of a name, perhaps at a place in it."""

WAYS: Mapping[str, Callable[[Path], None]] = {
    **HARM,
    "added file": add,
    "deleted manifest": without_manifest,
    "changed manifest": another_manifest,
    "swapped directory": swap,
}
