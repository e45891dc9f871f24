"""A disk that fails and is recorded: calls of programs (`failing_disk.c`), and mounts that only they see."""

import ctypes
import errno
import functools
import mmap
import os
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntFlag
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

import forked
from forgetful_disk import Call


class Calls(IntFlag):
    """Kinds of system calls."""

    OPEN, CREATE, WRITE, FLUSH, NAME, LOOK, READ = (1 << bit for bit in range(7))


class Failure(NamedTuple):
    """A way in which a disk fails: the error, and the calls that meet it."""

    error: int
    calls: Sequence[Calls]
    shares: Sequence[int] = (1000, 300)

    @property
    def name(self) -> str:
        """What the system calls the error."""
        return os.strerror(self.error)


FAILURES: Mapping[str, Failure] = {
    "full disk": Failure(errno.ENOSPC, [Calls.WRITE, Calls.WRITE | Calls.CREATE], [1000]),
    "no inodes": Failure(errno.ENOSPC, [Calls.CREATE], [1000]),
    "quota of bytes": Failure(errno.EDQUOT, [Calls.WRITE, Calls.WRITE | Calls.FLUSH]),
    "quota of inodes": Failure(errno.EDQUOT, [Calls.CREATE]),
    "read-only": Failure(errno.EROFS, [Calls.CREATE | Calls.NAME | Calls.WRITE | Calls.FLUSH], [1000]),
    "stale handles": Failure(
        errno.ESTALE,
        [
            Calls(127),
            Calls.LOOK | Calls.OPEN | Calls.READ,
            Calls.READ | Calls.WRITE | Calls.FLUSH,
            Calls.NAME | Calls.CREATE,
        ],
        [1000, 300, 50],
    ),
    "failing disk": Failure(
        errno.EIO,
        [
            Calls.READ,
            Calls.WRITE | Calls.FLUSH,
            Calls.READ | Calls.WRITE | Calls.FLUSH,
            Calls.LOOK | Calls.OPEN,
        ],
        [1000, 300, 50],
    ),
}


class _Control(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("left", "failed", "turns")),
        *((name, ctypes.c_uint32) for name in ("error", "kinds", "share", "unused")),
        *((name, ctypes.c_char * 512) for name in ("last", "prefix", "root")),
    )


_RECORD = struct.Struct("4q4I")
_server, _starting = forkserver.ForkServer(), threading.Lock()


@functools.cache
def library() -> Path:
    """Compile what is preloaded, once in a process."""
    made = Path(tempfile.mkdtemp(prefix="failing-disk-")) / "failing_disk.so"
    source = Path(__file__).with_suffix(".c")
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return made


class FailingDisk:
    """Lets system calls of programs fail while they run, or records them.

    Args:
        file: where the programs read what is to fail.
        root: the directory whose changes are recorded; must be new.
    """

    def __init__(self, file: Path, root: Path | str = "") -> None:
        file.write_bytes(bytes(ctypes.sizeof(_Control)))
        with file.open("r+b") as opened:
            self._control = _Control.from_buffer(mmap.mmap(opened.fileno(), ctypes.sizeof(_Control)))
        self._control.root = os.fsencode(root)
        self._file = file

    def start(
        self,
        words: Sequence[object],
        *,
        env: Mapping[str, str],
        first: Callable[[], None] | None = None,
        **options: Any,
    ) -> forked.Forked:
        """Start a Python program, whose calls and whose children's calls are concerned; see `Forked`."""
        environment = {**env, "LD_PRELOAD": str(library()), "FAILING_DISK": str(self._file)}
        attach = partial(_attach, str(self._file), first)
        return forked.Forked(words, env=environment, first=attach, server=_preloaded(), **options)

    def begin(self, prefix: Path, error: int, calls: Calls, *, share: int = 1000, count: int = -1) -> None:
        """Let calls on paths that begin with a prefix fail: a share of 1000, up to a number; -1: no limit."""
        control = self._control
        control.left = 0
        control.prefix, control.error, control.kinds, control.share = str(prefix).encode(), error, calls, share
        control.left = count

    def heal(self) -> None:
        """Let no further call fail."""
        self._control.left = 0

    @property
    def failed(self) -> int:
        """Calls that failed so far."""
        return int(self._control.failed)

    @property
    def last(self) -> str:
        """Path of the call that failed last."""
        return bytes(self._control.last).decode(errors="replace")

    def recorded(self) -> list[Call]:
        """Return the calls so far, in the order in which they returned."""
        return sorted(_read(Path(f"{self._file}.calls").read_bytes()), key=lambda call: call.ended)


def _read(content: bytes) -> Iterator[Call]:
    at = 0
    while at < len(content):
        began, ended, inode, offset, kind, *sizes = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        texts = []
        for size in sizes:
            texts.append(content[at : at + size])
            at += size
        path, target, data = texts
        yield Call(chr(kind), began, ended, inode, offset, os.fsdecode(path), os.fsdecode(target), data)


def _preloaded() -> forkserver.ForkServer:
    """Return a server like that of other tests, in whose forks calls can fail."""
    with _starting:
        _server.set_forkserver_preload(list(forked.PRELOADED))
        forked.ensure_running(_server, LD_PRELOAD=str(library()))
    return _server


def _attach(file: str, first: Callable[[], None] | None) -> None:
    ctypes.CDLL(None).failing_disk(file.encode())
    if first is not None:
        first()


def mounted(*commands: str) -> Callable[[], None]:
    """Return what a forked program does first so that it alone, with its children, sees what is mounted."""
    return partial(_mount, commands)


NEW_MOUNTS, NEW_USER = 0x20000, 0x10000000


def without_rights() -> None:
    """Let permissions bind this forked program, as if it were not root's."""
    _unshare(NEW_USER)


def _unshare(kinds: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(kinds):
        raise OSError(ctypes.get_errno(), "cannot have mounts or users of its own")


def _mount(commands: Sequence[str]) -> None:
    user, group = os.geteuid(), os.getegid()
    _unshare(NEW_MOUNTS | (NEW_USER if user else 0))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    for command in ("mount --make-rprivate /", *commands):
        subprocess.run(command, shell=True, check=True)
