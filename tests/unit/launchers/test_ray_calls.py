"""Calls of Ray in another process: a call that blocks ends, and the next one works."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from facts import raises
from phyla.errors import ConfigurationError, LauncherFailed
from phyla.launchers.ray_calls import RayCalls
from phyla.validation import check_name

LONG_S = 100.0


@pytest.fixture
def calls() -> Iterator[RayCalls]:
    calls = RayCalls()
    yield calls
    calls.close()


def test_a_call_that_blocks_ends_and_the_next_one_works(calls: RayCalls) -> None:
    first = calls.call("Ray", LONG_S, os.getpid)
    assert first not in (os.getpid(), calls.call("Ray", LONG_S, os.getppid))
    assert calls.call("Ray", LONG_S, os.getpid) == first
    with raises(ConfigurationError, "a name"):
        calls.call("Ray", LONG_S, check_name, "a name", "?")
    with raises(LauncherFailed, "Ray at 'host:1'", "0.05 s"):
        calls.call("Ray at 'host:1'", 0.05, time.sleep, LONG_S)
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    with raises(LauncherFailed, "Ray", "status 7"):
        calls.call("Ray", LONG_S, os._exit, 7)
    assert calls.call("Ray", LONG_S, os.getppid) == os.getpid()


def test_an_interrupt_ends_a_call_at_once(calls: RayCalls) -> None:
    process = calls.call("Ray", LONG_S, os.getpid)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            calls.call("Ray", LONG_S, time.sleep, LONG_S)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
