"""Output files of programs: truncation of long ones, and their last lines."""

import ctypes
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

KEPT_BYTES = (8 << 20, 64 << 20)
"""The beginning and the end of an output that stay on disk, once it is longer than both and as much again."""
TAIL_BYTES = 1500
LAST_CHARACTERS = 200
OUTPUT_IN = "; all output is in "
"""In an error, the text before the files with the output of a command."""


def drop_middle(file: int) -> None:
    """Free the disk space of the middle of a long file: it then reads as zeros, and nothing moves."""
    begin, end = KEPT_BYTES
    status = os.fstat(file)
    if status.st_blocks * 512 > begin + 2 * end and sys.platform == "linux":
        at, length = ctypes.c_int64(begin), ctypes.c_int64(status.st_size - end - begin)
        ctypes.CDLL(None).fallocate(file, 3, at, length)  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


def tail(path: Path, most: int = TAIL_BYTES) -> str:
    """Return the end of a file, which may be large and need not be text."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - most))
        text = file.read().decode(errors="replace")
    lines = text.replace("\r", "\n").splitlines()
    printable = "\n".join("".join(char if char.isprintable() else "\ufffd" for char in line) for line in lines)
    return printable.strip()


def last_lines(files: Iterable[Path]) -> list[str]:
    """Return the last lines with text, from the first of these files that has any."""
    for file in files:
        lines = [line for line in tail(file).splitlines() if re.search(r"\w", line)] if file.is_file() else []
        if lines:
            return lines
    return []


def places(files: Sequence[Path]) -> str:
    """Return which of these files of one directory hold any output; all of them if none does."""
    first, *more = [file for file in files if file.is_file() and file.stat().st_size] or files
    return " and ".join([str(first), *(file.name for file in more)])
