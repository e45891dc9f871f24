"""Lineage: ancestry, jumps, the best and schedules; exact on a small study, by property on random ones."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from facts import raises
from phyla.errors import UsageError
from phyla.lineage import Lineage, Schedule, Segment
from phyla.records import JobKind, JobState, Json, TrialRecord

QUICK = settings(max_examples=times(25, 60))
SEGMENT: dict[str, Json] = {"start_step": 0, "end_step": 1, "params": {}, "trial": 1, "member": 0}


def trial(
    key: int,
    member: int,
    generation: int,
    parent: TrialRecord | None = None,
    *,
    jump_from: int | None = None,
    fitness: float | None = None,
    lr: float = 0.1,
    steps: int = 10,
    state: JobState = JobState.COMPLETED,
    replaces: int | None = None,
) -> TrialRecord:
    start = parent.reached_step if parent and parent.reached_step is not None else 0
    done = state is JobState.COMPLETED
    finite = fitness is not None and abs(fitness) < float("inf")
    return TrialRecord(
        id=key,
        study=1,
        member=member,
        generation=generation,
        state=state,
        parent=parent.id if parent else None,
        jump_from=jump_from,
        replaces=replaces,
        params={"lr": lr},
        start_step=start,
        end_step=start + steps,
        reached_step=start + steps if done else None,
        seed=0,
        fitness=fitness if done else None,
        order=(fitness if finite else float("-inf")) if done and fitness is not None else None,
        checkpoint=f"{key}.1" if done else None,
        created_at=float(key),
    )


def small() -> list[TrialRecord]:
    """Two members; member 1 abandons 4 for 3, breaks once there, and the replacement continues from 4."""
    a0 = trial(1, 0, 0, fitness=0.5, lr=0.1)
    b0 = trial(2, 1, 0, fitness=0.9, lr=0.2, steps=5)
    a1 = trial(3, 0, 1, a0, fitness=0.7, lr=0.1)
    b1 = trial(4, 1, 1, b0, fitness=0.2, lr=0.2, steps=5)
    broken = trial(5, 1, 2, a1, jump_from=4, lr=0.12, state=JobState.FAILED)
    mended = trial(6, 1, 2, b1, fitness=0.9, lr=0.3, replaces=5)
    a2 = trial(7, 0, 2, a1, fitness=float("nan"), lr=0.1)
    jumped = trial(8, 0, 3, mended, jump_from=7, fitness=0.8, lr=0.36)
    running = trial(9, 1, 3, mended, lr=0.3, state=JobState.RUNNING)
    return [a0, b0, a1, b1, broken, mended, a2, jumped, running]


def test_ancestry_follows_the_weights_root_first() -> None:
    lineage = Lineage(reversed(small()))
    assert [t.id for t in lineage.ancestry(8)] == [2, 4, 6, 8]
    assert [t.id for t in lineage.ancestry(1)] == [1]
    assert [t.id for t in lineage] == list(range(1, 10))
    assert 9 in lineage
    assert 10 not in lineage


def test_jumps_are_counted() -> None:
    assert repr(Lineage(small())) == "<Lineage of 9 trials, 2 jumps>"


def test_the_best_trial_is_finite_and_the_earliest_among_equals() -> None:
    best = Lineage(small()).best()
    assert best is not None
    assert best.id == 2
    assert Lineage([]).best() is None
    assert Lineage([trial(1, 0, 0, fitness=float("inf"))]).best() is None


def test_a_schedule_says_what_was_in_force_at_every_step() -> None:
    schedule = Lineage(small()).schedule(8)
    assert [(s.start_step, s.end_step, s.trial, s.member) for s in schedule.segments] == [
        (0, 5, 2, 1),
        (5, 10, 4, 1),
        (10, 20, 6, 1),
        (20, 30, 8, 0),
    ]
    assert schedule.steps == 30
    assert [schedule(step)["lr"] for step in (0, 9, 10, 19, 20, 29, 30, 10**9)] == [
        0.2, 0.2, 0.3, 0.3, 0.36, 0.36, 0.36, 0.36
    ]  # fmt: skip
    assert [(s.start_step, s.end_step, s.trial) for s in schedule.changes()] == [
        (0, 10, 2),
        (10, 20, 6),
        (20, 30, 8),
    ]
    with raises(UsageError, "step -1"):
        schedule(-1)


def test_a_schedule_is_readable_and_survives_json() -> None:
    schedule = Lineage(small()).schedule(8)
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json(), allow_nan=False))) == schedule
    assert repr(schedule) == "<Schedule of lr: 30 steps, 4 trials, 2 changes>"
    assert str(schedule).splitlines()[1].split() == ["0", "10", "1", "2", "0.2"]
    # What a caller does to the answer does not change the schedule.
    schedule(0)["lr"] = 7
    assert schedule(0) == {"lr": 0.2}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "schema 1 and a list of segments got []"),
        ({"schema": 2, "segments": []}, "1 schema 2"),
        ({"schema": 1, "segments": []}, "at least one segment"),
        ({"schema": 1, "segments": {}}, "segments"),
        ({"schema": 1, "segments": [3]}, "a segment of a schedule must be an object  got 3"),
        ({"schema": 1, "segments": [{**SEGMENT, "params": 3}]}, "params 3"),
        ({"schema": 1, "segments": [{**SEGMENT, "start_step": "0"}]}, "start_step 0"),
        ({"schema": 1, "segments": [{**SEGMENT, "member": 0.5}]}, "member 0.5"),
        ({"schema": 1, "segments": [{"params": {}}]}, "params"),
    ],
)
def test_reading_something_else_as_a_schedule_says_what_is_wrong(value: Json, message: str) -> None:
    with raises(UsageError, *message.split()):
        Schedule.from_json(value)


def test_segments_must_join() -> None:
    with raises(UsageError, "step 4"):
        Schedule((Segment(0, 4, {}, 1, 0), Segment(5, 6, {}, 2, 0)))
    with pytest.raises(UsageError, match="before it starts"):
        Schedule((Segment(5, 4, {}, 1, 0),))


def test_a_trial_without_steps_is_never_in_force() -> None:
    parts = (Segment(0, 4, {"a": 1}, 1, 0), Segment(4, 4, {"a": 2}, 2, 0), Segment(4, 6, {"a": 3}, 3, 0))
    schedule = Schedule(parts)
    assert [schedule(step)["a"] for step in range(6)] == [1, 1, 1, 1, 3, 3]
    assert [segment.trial for segment in schedule.changes()] == [1, 3]
    assert Schedule((Segment(0, 0, {"a": 1}, 1, 0),)).changes()[0].params == {"a": 1}


def test_conditional_hyperparameters_come_and_go_in_the_table() -> None:
    schedule = Schedule((Segment(0, 4, {"a": 1}, 1, 0), Segment(4, 6, {"b": "x"}, 2, 0)))
    rows = [line.split() for line in schedule.table().splitlines()]
    assert [row[-2:] for row in rows] == [["a", "b"], ["1", "-"], ["-", "x"]]


def test_measurements_are_no_part_of_a_lineage() -> None:
    first = trial(1, 0, 0, fitness=0.5)
    again = replace(trial(2, 0, 1, first, fitness=0.9), kind=JobKind.MEASURE)
    lineage = Lineage([first, again])
    assert len(lineage) == 1
    assert lineage.best() == first


def test_missing_trials_are_named() -> None:
    with raises(UsageError, "trial 3", "1"):
        Lineage(small()[2:])
    with raises(UsageError, "trial 99"):
        Lineage(small()).ancestry(99)
    with raises(UsageError, "trial 99"):
        Lineage(small()).schedule(99)


def test_export_is_strict_json() -> None:
    exported = json.loads(json.dumps(Lineage(small()).to_json(), allow_nan=False))
    assert exported["schema"] == 1
    assert {node["id"]: node["fitness"] for node in exported["nodes"]}[7] == "nan"
    assert exported["nodes"][4]["state"] == "failed"
    assert {"kind": "jump", "from": 7, "to": 8} in exported["edges"]
    assert {"kind": "parent", "from": 6, "to": 8} in exported["edges"]
    assert len(exported["edges"]) == 7 + 2


def test_a_chain_of_thousands_of_trials() -> None:
    chain = [trial(1, 0, 0, fitness=0.0)]
    for key in range(2, 3_001):
        chain.append(trial(key, 0, key - 1, chain[-1], fitness=float(key % 2000)))
    lineage = Lineage(chain)
    assert len(lineage.ancestry(3_000)) == 3_000
    assert lineage.schedule(3_000).steps == 30_000
    best = lineage.best()
    assert best is not None
    assert best.id == 1_999
    json.dumps(lineage.to_json())


@st.composite
def histories(draw: st.DrawFn) -> list[TrialRecord]:
    """What members may do to each other: continue, jump, start over, break, in any order."""
    size = draw(st.integers(1, 4))
    fitness = st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0, float("nan"), float("inf")])
    heads: dict[int, TrialRecord] = {}
    generations = dict.fromkeys(range(size), 0)
    trials: list[TrialRecord] = []
    for key in range(1, draw(st.integers(0, 25)) + 1):
        member = draw(st.integers(0, size - 1))
        head = heads.get(member)
        parent, jump_from = head, None
        done = [t for t in trials if t.state is JobState.COMPLETED and (head is None or t.id != head.id)]
        if head is not None and done and draw(st.booleans()):
            parent, jump_from = draw(st.sampled_from(done)), head.id
        elif head is not None and draw(st.integers(0, 9)) == 0:
            parent, jump_from = None, head.id
        state = draw(st.sampled_from([JobState.COMPLETED] * 4 + [JobState.FAILED]))
        new = trial(
            key,
            member,
            generations[member],
            parent,
            jump_from=jump_from,
            fitness=draw(fitness),
            lr=draw(st.sampled_from([0.1, 0.2])),
            steps=draw(st.integers(0, 3)),
            state=state,
        )
        trials.append(new)
        if state is JobState.COMPLETED:
            heads[member] = new
            generations[member] += 1
    return trials


@QUICK
@given(histories())
def test_schedules_are_contiguous_and_give_each_segment_its_params(trials: list[TrialRecord]) -> None:
    lineage = Lineage(trials)
    for one in lineage:
        path = lineage.ancestry(one.id)
        assert path[0].parent is None
        assert path[-1] == one
        for before, after in itertools.pairwise(path):
            assert before.reached_step == after.start_step
            assert after.parent == before.id
        schedule = lineage.schedule(one.id)
        for segment in schedule.segments:
            for step in range(segment.start_step, segment.end_step):
                assert schedule(step) == segment.params
        changed = Schedule(schedule.changes())
        assert [changed(s) for s in range(schedule.steps)] == [schedule(s) for s in range(schedule.steps)]
        assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


@QUICK
@given(histories())
def test_the_best_matches_a_plain_search(trials: list[TrialRecord]) -> None:
    eligible = [trial for trial in trials if trial.order not in (None, float("-inf"))]
    assert Lineage(trials).best() == max(eligible, key=lambda t: (t.order or 0.0, -t.id), default=None)
