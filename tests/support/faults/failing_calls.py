"""Lets system calls of other processes fail; see `failing_calls.c`."""

import ctypes
import mmap
import subprocess
from pathlib import Path

OPEN, CREATE, WRITE, FLUSH, NAME, LOOK, READ = (1 << bit for bit in range(7))
EVERYTHING = OPEN | CREATE | WRITE | FLUSH | NAME | LOOK | READ


class _Control(ctypes.Structure):
    _fields_ = (
        ("left", ctypes.c_int64),
        ("failed", ctypes.c_int64),
        ("error", ctypes.c_uint32),
        ("kinds", ctypes.c_uint32),
        ("share", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("last", ctypes.c_char * 512),
        ("prefix", ctypes.c_char * 512),
    )


class FailingCalls:
    """Lets system calls of other processes fail while they run.

    Args:
        file: where the processes are told.
        library: what `build` made.
    """

    def __init__(self, file: Path, library: Path) -> None:
        file.write_bytes(bytes(ctypes.sizeof(_Control)))
        with file.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), ctypes.sizeof(_Control))
        self._control = _Control.from_buffer(self._page)
        self.environment = {"LD_PRELOAD": str(library), "FAILING_CALLS": str(file)}

    @staticmethod
    def build(folder: Path) -> Path:
        """Compile the library that is preloaded."""
        library = folder / "failing_calls.so"
        if not library.exists():
            source = Path(__file__).with_name("failing_calls.c")
            command = ["cc", "-shared", "-fPIC", "-O1", "-o", f"{library}.new", str(source), "-ldl"]
            subprocess.run(command, check=True, capture_output=True, text=True)
            Path(f"{library}.new").rename(library)
        return library

    def begin(self, prefix: Path | str, error: int, kinds: int, *, share: int = 1000, count: int = -1) -> None:
        """Let calls fail from now on.

        Args:
            prefix: what the paths begin with.
            error: errno.
            kinds: of calls.
            share: of these calls that fail, of 1000.
            count: how many may fail; -1 for any number.
        """
        control = self._control
        control.left = 0
        control.prefix, control.error, control.kinds, control.share = str(prefix).encode(), error, kinds, share
        control.left = count

    def end(self) -> None:
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
