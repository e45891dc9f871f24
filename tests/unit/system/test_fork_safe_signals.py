"""Handlers of signals, in a process and in its forks. The process is another one: ours may have threads."""

import subprocess
import sys

BEGIN = """
import os, signal, time
from phyla.system.fork_safe_signals import handle
"""

MANY = """
handled, ended = [], set()
before = handle(signal.SIGTERM, lambda number, frame: handled.append(int(number)))
for _ in range(50):
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(1)
    os.kill(child, signal.SIGTERM)
    ended.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.kill(os.getpid(), signal.SIGTERM)
print(ended, handled, before is signal.SIG_DFL)
"""

BEFORE = """
handle(signal.SIGINT, lambda number, frame: None)
child = os.fork()
if child == 0:
    try:
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

UNUSED = """
import gc, weakref
class Kept:
    def stop(self, number, frame): pass
kept = Kept()
before = handle(signal.SIGTERM, kept.stop)
signal.signal(signal.SIGTERM, before)
seen = weakref.ref(kept)
del kept
gc.collect()
print(seen())
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", BEGIN + program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_handler_handles_a_signal_here_and_not_in_forks_however_soon_it_comes() -> None:
    assert run(MANY) == "{-15} [15] True"


def test_a_fork_handles_a_signal_as_it_was_handled_before() -> None:
    assert run(BEFORE) == "7"


def test_a_handler_that_is_not_in_use_any_more_is_not_kept() -> None:
    assert run(UNUSED) == "None"
