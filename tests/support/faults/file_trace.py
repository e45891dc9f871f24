"""A disk that forgets: what a power cut leaves of the files that a program wrote, from its system calls.

The rules are those of POSIX, not of one file system:

- Content lasts once its file was flushed (fsync or fdatasync), a name once its directory was. Flushing a file
  does not keep its name, though ext4 and xfs would.
- A flush covers the calls that had returned when it began, and counts from when it returned.
- What was not flushed may be there or not, each call by itself, in any combination; of a write also only the
  first bytes.
- One thing is taken from journalling file systems: a rename between two directories happens as a whole, and
  flushing either directory keeps it.

Permissions are not followed. Nor is what a program writes through shared memory: such files are left out.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, cast

CALLS = (
    "open,openat,openat2,creat,close,dup,dup2,dup3,lseek,mmap,write,pwrite64,writev,pwritev,pwritev2,sendfile,"
    "splice,copy_file_range,truncate,ftruncate,fallocate,mkdir,mkdirat,rmdir,unlink,unlinkat,rename,renameat,"
    "renameat2,link,linkat,symlink,symlinkat,fsync,fdatasync,sync_file_range,msync,execve"
)
STRACE = ("strace", "-f", "-y", "-xx", "-s", str(2**20), "-e", f"trace={CALLS}", "-e", "signal=none")
"""Records a program so that `parse` can read it; `-o FILE` follows, and the program."""

Argument: TypeAlias = "bytes | int | str"
HERE = -100
"""What stands for the working directory (AT_FDCWD)."""


# --- reading a trace


@dataclass(frozen=True)
class Call:
    """A system call that returned; `began` and `ended` order all calls."""

    name: str
    arguments: Sequence[Argument]
    result: int
    began: int
    ended: int


_LINE = re.compile(r"\d+ +(?:<\.\.\. (?P<resumed>\w+) resumed>|(?P<name>\w+)\()(?P<rest>.*)")
_END = re.compile(r"(?P<arguments>.*)\)\s+= (?P<result>-?\d+|\?|0x[0-9a-f]+).*")
_UNFINISHED = " <unfinished ...>"


def parse(lines: Iterable[str], first: int = 0) -> Iterator[Call]:
    """Read what strace wrote, in the order in which the calls returned.

    Args:
        lines: the trace of one process with all its threads. What other programs did that it started is left out:
            they work on other files, and close only their own copies of descriptors.
        first: number of the first call; above those of an earlier process that worked on the same files.
    """
    unfinished: dict[tuple[str, str], tuple[int, str]] = {}
    lines = list(lines)
    programs = dict.fromkeys(line.split(" ", 1)[0] for line in lines if " execve(" in line)
    others = set(list(programs)[1:])
    for number, line in enumerate(lines, first):
        match = _LINE.fullmatch(line.rstrip("\n"))
        thread = line.split(" ", 1)[0]
        if match is None or thread in others or "execve" in (match["name"], match["resumed"]):
            continue  # a signal, the end of a thread, or another program
        rest = match["rest"]
        name, began, text = match["name"] or match["resumed"], number, ""
        if match["resumed"]:
            began, text = unfinished.pop((thread, name))
            if name == "close":
                continue
        if rest.endswith(_UNFINISHED):
            rest = rest.removesuffix(_UNFINISHED)
            unfinished[thread, name] = number, rest
            if name == "close":  # another thread may get the same number before this one returns
                yield Call(name, [_argument(rest)], 0, number, number)
            continue
        end = _END.fullmatch(text + rest)
        if end is None:
            raise ValueError(f"line {number - first + 1} of the trace is not understood: {line[:200]}")
        result = 0 if end["result"] == "?" else int(end["result"], 0)
        yield Call(name, [_argument(part) for part in end["arguments"].split(", ")], result, began, number)


def _argument(text: str) -> Argument:
    if text.startswith('"'):
        if not text.endswith('"'):
            raise ValueError("the trace cuts off what was written; raise strace -s")
        return bytes.fromhex(text[1:-1].replace("\\x", ""))
    if text.startswith("AT_FDCWD"):
        return HERE
    number = re.match(r"(-?\d+)(<|$)", text)
    return int(number[1]) if number else text


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
    mapped: bool = False

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
"""Says which share of a change that was not flushed is there after all: 0, 1, or a part of what was written."""


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


@dataclass
class _Open:
    node: Node
    appends: bool = False
    at: int = 0


class Disk:
    """Follows the calls that concern one directory, which was empty and flushed before.

    Args:
        root: the directory, as an absolute path without links.
    """

    def __init__(self, root: Path) -> None:
        self.top = Folder()
        self.mapped: set[str] = set()
        """Names of files that were written through shared memory."""
        self._root = root
        self._open: dict[int, _Open] = {}

    def restart(self) -> None:
        """Go on with the calls of another process: nothing is open, all files are as they were."""
        self._open.clear()

    def apply(self, call: Call) -> None:
        """Follow one call."""
        arguments = call.arguments
        if call.result < 0:
            return
        match call.name, arguments:
            case ("open", [bytes() as path, str() as flags, *_]):
                self._opened(call, HERE, path, flags)
            case ("openat", [int() as base, bytes() as path, str() as flags, *_]):
                self._opened(call, base, path, flags)
            case ("close", [int() as number]):
                self._open.pop(number, None)
            case ("dup" | "dup2" | "dup3", [int() as number, *_]):
                if number in self._open:
                    self._open[call.result] = self._open[number]
            case ("lseek", [int() as number, *_]):
                if number in self._open:
                    self._open[number].at = call.result
            case ("mmap", [_, _, str() as protection, str() as flags, int() as number, *_]):
                if number in self._open and "PROT_WRITE" in protection and "MAP_SHARED" in flags:
                    self._map(self._open[number].node)
            case ("write", [int() as number, bytes() as data, *_]):
                if number in self._open:
                    self._written(call, self._open[number], data[: call.result])
            case ("pwrite64", [int() as number, bytes() as data, _, int() as at]):
                if number in self._open:
                    _file(self._open[number].node).change(Bytes(call.ended, at, data[: call.result]))
            case ("ftruncate", [int() as number, int() as size]):
                if number in self._open:
                    _file(self._open[number].node).change(Size(call.ended, size))
            case ("fsync" | "fdatasync", [int() as number]):
                if number in self._open:
                    self._open[number].node.flush(call.began)
            case ("mkdir", [bytes() as path, *_]):
                self._named(call, (HERE, path, Folder()))
            case ("mkdirat", [int() as base, bytes() as path, *_]):
                self._named(call, (base, path, Folder()))
            case ("link", [bytes() as old, bytes() as new]):
                self._named(call, (HERE, new, self.find(HERE, old)))
            case ("unlink" | "rmdir", [bytes() as path]):
                self._named(call, (HERE, path, None))
            case ("unlinkat", [int() as base, bytes() as path, *_]):
                self._named(call, (base, path, None))
            case ("rename", [bytes() as old, bytes() as new]):
                self._named(call, (HERE, old, None), (HERE, new, self.find(HERE, old)))
            case ("renameat" | "renameat2", [int() as base, bytes() as old, int() as to, bytes() as new]):
                self._named(call, (base, old, None), (to, new, self.find(base, old)))
            case _ if self._concerned(arguments):
                raise NotImplementedError(f"the model does not know {call.name}{tuple(arguments)!r:.200}")

    def find(self, base: int, path: bytes) -> Node | None:
        """Return what is there under a path; None if that is not below the root."""
        place = self._place(base, path)
        if place is None:
            return None
        folder, name = place
        return folder.now.get(name) if name else folder

    def tree(self) -> "Tree":
        """Return everything as it is now."""
        return self._tree(self.top, "", lambda folder: folder.now, lambda file: bytes(file.now))

    def left(self, keep: Keep = lambda change: 0.0) -> "Tree":
        """Return what a power cut would leave now: what was flushed, and what `keep` says."""
        answers: dict[int, float] = {}

        def once(change: Change) -> float:
            if id(change) not in answers:
                answers[id(change)] = keep(change)
            return answers[id(change)]

        return self._tree(self.top, "", lambda folder: folder.left(once), lambda file: file.left(once))

    def _tree(
        self,
        folder: Folder,
        prefix: str,
        names: Callable[[Folder], dict[str, Node]],
        content: Callable[[File], bytes],
    ) -> "Tree":
        found: Tree = {}
        for name, node in sorted(names(folder).items()):
            if isinstance(node, Folder):
                found[prefix + name] = None
                found.update(self._tree(node, f"{prefix}{name}/", names, content))
            elif not node.mapped:
                found[prefix + name] = content(node)
        return found

    def _place(self, base: int, path: bytes) -> tuple[Folder, str] | None:
        """Return the directory that holds a path, and the name in it; no name for the root itself."""
        where = Path(os.fsdecode(path))
        if where.is_absolute():
            if not where.is_relative_to(self._root):
                return None
            folder, parts = self.top, where.relative_to(self._root).parts
        elif base in self._open:
            folder, parts = _folder(self._open[base].node), where.parts
        else:
            return None  # the working directory is elsewhere
        for part in parts[:-1]:
            folder = _folder(folder.now[part])
        return folder, parts[-1] if parts else ""

    def _opened(self, call: Call, base: int, path: bytes, flags: str) -> None:
        place = self._place(base, path)
        if place is None:
            self._open.pop(call.result, None)
            return
        node = self.find(base, path)
        if node is None:
            if "O_CREAT" not in flags:
                raise LookupError(f"the model lost {path!r}")
            node = File()
            self._named(call, (base, path, node))
        if "O_TRUNC" in flags and _file(node).now:
            _file(node).change(Size(call.ended, 0))
        self._open[call.result] = _Open(node, "O_APPEND" in flags)

    def _written(self, call: Call, opened: _Open, data: bytes) -> None:
        file = _file(opened.node)
        at = len(file.now) if opened.appends else opened.at
        file.change(Bytes(call.ended, at, data))
        opened.at = at + len(data)

    def _named(self, call: Call, *changes: tuple[int, bytes, Node | None]) -> None:
        entries = []
        for base, path, node in changes:
            place = self._place(base, path)
            if place is not None:
                entries.append((*place, node))
        if len(entries) not in (0, len(changes)):
            raise NotImplementedError("a file moved into or out of the directory")
        change = Names(call.ended, entries)
        for folder, name, node in entries:
            _name(folder.now, name, node)
            if change not in folder.pending:
                folder.pending.append(change)

    def _map(self, node: Node) -> None:
        _file(node).mapped = True
        self.mapped.update(name for name, other in _walk(self.top) if other is node)

    def _concerned(self, arguments: Sequence[Argument]) -> bool:
        root = bytes(self._root)
        return any(
            argument in self._open
            if isinstance(argument, int)
            else isinstance(argument, bytes) and argument.startswith(root)
            for argument in arguments[:3]
        )


Tree: TypeAlias = dict[str, bytes | None]
"""Path below the root to content; None for a directory, which comes before what is in it."""


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
    return {
        str(path.relative_to(where)): None if path.is_dir() else path.read_bytes() for path in where.rglob("*")
    }


def _walk(folder: Folder) -> Iterator[tuple[str, Node]]:
    for name, node in folder.now.items():
        yield name, node
        if isinstance(node, Folder):
            yield from _walk(node)


def _file(node: Node) -> File:
    if not isinstance(node, File):
        raise TypeError("a file was expected, this is a directory")
    return node


def _folder(node: Node) -> Folder:
    return cast("Folder", node)
