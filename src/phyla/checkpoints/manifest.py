"""The content of a checkpoint: allowed entries, digests of files, and the manifest.

Definition of a digest (manifest format 1), in hexadecimal:

- of a file: the BLAKE3 of its content, as `b3sum` prints it;
- of a symbolic link: the BLAKE3 of `symlink`, a NUL byte and the name of its target.

BLAKE3 takes a third of the processor time of SHA-256, which a commit has to hide behind its flush.
"""

import os
import posixpath
import stat
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from json import dumps, loads  # training may replace them where they are
from pathlib import Path
from typing import Self, final

from blake3 import blake3

from phyla.errors import CheckpointCorrupt, CheckpointError

MANIFEST_NAME = ".phyla-manifest.json"
FORMAT = 1
"""Of the manifest, and of the definition of digests."""
INLINE_BYTES = 2**20
"""Below this size in all, starting threads costs more than it saves."""
BUFFER_BYTES = 2**18
"""Small enough to stay in a core's own cache between reading and hashing."""
THREADS_AT_MOST = 4
CHANGED_BY = (
    "training may have written into the checkpoint that it loads ({source}, trial.source.path), another program "
    "changed it, or the disk is failing"
)
"""Why files may differ from the manifest of their checkpoint."""


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """A regular file or a symbolic link of a checkpoint, at the time of the scan.

    `relative` has `/` between its parts; the size of a link is the length of its target's name.
    """

    relative: str
    path: Path
    size_bytes: int
    modified_ns: int
    is_link: bool


@final
@dataclass(frozen=True, slots=True)
class Tree:
    """The files, links and inner directories of a checkpoint, without its manifest; deepest directories first."""

    entries: tuple[Entry, ...]
    folders: tuple[Path, ...]


def scan(root: Path) -> Tree:
    """Scan a checkpoint directory; reject sockets and the like, and links that lead outside or nowhere."""
    entries: list[Entry] = []
    folders: list[Path] = []

    def descend(folder: str, prefix: str) -> None:
        with os.scandir(folder) as items:
            for item in sorted(items, key=lambda item: item.name):
                relative = prefix + item.name
                if item.is_dir(follow_symlinks=False):
                    descend(item.path, f"{relative}/")
                    folders.append(Path(item.path))
                elif relative != MANIFEST_NAME:
                    entries.append(_entry(root, relative, item))

    descend(str(root), "")
    return Tree(tuple(entries), tuple(folders))


def _entry(root: Path, relative: str, item: os.DirEntry[str]) -> Entry:
    path = Path(item.path)
    if item.is_symlink():
        _refuse_leaving(root, relative, path)
    elif not item.is_file(follow_symlinks=False):
        raise CheckpointError(f"{path} is a socket, a pipe or a device: remove it before training returns")
    status = item.stat(follow_symlinks=False)
    return Entry(relative, path, status.st_size, status.st_mtime_ns, stat.S_ISLNK(status.st_mode))


def _refuse_leaving(root: Path, relative: str, path: Path) -> None:
    # Both looks are needed: the text must survive the move to the final name, and a text that
    # stays inside may still lead out by way of another link.
    target = path.readlink().as_posix()
    written = posixpath.normpath(posixpath.join(posixpath.dirname(relative), target))
    fault = None
    if posixpath.isabs(target):
        fault = "an absolute path, which is wrong once the checkpoint has its final name"
    elif written.split("/", 1)[0] == "..":
        fault = "which is not inside the checkpoint"
    else:
        try:
            if not path.resolve(strict=True).is_relative_to(root.resolve()):
                fault = "which is not inside the checkpoint"
        except (FileNotFoundError, RuntimeError):
            fault = "which does not exist"
    if fault is not None:
        advice = "save a copy of the file, or link by a relative path to a file next to it"
        raise CheckpointError(f"{path} is a link to {target}, {fault}: {advice}")


def is_small(entries: Sequence[Entry]) -> bool:
    """Return whether starting threads to read them would cost more than it saves."""
    return sum(entry.size_bytes for entry in entries) <= INLINE_BYTES


def digests(entries: Sequence[Entry]) -> list[str]:
    """Return the digest of every entry, in order; of large content in several threads."""
    if is_small(entries):
        return [_digest(entry) for entry in entries]
    # Reading and hashing release the interpreter.
    with ThreadPoolExecutor(min(THREADS_AT_MOST, len(entries)), "phyla-digest") as pool:
        return list(pool.map(_digest, entries))


def link_digest(target: bytes) -> str:
    """Return the digest of a symbolic link, by the name of its target."""
    return blake3(b"symlink\0" + target).hexdigest()


def _digest(entry: Entry) -> str:
    if entry.is_link:
        return link_digest(os.fsencode(entry.path.readlink()))
    whole = blake3()
    buffer = memoryview(bytearray(min(BUFFER_BYTES, max(entry.size_bytes, 1))))
    # Not by mapping it: truncating a mapped file would kill the process.
    with open(entry.path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            whole.update(buffer[:count])
    return whole.hexdigest()


@final
@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file, or one symbolic link, of a checkpoint, by its path in it; `size_bytes` is as in `Entry`.

    Copies of a file get its time, by which programs find the newest; a link has none.
    """

    path: str
    size_bytes: int
    digest: str
    modified_ns: int | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The files of a checkpoint, in the order of their paths, whose weights have the age `step`."""

    step: int
    created_at: float
    files: tuple[ManifestFile, ...]

    @classmethod
    def of(cls, files: Iterable[ManifestFile], *, step: int, created_at: float) -> Self:
        """Return the manifest of these files, in any order."""
        return cls(step=step, created_at=created_at, files=tuple(sorted(files, key=lambda file: file.path)))

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size_bytes for file in self.files)

    @cached_property
    def digest(self) -> str:
        r"""Identity of the content: equal for equal files, whatever their step and time.

        BLAKE3 over `path NUL size NUL digest LF` for every file in the order of the paths; the
        path in UTF-8 (bytes that are no UTF-8 as they are), the size in decimal.
        """
        whole = blake3()
        for file in self.files:
            line = f"{file.path}\0{file.size_bytes}\0{file.digest}\n"
            whole.update(line.encode("utf-8", "surrogateescape"))
        return whole.hexdigest()

    def compare(self, where: str, sizes: Mapping[str, int]) -> None:
        """Verify the sizes of all files against the manifest."""
        expected = {file.path: file.size_bytes for file in self.files}
        for path in sorted({*sizes, *expected}):
            outside = path.startswith("/") or ".." in path.split("/")
            if sizes.get(path) != expected.get(path) or outside:
                raise _make_changed_error(f"{where}/{path}", _bytes(sizes.get(path)), _bytes(expected.get(path)))

    def compare_content(self, where: str, entries: Sequence[Entry]) -> None:
        """Read all files, and verify their digests against the manifest."""
        expected = {file.path: file.digest for file in self.files}
        for entry, digest in zip(entries, digests(entries), strict=True):
            if digest != expected[entry.relative]:
                raise _make_changed_error(
                    f"{where}/{entry.relative}", f"digest {digest}", f"digest {expected[entry.relative]}"
                )

    def to_json(self) -> str:
        """Return the text of the manifest file: one line per file and a checksum of the text before it."""
        known = ({name: value for name, value in asdict(file).items() if value is not None} for file in self.files)
        lines = ",\n".join(map(dumps, known))
        head = dumps({"format": FORMAT, "step": self.step, "created_at": self.created_at, "digest": self.digest})
        text = f'{head[:-1]}, "files": [\n{lines}\n]'
        return f'{text}, "checksum": "{blake3(text.encode()).hexdigest()}"}}\n'

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a manifest file back; only exactly what `to_json` writes is accepted."""
        try:
            text = content.decode()
            raw = loads(text)
            written_format = raw["format"]
            manifest = cls(
                step=raw["step"],
                created_at=raw["created_at"],
                files=tuple(ManifestFile(**file) for file in raw["files"]),
            )
            intact = written_format != FORMAT or manifest.to_json() == text
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointCorrupt(f"{MANIFEST_NAME} cannot be read: {error}") from error
        if written_format != FORMAT:
            why = f"has format {written_format!r}, and this version of phyla reads {FORMAT}"
            raise CheckpointCorrupt(f"{MANIFEST_NAME} {why}: open it with the version that wrote it")
        if not intact:
            raise CheckpointCorrupt(f"{MANIFEST_NAME} differs from what was written: its checksum does not fit")
        return manifest


def _make_changed_error(where: str, actual: str, expected: str) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"{where} is not what was committed: found {actual}, the manifest says {expected}; {CHANGED_BY}"
    )


def _bytes(size: int | None) -> str:
    return "nothing" if size is None else f"{size} bytes"
