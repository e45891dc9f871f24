"""Digests of files, computed in parallel while something else happens.

Definition (manifest format 1), in hexadecimal:

- of a file: the BLAKE3 of its content, as `b3sum` prints it;
- of a symbolic link: the BLAKE3 of `symlink`, a NUL byte and the name of its target.

BLAKE3 takes a third of the processor time of SHA-256, the fastest hash of the standard library, even
where the processor has instructions for SHA; and that is what a commit has to hide behind its flush.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from blake3 import blake3

from phyla.checkpoints.tree import Entry

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
        return [_digest(entry) for entry in entries]
    # Reading and hashing release the interpreter.
    pool = ThreadPoolExecutor(min(THREADS_AT_MOST, len(entries)), "phyla-digest")
    try:
        results = [pool.submit(_digest, entry) for entry in entries]
        meanwhile()
        return [result.result() for result in results]
    finally:
        pool.shutdown(cancel_futures=True)


def _digest(entry: Entry) -> str:
    if entry.is_link:
        return blake3(b"symlink\0" + os.fsencode(entry.path.readlink())).hexdigest()
    whole = blake3()
    buffer = memoryview(bytearray(min(BUFFER_BYTES, max(entry.size_bytes, 1))))
    # Not by mapping it: a file that somebody truncates meanwhile would kill the process.
    with open(entry.path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            whole.update(buffer[:count])
    return whole.hexdigest()
