"""Digests of files, computed in parallel while something else happens.

Definition (manifest format 1), in hexadecimal:

- of a file of at most 64 MiB: the SHA-256 of its content, as `sha256sum` prints it;
- of a longer file: the SHA-256 of the concatenated SHA-256 digests (32 raw bytes each) of its
  consecutive pieces of 64 MiB, the last one shorter;
- of a symbolic link: the SHA-256 of `symlink`, a NUL byte and the name of its target.

The three cannot be confused, since a manifest holds the size beside the digest. Pieces let several
threads share one large file: hashing and reading release the interpreter. SHA-256 is the fastest
of hashlib on processors with SHA instructions (1.9 GB/s a core where BLAKE2b does 1.3).
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from phyla.checkpoints.tree import Entry

PIECE_BYTES = 64 * 2**20
INLINE_BYTES = 2**20
"""Below this size in all, starting threads costs more than it saves."""
BUFFER_BYTES = 2**18
"""Small enough to stay in a core's own cache between reading and hashing."""
THREADS_AT_MOST = 4


def digests(entries: Sequence[Entry], *, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
    """Return the digest of every entry, in order.

    Args:
        entries: what to read.
        meanwhile: called once in this thread; large content is hashed in other threads while it runs.

    Raises:
        OSError: a file cannot be read; or whatever `meanwhile` raises.
    """
    if sum(entry.size_bytes for entry in entries) <= INLINE_BYTES:
        meanwhile()
        return [_joined([_piece(entry, start) for start in _starts(entry)]) for entry in entries]
    pool = ThreadPoolExecutor(min(THREADS_AT_MOST, os.cpu_count() or 1), "phyla-digest")
    try:
        pieces: list[list[Future[bytes]]] = [
            [pool.submit(_piece, entry, start) for start in _starts(entry)] for entry in entries
        ]
        meanwhile()
        return [_joined([piece.result() for piece in of_file]) for of_file in pieces]
    finally:
        pool.shutdown(cancel_futures=True)


def _starts(entry: Entry) -> range:
    return range(0, max(entry.size_bytes, 1), PIECE_BYTES)


def _joined(pieces: list[bytes]) -> str:
    return (pieces[0] if len(pieces) == 1 else hashlib.sha256(b"".join(pieces)).digest()).hex()


def _piece(entry: Entry, start: int) -> bytes:
    if entry.is_link:
        return hashlib.sha256(b"symlink\0" + os.fsencode(entry.path.readlink())).digest()
    left = min(PIECE_BYTES, entry.size_bytes - start)
    return _hashed(entry.path, start, left)


def _hashed(path: Path, start: int, left: int) -> bytes:
    whole = hashlib.sha256()
    buffer = memoryview(bytearray(min(BUFFER_BYTES, left)))
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while left > 0 and (count := file.readinto(buffer[: min(left, len(buffer))])):
            whole.update(buffer[:count])
            left -= count
    return whole.digest()
