"""What is given to a worker whose time is limited."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from phyla.machine import ONLY_END, Room, expected_s
from phyla.records import JobKind, JobState, TrialRecord

TRIAL = TrialRecord(
    id=1, study=1, member=0, generation=0, state=JobState.RUNNING, params={}, start_step=0, end_step=10, seed=0,
    token=1, created_at=0.0, started_at=100.0,
)  # fmt: skip
SECONDS = st.floats(0.001, 1e6)


def done(seconds: float, steps: int, token: int = 1) -> TrialRecord:
    return replace(TRIAL, state=JobState.COMPLETED, reached_step=steps, ended_at=100.0 + seconds, token=token)


def test_nothing_is_expected_where_nothing_was_learned() -> None:
    assert expected_s(TRIAL, []) is None
    # How many steps a second attempt trained is not known, and one that measures trains none.
    told_nothing = [done(5.0, 10, token=2), replace(done(5.0, 10), kind=JobKind.MEASURE), done(5.0, 0)]
    assert expected_s(TRIAL, told_nothing) is None
    assert Room(left_s=0.0, run_s=60.0).holds(None)
    assert not ONLY_END.holds(None)
    assert not ONLY_END.holds(0.0)


def test_it_goes_by_the_slow_ones_and_by_the_steps_that_are_left() -> None:
    recent = [done(10.0 * pace, 10) for pace in range(1, 11)]
    assert expected_s(TRIAL, recent) == 90.0
    assert expected_s(replace(TRIAL, end_step=20), recent) == 180.0
    assert expected_s(replace(TRIAL, progress_step=8), recent) == 18.0
    assert expected_s(replace(TRIAL, start_step=10, kind=JobKind.MEASURE), recent) == 0.0


@given(st.lists(st.tuples(SECONDS, st.integers(1, 1000)), min_size=1, max_size=30))
def test_it_is_within_what_was_seen_and_grows_with_the_steps(seen: list[tuple[float, int]]) -> None:
    recent = [done(seconds, steps) for seconds, steps in seen]
    paces = [(one.ended_at - 100.0) / (one.reached_step or 1) for one in recent if one.ended_at is not None]
    expected = expected_s(TRIAL, recent)
    assert expected is not None
    assert 10 * min(paces) <= expected <= 10 * max(paces)
    longer = expected_s(replace(TRIAL, end_step=20), recent)
    assert longer is not None
    assert longer >= expected
    # At most one in ten of them was slower.
    slower = sum(10 * pace > expected * (1 + 1e-9) for pace in paces)
    assert slower <= len(paces) / 10


@given(SECONDS, SECONDS, SECONDS)
def test_what_is_given_out_ends_in_time_or_never_could(run_s: float, left_s: float, expected: float) -> None:
    left_s = min(left_s, run_s)
    if Room(left_s=left_s, run_s=run_s).holds(expected):
        assert expected <= left_s or expected > 0.9 * run_s
    else:
        # The next run has the time for it: no study waits for ever.
        assert Room(left_s=0.9 * run_s, run_s=run_s).holds(expected)


@given(SECONDS, SECONDS)
def test_a_run_that_has_just_begun_takes_whatever_there_is(run_s: float, expected: float) -> None:
    assert Room(left_s=0.95 * run_s, run_s=run_s).holds(expected)
    assert Room().holds(math.inf)
