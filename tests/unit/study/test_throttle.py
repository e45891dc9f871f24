"""How often whoever shows a study looks at the store."""

import pytest

from phyla.study.results import progress
from phyla.study.results.progress import SHARE, Throttle


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def look(throttle: Throttle, clock: Clock, took_s: float) -> bool:
    with throttle.turn() as due:
        if due:
            clock.now += took_s
    return due


def test_a_look_that_waited_for_a_service_does_not_silence_the_next_ones(clock: Clock) -> None:
    throttle = Throttle(0.5)
    assert look(throttle, clock, 0.01)
    clock.now += 0.5
    assert look(throttle, clock, 3.0)  # The service was away.
    clock.now += 0.5
    assert look(throttle, clock, 0.01)


def test_looks_that_are_always_slow_become_rare(clock: Clock) -> None:
    throttle = Throttle(0.5)
    assert look(throttle, clock, 3.0)
    clock.now += 0.5
    assert look(throttle, clock, 3.0)
    clock.now += 0.9 * SHARE * 3.0
    assert not look(throttle, clock, 3.0)
    clock.now += 0.1 * SHARE * 3.0
    assert look(throttle, clock, 3.0)
