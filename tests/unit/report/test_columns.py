"""What figures read of trials and attempts: all that they need, and little of it."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from compared import attempt
from phyla.records import JobKind, JobState, TrialRecord
from phyla.report.columns import Attempts, Trials
from report_study import columns, empty, large, records_of


def record(key: int, **more: object) -> TrialRecord:
    made = TrialRecord(
        id=key,
        study=1,
        member=0,
        generation=0,
        state=JobState.COMPLETED,
        params={},
        start_step=0,
        end_step=10,
        reached_step=10,
        seed=0,
        created_at=0.0,
        fitness=1.0,
        order=1.0,
    )
    return replace(made, **more)  # type: ignore[arg-type]  # fields of a trial


def test_completed_trials_refer_to_each_other_by_place() -> None:
    trials = [
        record(3),
        record(5, state=JobState.FAILED, member=1, ended_at=7.0),
        record(6, kind=JobKind.MEASURE, parent=3),
        record(8, parent=3, start_step=10, reached_step=25, age=10, fitness=float("nan"), order=None),
        record(9, member=1, parent=8, jump_from=3, start_step=25, reached_step=30, age=25),
    ]
    found = columns(trials)
    assert found.id.tolist() == [3, 8, 9]
    assert found.parent.tolist() == [-1, 0, 1]
    assert found.jump.tolist() == [-1, -1, 0]
    assert found.progress.tolist() == [10, 25, 30]
    assert np.isnan(found.fitness).tolist() == [False, True, False]
    assert found.order.tolist() == [1.0, -np.inf, 1.0]
    assert found.counts == {JobState.COMPLETED: 3, JobState.FAILED: 1}
    assert (found.newest, found.last_ended) == ({0: 8, 1: 9}, 7.0)
    assert found.records([2, 0]) == [trials[4], trials[0]]


def test_the_elite_is_the_best_of_a_members_own_trials_and_the_earliest_among_equals() -> None:
    # Member 1 took over the weights of 1, which scored more than what came of them.
    adopted = record(3, member=1, parent=1, fitness=0.1, order=0.1)
    equal, worse = record(4, order=1.0), record(5, order=0.5)
    infinite = record(6, member=2, fitness=float("inf"), order=float("inf"))
    trials = columns([record(1), adopted, equal, worse, infinite])
    assert replace(empty(), trials=trials).elites == {0: 0, 1: 1}


def test_equal_hyperparameters_are_one_object_and_those_that_only_compare_equal_are_not() -> None:
    given = [{"a": 1}, {"a": 1}, {"a": True}, {"a": 1.0}]
    params = columns(record(key, params=one) for key, one in enumerate(given, start=1)).params
    assert [repr(one) for one in params] == [repr(one) for one in given]
    assert params[0] is params[1]


def test_a_long_study_takes_little_memory() -> None:
    (first, *_), count = records_of(large(1, 1)), 4_000

    def trials() -> Iterator[TrialRecord]:
        for key in range(1, count + 1):
            yield replace(first, id=key, params=dict(first.params), reason={"compared": [key]})

    tracemalloc.start()
    try:
        kept = Trials.of(trials(), lambda ids: []), Attempts.of(attempt(key, 0.0, 1.0) for key in range(count))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(kept[0]) == len(kept[1]) == count
    assert size / count < 250, "bytes for each trial with its attempt"
