"""Handlers of signals, in a process and in its forks."""

import os
import signal
import time

from phyla.signals import handle


def test_a_handler_handles_a_signal_here_and_not_in_forks_however_soon_it_comes() -> None:
    handled: list[int] = []
    ended = []
    before = handle(signal.SIGTERM, lambda number, frame: handled.append(number))
    try:
        for _ in range(50):
            child = os.fork()
            if child == 0:
                time.sleep(20)
                os._exit(1)
            os.kill(child, signal.SIGTERM)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert set(ended) == {-signal.SIGTERM}
    assert handled == [signal.SIGTERM]


def test_a_fork_handles_a_signal_as_it_was_handled_before() -> None:
    before = handle(signal.SIGINT, lambda number, frame: None)
    try:
        child = os.fork()
        if child == 0:
            try:
                signal.raise_signal(signal.SIGINT)
                time.sleep(60)
            except KeyboardInterrupt:
                os._exit(7)
            os._exit(1)
        _, status = os.waitpid(child, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert os.waitstatus_to_exitcode(status) == 7
