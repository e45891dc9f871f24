"""A prefix of an object store, with what watchers and formats need of a `Path`."""

import io
import sys
from collections.abc import Iterator
from copy import copy
from functools import lru_cache, partial
from typing import IO, Any, Literal, Self, final

from phyla.checkpoints.objects import Objects
from phyla.watcher.listing import TEMPORARY, File, Listing

BLOCK_BYTES, BLOCKS = 2**17, 256
"""In what formats read objects, and how many are remembered: what waits for more objects is not read each time."""


def is_url(where: str) -> bool:
    """Return whether text is a URL; file paths never have two slashes in a row."""
    return "://" in where


@final
class Remote:
    """A URL with objects of another writer, or a path below it, as `entries` listed it last.

    Errors are those of `Objects`. Content is cached by the ETag of its object.
    """

    def __init__(self, url: str, *, patience_s: float = 0.0) -> None:
        self.url = url
        self.objects = Objects(url, writes=False, patience_s=patience_s)
        self.relative = self.name = ""
        self.files: dict[str, File] = {}
        self.folders: dict[str, list[File]] = {}
        self.block = lru_cache(BLOCKS)(partial(_block, self.objects))
        self._thinned: set[str] = set()

    def __str__(self) -> str:
        return f"{self.url}/{self.relative}".rstrip("/")

    def __truediv__(self, relative: str) -> Self:
        path = copy(self)
        path.relative = f"{self.relative}/{relative}".lstrip("/")
        path.name = path.relative.rpartition("/")[2]
        return path

    def exists(self) -> bool:
        return self.relative in self.files

    def is_dir(self) -> bool:
        """Return whether it is the URL itself, or directly below that with objects in it."""
        return not self.relative or self.relative in self.folders

    def iterdir(self) -> Iterator[Self]:
        return (self / name for name in {key.partition("/")[0] for key in self.files})

    def open(self, mode: Literal["rb"]) -> IO[bytes]:
        """Open an object, which has no number that `os.fstat` would take."""
        if not self.exists():
            raise FileNotFoundError(f"{self} is gone")
        return io.BufferedReader(_Blocks(self, self.files[self.relative]))

    def read_bytes(self) -> bytes:
        return self.open("rb").read()

    def entries(self) -> tuple[dict[str, File], dict[str, Listing | None]]:
        """List all objects; return those directly below the URL, and listings of what looks like directories."""
        files = _files(self.objects.infos())
        gone = {key.partition("/")[0] for key in self.files.keys() - files.keys()}
        self.files, self.folders = files, {}
        for key, file in files.items():
            if "/" in key:
                self.folders.setdefault(key.partition("/")[0], []).append(file)
        self._thinned = (self._thinned | gone) & self.folders.keys()
        top = {key: file for key, file in files.items() if not ("/" in key or TEMPORARY.search(key))}
        folders = {name: inside for name, inside in self.folders.items() if not TEMPORARY.search(name)}
        return top, {name: _listing(inside, thinned=name in self._thinned) for name, inside in folders.items()}

    def look(self, path: str) -> Listing:
        """List one entry again, or raise FileNotFoundError."""
        infos = {} if path in self.files else self.objects.infos(path)
        return _listing([*_files(infos or {path: self.objects.info(path)}).values()])


def _block(objects: Objects, file: File, number: int) -> bytes:
    start = number * BLOCK_BYTES
    return objects.read(file.relative, start, min(start + BLOCK_BYTES, file.size_bytes))


def _files(infos: dict[str, dict[str, Any]]) -> dict[str, File]:
    """Return objects as files, without those that cannot be one, such as `folder/` or `../file`."""
    return {
        key: File(key, int(info["size"]), int(info["LastModified"].timestamp()) * 10**9, str(info["ETag"]))
        for key, info in sorted(infos.items())
        if {"", ".", ".."}.isdisjoint(key.split("/"))
    }


def _listing(files: list[File], *, thinned: bool = False) -> Listing:
    """Return the listing below a path; `thinned` if objects have gone from there.

    Times of objects have steps of a second, and directories have none. So one counts as changed until the end of
    the second of its newest object but one: only later objects are sure to have been written last.
    """
    newest = sorted(file.modified_ns for file in files)[-2:] or [0]
    return Listing(tuple(files), sys.maxsize if thinned else newest[0] + 10**9 - 1)


@final
class _Blocks(io.RawIOBase):
    def __init__(self, remote: Remote, file: File) -> None:
        self._block, self._file, self._at = remote.block, file, 0

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, (0, self._at, self._file.size_bytes)[whence] + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        number, start = divmod(self._at, BLOCK_BYTES)
        at_end = self._at >= self._file.size_bytes
        data = b"" if at_end else self._block(self._file, number)[start : start + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
