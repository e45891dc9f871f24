"""A disk that forgets: what a power cut leaves of the files that programs wrote, from their system calls.

The rules are those of POSIX, not of one file system:

- Content lasts once its file was flushed (fsync or fdatasync), a name once its directory was. Flushing a file
  does not keep its name, though ext4 and xfs would.
- A flush covers the calls that had returned when it began, and counts from when it returned.
- What was not flushed may be there or not, each call by itself, in any combination; of a write also only the
  first bytes.
- One thing is taken from journalling file systems: a rename between two directories happens as a whole, and
  flushing either directory keeps it.

Permissions are not followed. SQLite's `-shm` files, written through shared memory and made anew, are left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast


class Call(NamedTuple):
    """A system call that returned.

    Attributes:
        kind: o(pen), w(rite), z: size, f(lush), d: new directory, l(ink), u(nlink), r(ename), t: told.
        began: before which calls it began.
        ended: after which calls it returned.
        inode: of the file or directory; 0 where a path is enough.
        at: where it wrote, or the new size, or whether a file that was opened is cut off.
        path: absolute.
        target: of a rename or link.
        data: what it wrote.
    """

    kind: str
    began: int
    ended: int
    inode: int = 0
    at: int = 0
    path: str = ""
    target: str = ""
    data: bytes = b""


# --- files and directories, as they are and as they would be after a power cut


@dataclass(eq=False)
class Bytes:
    """Content was written."""

    ended: int
    at: int
    data: bytes


@dataclass(eq=False)
class Size:
    """A file was cut off or filled up."""

    ended: int
    size: int


@dataclass(eq=False)
class Names:
    """Names were given or (None) taken away, all at once."""

    ended: int
    entries: "Sequence[tuple[Folder, str, Node | None]]"


Change: TypeAlias = Bytes | Size | Names


@dataclass(eq=False)
class File:
    """Content: as it is, as it was flushed, and what lies between."""

    now: bytearray = field(default_factory=bytearray)
    lasting: bytearray = field(default_factory=bytearray)
    pending: list[Bytes | Size] = field(default_factory=list)

    def change(self, change: Bytes | Size) -> None:
        self.pending.append(change)
        _write(self.now, change)

    def flush(self, began: int) -> None:
        for change in self.pending:
            if change.ended < began:
                _write(self.lasting, change)
        self.pending = [change for change in self.pending if change.ended >= began]

    def left(self, keep: "Keep") -> bytes:
        content = self.lasting
        for change in self.pending:
            share = keep(change)
            if share:
                content = content[:] if content is self.lasting else content
                _write(content, change, share)
        return bytes(content)


@dataclass(eq=False)
class Folder:
    """Names: as they are, as they were flushed, and what lies between."""

    now: "dict[str, Node]" = field(default_factory=dict)
    lasting: "dict[str, Node]" = field(default_factory=dict)
    pending: list[Names] = field(default_factory=list)

    def flush(self, began: int) -> None:
        for change in [change for change in self.pending if change.ended < began]:
            for folder in dict.fromkeys(folder for folder, _, _ in change.entries):
                folder._settle(change)

    def _settle(self, change: Names) -> None:
        """Make a change last; whatever happened to its names before is over."""
        names = _names(change, self)
        for name, node in names.items():
            _name(self.lasting, name, node)
        place = self.pending.index(change)
        earlier = [other for other in self.pending[:place] if not _names(other, self).keys() <= names.keys()]
        self.pending = earlier + self.pending[place + 1 :]

    def left(self, keep: "Keep") -> "dict[str, Node]":
        entries = dict(self.lasting)
        for change in self.pending:
            if keep(change):
                for name, node in _names(change, self).items():
                    _name(entries, name, node)
        return entries


Node: TypeAlias = File | Folder
Keep: TypeAlias = Callable[[Change], float]
"""Which share of a change that was not flushed is there after all: 0, 1, or a part of what was written."""


def _write(content: bytearray, change: Bytes | Size, share: float = 1.0) -> None:
    if isinstance(change, Size):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
        return
    data = change.data[: round(len(change.data) * share)]
    content.extend(bytes(max(0, change.at - len(content))))
    content[change.at : change.at + len(data)] = data


def _name(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _names(change: Names, folder: Folder) -> dict[str, Node | None]:
    return {name: node for other, name, node in change.entries if other is folder}


# --- the disk

Tree: TypeAlias = dict[str, bytes | None]
"""Path below the root to content; None for a directory, which comes before what is in it."""


class Disk:
    """Follows the calls that concern one directory, which was empty and flushed before.

    Args:
        root: the directory, as an absolute path without links.
    """

    def __init__(self, root: Path, inode: int = 0) -> None:
        self.top = Folder()
        self._root = root
        self._nodes: dict[int, Node] = {inode or root.stat().st_ino: self.top}

    def apply(self, call: Call) -> None:
        """Follow one call."""
        match call.kind:
            case "o":
                node = self.find(call.path) or self._new(call, File())
                self._nodes[call.inode] = node
                if call.at and cast("File", node).now:
                    cast("File", node).change(Size(call.ended, 0))
            case "w":
                cast("File", self._nodes[call.inode]).change(Bytes(call.ended, call.at, call.data))
            case "z":
                cast("File", self._nodes[call.inode]).change(Size(call.ended, call.at))
            case "f":
                self._nodes[call.inode].flush(call.began)
            case "d":
                self._nodes[call.inode] = self._new(call, Folder())
            case "l":
                self._named(call, (call.target, self.find(call.path)))
            case "u":
                self._named(call, (call.path, None))
            case "r":
                self._named(call, (call.path, None), (call.target, self.find(call.path)))
            case _:
                raise NotImplementedError(f"the model does not know {call}")

    def find(self, path: str) -> Node | None:
        """Return what is there under a path."""
        folder, name = self._place(path)
        return folder.now.get(name)

    def _place(self, path: str) -> tuple[Folder, str]:
        """Return the directory that holds a path, and the name in it."""
        *parents, name = Path(path).relative_to(self._root).parts
        folder = self.top
        for part in parents:
            folder = cast("Folder", folder.now[part])
        return folder, name

    def _new(self, call: Call, node: Node) -> Node:
        self._named(call, (call.path, node))
        return node

    def _named(self, call: Call, *changes: tuple[str, Node | None]) -> None:
        change = Names(call.ended, [(*self._place(path), node) for path, node in changes])
        for folder, name, node in change.entries:
            _name(folder.now, name, node)
            if change not in folder.pending:
                folder.pending.append(change)

    def tree(self) -> Tree:
        """Return everything as it is now."""
        return _tree(self.top, "", lambda folder: folder.now, lambda file: bytes(file.now))

    def left(self, keep: Keep = lambda change: 0.0) -> Tree:
        """Return what a power cut would leave now: what was flushed, and what `keep` says."""
        answers: dict[int, float] = {}

        def once(change: Change) -> float:
            if id(change) not in answers:
                answers[id(change)] = keep(change)
            return answers[id(change)]

        return _tree(self.top, "", lambda folder: folder.left(once), lambda file: file.left(once))


def _tree(
    folder: Folder, prefix: str, names: Callable[[Folder], dict[str, Node]], content: Callable[[File], bytes]
) -> Tree:
    whole: Tree = {}
    for name, node in sorted(names(folder).items()):
        if isinstance(node, Folder):
            whole[prefix + name] = None
            whole |= _tree(node, f"{prefix}{name}/", names, content)
        elif not name.endswith("-shm"):
            whole[prefix + name] = content(node)
    return whole


def restore(tree: Tree, where: Path) -> None:
    """Write a tree into a new directory."""
    where.mkdir()
    for path, content in tree.items():
        if content is None:
            (where / path).mkdir()
        else:
            (where / path).write_bytes(content)


def read(where: Path) -> Tree:
    """Return what is in a directory."""
    paths = [path for path in where.rglob("*") if not path.name.endswith("-shm")]
    return {str(path.relative_to(where)): None if path.is_dir() else path.read_bytes() for path in paths}
