"""A process whose work is done ends with its own status, whatever keeps it alive."""

import subprocess
import sys

import pytest

from phyla.settings import child_environment

HEAD = """
import atexit, concurrent.futures, multiprocessing, sys, threading, time
from phyla.system.endings import ending

fork = multiprocessing.get_context("fork")
with ending(LEFT):
"""
THREAD = "    threading.Thread(target=time.sleep, args=(900,), name='loader').start()\n"
POOL = "    concurrent.futures.ThreadPoolExecutor(1, 'loader').submit(time.sleep, 900)\n"
PROCESS = "    fork.Process(target=time.sleep, args=(900,), name='loader').start()\n"
QUEUE = "    queue = fork.Queue()\n    queue.put(b'x' * 10_000_000)\n"
DAEMONS = (
    "    threading.Thread(target=time.sleep, args=(900,), daemon=True).start()\n"
    "    fork.Process(target=time.sleep, args=(900,), daemon=True).start()\n"
)
HANDLER = "    atexit.register(lambda: print('flushed'))\n"
SOON = "    threading.Thread(target=time.sleep, args=(0.5,)).start()\n"


NO_THREADS = """
    import resource
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**20,) * 2)  # a thread takes 8 MiB
"""


@pytest.mark.parametrize(
    ("code", "left", "status", "told"),
    [
        (THREAD, None, 0, "ended: the thread 'loader'"),
        (THREAD, 118, 118, "ended: the thread 'loader'"),
        (THREAD + "    sys.exit(3)", 118, 3, "ended: the thread 'loader'"),
        (PROCESS + "    raise ValueError", None, 1, "ended: the process 'loader' (number "),
        (POOL, None, 0, "ended: the thread 'loader_0'"),
        (QUEUE, 118, 118, "ended: a queue of multiprocessing that still holds items"),
        (HANDLER + PROCESS + THREAD, None, 0, "ended: the thread 'loader', the process 'loader' (number "),
        (DAEMONS + SOON + HANDLER, 118, 0, None),
        (SOON + NO_THREADS + "    sys.exit(3)", None, 3, None),
    ],
)
def test_what_was_left_is_named_and_does_not_keep_a_process_alive(
    code: str, left: int | None, status: int, told: str | None
) -> None:
    words = [sys.executable, "-c", HEAD.replace("LEFT", repr(left)) + code]
    done = subprocess.run(
        words, env=child_environment({}), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, done.stderr
    # What libraries do at the end is done in any case.
    assert done.stdout == ("flushed\n" if HANDLER in code else "")
    if told is None:
        assert not done.stderr
    else:
        assert told in done.stderr.splitlines()[-1]
        assert done.stderr.count("warning:") == 1
