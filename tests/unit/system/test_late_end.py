"""A process that hangs after a signal is ended, and no other one."""

import pytest

import forked

PROGRAM = """
import os, signal, sys, threading
from phyla.system import late_end

late_end.POLL_S = 0.1
limits_s, signals, hangs = eval(sys.argv[1])
signalled = []
with late_end.LateEnd(limits_s, "it hangs") as late:
    handler = late.after(lambda: signalled.append(1))
    signal.signal(signal.SIGTERM, lambda number, frame: handler())
    for _ in range(signals):
        os.kill(os.getpid(), signal.SIGTERM)
    while hangs:
        signal.pause()
for thread in threading.enumerate():
    if thread.name == "phyla-late-end":
        thread.join()
print(len(signalled))
"""


@pytest.mark.parametrize(
    ("how", "status", "printed"),
    [
        (((0.2,), 1, True), 75, "it hangs\n"),
        (((1000.0, 0.2), 2, True), 75, "it hangs\n"),
        (((1e9, 1000.0, 0.2), 4, True), 75, "it hangs\n"),
        (((0.2, 0.1), 1, False), 0, "1\n"),
        (((1e9,), 2, False), 0, "2\n"),
    ],
    ids=["one signal", "two signals", "more signals", "an end in time", "no limit"],
)
def test_what_hangs_after_a_signal_is_ended(how: tuple[object, ...], status: int, printed: str) -> None:
    done = forked.run(["-c", PROGRAM, repr(how)], merged=True)
    assert (done.returncode, done.stdout) == (status, printed)
