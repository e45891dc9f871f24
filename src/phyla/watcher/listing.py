"""Listings of a directory at one moment, while other processes write to it and delete from it."""

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

from phyla.errors import CheckpointStorageFailed
from phyla.records import escape_name

if TYPE_CHECKING:
    from phyla.watcher.remote import Remote

Place: TypeAlias = "Path | Remote"
"""A directory that is watched, or a path in it; a format needs `/`, `name`, `is_dir`, `open` and `read_bytes`."""
GONE = (FileNotFoundError, NotADirectoryError)
TEMPORARY = re.compile(
    r"\A(\.|tmp[-_.])"
    r"|\.orbax-checkpoint-tmp|\.tmp[.-]"
    r"|([-_]tmp|\.(tmp|temp|part|partial|incomplete|crdownload|lock|swp)|~)\Z",
    re.IGNORECASE,
)
"""Names of hidden entries, and of unfinished ones."""


@final
class File(NamedTuple):
    """A regular file, or what a link leads to; `relative` is its path below the root, with `/` in between."""

    relative: str
    size_bytes: int
    modified_ns: int
    inode: int | str  # of an object of a store its ETag

    @property
    def name(self) -> str:
        """Last part of its path."""
        return self.relative.rpartition("/")[2]


@final
@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one checkpoint, in the order of their paths.

    `folders_ns` is the newest change of the entries of any of its directories, 0 where it has none; `problems`
    name the parts that could not be read.
    """

    files: tuple[File, ...]
    folders_ns: int = 0
    problems: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 over `path NUL size NUL mtime_ns NUL inode LF` of each file; objects have time 0."""
        files = self.files
        if files and isinstance(files[0].inode, str):
            files = tuple([file._replace(modified_ns=0) for file in files])
        lines = "".join(["%s\0%d\0%d\0%s\n" % file for file in files])  # noqa: UP031 -- twice as fast
        return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def size_bytes(self) -> int:
        """Sum of its files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def modified_ns(self) -> int:
        """Newest change of its files; 0 where there are none."""
        return max((file.modified_ns for file in self.files), default=0)

    def folder(self) -> tuple[str, dict[str, File]]:
        """Return the directory that all files are in, and the files by their paths relative to it."""
        name = self.files[0].relative.partition("/")[0]
        return name, {file.relative[len(name) + 1 :]: file for file in self.files}


def listing(root: Place, paths: Iterable[str]) -> Listing:
    """List files and directories, with everything in them; a missing path raises FileNotFoundError.

    Files that vanish during the listing are left out. Links are followed, to each directory once, so circles end.
    """
    look = partial(_look, os.fspath(root)) if isinstance(root, Path) else root.look
    return _join_parts([look(path) for path in paths])


def _join_parts(parts: list[Listing]) -> Listing:
    if len(parts) == 1:
        return parts[0]
    return Listing(
        tuple(sorted(file for part in parts for file in part.files)),
        max((part.folders_ns for part in parts), default=0),
        tuple(problem for part in parts for problem in part.problems),
    )


def _look(root: str, path: str) -> Listing:
    full = f"{root}/{path}"
    try:
        status = os.stat(full)  # noqa: PTH116 -- a thousand times a scan
    except GONE:
        raise FileNotFoundError(f"{full} is gone") from None
    except OSError as error:
        return Listing((), problems=(_problem(full, error),))
    if stat.S_ISREG(status.st_mode):
        return Listing((_file(path, status),))
    files: list[File] = []
    problems: list[str] = []
    newest = status.st_mtime_ns
    entered = {(status.st_dev, status.st_ino)}

    def descend(folder: str, relative: str) -> None:
        nonlocal newest
        below = []
        try:
            items = list(os.scandir(folder))
        except OSError as error:
            if not isinstance(error, GONE):
                problems.append(_problem(folder, error))
            return
        for item in items:
            try:
                status = item.stat()
            except OSError as error:
                if not isinstance(error, GONE):
                    problems.append(_problem(item.path, error))
                continue
            if stat.S_ISREG(status.st_mode):
                files.append(_file(f"{relative}/{item.name}", status))
            elif stat.S_ISDIR(status.st_mode):
                newest = max(newest, status.st_mtime_ns)
                below.append((item.name, item.path, (status.st_dev, status.st_ino)))
        # In order, so that of two paths to a directory the same one is always taken.
        for name, inner, number in sorted(below):
            if number not in entered:
                entered.add(number)
                descend(inner, f"{relative}/{name}")

    if stat.S_ISDIR(status.st_mode):
        descend(full, path)
    return Listing(tuple(sorted(files)), newest, tuple(problems))


def _file(relative: str, status: os.stat_result) -> File:
    return File(relative, status.st_size, status.st_mtime_ns, status.st_ino)


def _problem(path: str, error: OSError) -> str:
    return f"{escape_name(path)} cannot be accessed: {error.strerror or error}"


@final
class Root:
    """The entries of a watched directory, listed once, and looked into when asked for; none if it does not exist.

    Hidden and temporary entries, sockets and the like, and links to another entry of the same directory (as
    `latest` often is) are left out; `links` has the target of each of these links, and when it was made. One that
    exists and cannot be listed raises CheckpointStorageFailed.
    """

    def __init__(self, path: Place) -> None:
        self.path = path
        self.files: dict[str, File] = {}
        self.folders: list[str] = []
        self.links: dict[str, tuple[str, int]] = {}
        self._listings: dict[str, Listing | None] = {}
        if not isinstance(path, Path):
            self.files, self._listings = path.entries()
            self.folders = [*self._listings]
            return
        try:
            with os.scandir(path) as scan:
                items = sorted(scan, key=lambda item: item.name)
        except FileNotFoundError:
            return
        except OSError as error:
            why = f"{error.strerror or error}; check its permissions and that its file system is there"
            raise CheckpointStorageFailed(f"the directory {path} cannot be listed: {why}") from error
        for item in items:
            # An entry that vanished, or is a link in a circle, holds nothing to evaluate.
            with suppress(OSError, RuntimeError):
                if TEMPORARY.search(item.name):
                    continue
                target = Path(item.path).resolve() if item.is_symlink() else None
                if target is not None and target.parent == path.resolve():
                    self.links[item.name] = (target.name, item.stat(follow_symlinks=False).st_mtime_ns)
                    continue
                if item.is_dir():
                    self.folders.append(item.name)
                elif item.is_file():
                    self.files[item.name] = _file(item.name, item.stat())

    def listing(self, paths: Iterable[str]) -> Listing | None:
        """Return the listing of entries of this directory; None if an entry is gone."""
        parts = []
        for path in paths:
            if path not in self._listings:
                self._listings[path] = None
                with suppress(FileNotFoundError):
                    known = self.files.get(path)
                    self._listings[path] = Listing((known,)) if known else listing(self.path, (path,))
            part = self._listings[path]
            if part is None:
                return None
            parts.append(part)
        return _join_parts(parts)

    def is_closed(self, folder: str) -> bool:
        """Return whether the system denies the listing of one of its directories."""
        content = self.listing((folder,))
        return content is not None and bool(content.problems) and not content.files

    def inside(self, folder: str) -> tuple[str, ...]:
        """Return the paths of the files below one of its directories, relative to that directory."""
        content = self.listing((folder,))
        return () if content is None else tuple([file.relative[len(folder) + 1 :] for file in content.files])

    def has(self, folder: str, endings: tuple[str, ...]) -> bool:
        """Return whether a file directly in one of its directories has one of these endings."""
        return any(path.endswith(endings) and "/" not in path for path in self.inside(folder))
