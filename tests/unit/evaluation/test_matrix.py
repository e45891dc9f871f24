"""What became of an eval task, from its records."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naive_store import backlog_of
from phyla import plugins
from phyla.evaluation import CellStatus, EvalTask, Lag, Policy, Suite, SuiteOutline
from phyla.evaluation.matrix import causes, cell, lag
from phyla.evaluation.suite import TaskOutline, outlines
from phyla.records import (
    Checkpoint,
    CheckpointState,
    EvalJob,
    Group,
    GroupState,
    JobState,
    Maximize,
    Minimize,
)

SUITE = SuiteOutline(name="s", tasks=(TaskOutline(name="t"),))


def seen(number: int = 0, **more: object) -> Checkpoint:
    fields = {"id": number + 1, "study": 1, "number": number, "name": f"c{number}", "step": 10 * number}
    return Checkpoint(**{**fields, "identity": "i", "created_at": 1.0, "written_at": 0.0, **more})  # type: ignore[arg-type]


def group(of: int = 0, state: GroupState = GroupState.QUEUED, **more: object) -> Group:
    return Group(study=1, suite="s", seen=of + 1, state=state, created_at=1.0, **more)  # type: ignore[arg-type]


def shard(state: JobState, *, reused: bool = False, error: str | None = None) -> EvalJob:
    return EvalJob(study=1, task="t", identity="x", state=state, reused=reused, error=error, created_at=1.0)


P, R, C, F, X = (
    JobState.PENDING,
    JobState.RUNNING,
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.CANCELLED,
)


@pytest.mark.parametrize(
    ("state", "shards", "status"),
    [
        (GroupState.QUEUED, [P, P], CellStatus.QUEUED),
        (GroupState.QUEUED, [C, P], CellStatus.QUEUED),
        (GroupState.QUEUED, [C, R, P], CellStatus.RUNNING),
        (GroupState.COMPLETE, [C, C], CellStatus.DONE),
        (GroupState.QUEUED, [F, P], CellStatus.FAILED),
        (GroupState.PARTIAL, [F, C], CellStatus.FAILED),
        (GroupState.GONE, [C, X], CellStatus.GONE),
        (GroupState.GONE, [C, C], CellStatus.DONE),
        (GroupState.SKIPPED, [], CellStatus.SKIPPED),
        (GroupState.SKIPPED, [X], CellStatus.SKIPPED),
        (GroupState.COMPLETE, [], CellStatus.MISSING),
    ],
)
def test_the_status_of_all_shards(state: GroupState, shards: list[JobState], status: CellStatus) -> None:
    made = cell(seen(), group(state=state, why="because"), SUITE, "t", [shard(one) for one in shards])
    assert made.status is status
    if status in (CellStatus.SKIPPED, CellStatus.GONE):
        assert made.why == "because"


def test_reused_is_only_what_was_never_computed() -> None:
    both = [shard(C, reused=True), shard(C, reused=True)]
    assert cell(seen(), group(), SUITE, "t", both).status is CellStatus.REUSED
    assert cell(seen(), group(), SUITE, "t", [both[0], shard(C)]).status is CellStatus.DONE


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (CheckpointState.READY, CellStatus.MISSING),
        (CheckpointState.QUARANTINED, CellStatus.QUARANTINED),
        (CheckpointState.GONE, CellStatus.GONE),
    ],
)
def test_a_checkpoint_without_a_group(state: CheckpointState, status: CellStatus) -> None:
    assert cell(seen(state=state, error="e"), None, SUITE, "t", []).status is status


def test_results_that_are_not_there_are_a_failure() -> None:
    made = cell(seen(), group(state=GroupState.COMPLETE), SUITE, "t", [shard(C)], [], plugins.loaded_class)
    assert (made.status, made.why) == (CellStatus.FAILED, "its results are not in the ledger")


def test_reasons_that_differ_in_numbers_are_told_once_failures_first() -> None:
    cells = [
        cell(seen(n), group(n, GroupState.SKIPPED, why=f"throttled for {n}.5 s"), SUITE, "t", []) for n in range(3)
    ]
    cells.append(cell(seen(9), group(9), SUITE, "t", [shard(F, error="Traceback\nValueError: bad")]))
    failed, skipped = causes(cells)
    assert (failed.status, failed.tasks, failed.why) == (CellStatus.FAILED, ("t",), "ValueError: bad")
    assert (skipped.why, [one.number for one in skipped.checkpoints]) == ("throttled for 2.5 s", [0, 1, 2])


def test_eval_tasks_that_fail_alike_on_the_same_checkpoints_are_one_cause() -> None:
    whys = {"a": "prepare=f failed: no shards in 10", "b": "prepare=f failed: no shards in 10", "c": "other"}
    cells = [cell(seen(1), group(1), SUITE, name, [shard(F, error=why)]) for name, why in whys.items()]
    cells.append(cell(seen(2), group(2), SUITE, "c", [shard(F, error="prepare=f failed: no shards in 20")]))
    known = {cause.tasks: [checkpoint.number for checkpoint in cause.checkpoints] for cause in causes(cells)}
    assert known[("a", "b")] == [1]


def test_a_group_whose_aggregation_failed_says_so_once() -> None:
    why = "its aggregation failed: suite 's' has no aggregate 'y_mean'"
    cells = []
    for n, shards in enumerate([[shard(C)], [shard(C)], [shard(F, error="ValueError: bad")]]):
        ended = group(n, GroupState.PARTIAL, id=n + 1, why=why)
        cells += [cell(seen(n), ended, SUITE, "a", [shard(C)]), cell(seen(n), ended, SUITE, "t", shards)]
    found = {(cause.tasks, cause.why): [one.number for one in cause.checkpoints] for cause in causes(cells)}
    assert found == {((), why): [0, 1], (("t",), "ValueError: bad"): [2]}


def test_an_outline_is_read_without_the_functions() -> None:
    suite = Suite("s", (EvalTask("a", print, tags=("in",), samples=5),), objective=Minimize("in/loss_mean"))
    raw = {"suites": [plugins.encode(suite, lambda function: f"nowhere:{function.__name__}")]}
    (outline,) = outlines(raw)
    assert outline == SuiteOutline(
        name="s",
        tasks=(TaskOutline(name="a", tags=("in",), samples=5),),
        objective="in/loss_mean",
        maximize=False,
    )
    assert outline.metric == "loss"
    up = Suite("s", (EvalTask("a", print),), objective=Maximize("acc_mean"))
    (other,) = outlines({"suites": [plugins.encode(up, lambda function: "nowhere:f")]})
    assert other.maximize
    assert outlines({}) == ()


def test_stored_studies_name_suites_eval_tasks_and_policies_by_their_modules() -> None:
    suite = Suite("s", (EvalTask("a", print),), objective=Maximize("x_mean"), policy=Policy(every=2))
    raw = json.dumps(plugins.encode(suite, plugins.reference_here))
    assert set(re.findall(r'"plugin": "([^"]*)"', raw)) == {
        "phyla.evaluation.suite:Suite",
        "phyla.evaluation.suite:EvalTask",
        "phyla.evaluation.policy:Policy",
        "phyla.objectives/maximize",
    }


@given(st.lists(st.sampled_from(list(GroupState)), max_size=12))
def test_lag_counts_what_waits_above_the_newest_complete(states: list[GroupState]) -> None:
    groups = [group(number, state) for number, state in enumerate(states)]
    found = lag("s", backlog_of(groups[::-1]), lambda one: seen(one - 1), now=100.0)
    complete = max((n for n, state in enumerate(states) if state is GroupState.COMPLETE), default=-1)
    behind = [n for n, state in enumerate(states) if state is GroupState.QUEUED and n > complete]
    assert found.checkpoints == len(behind)
    assert found.waiting == states.count(GroupState.QUEUED)
    if behind:
        assert found.newest == 10 * behind[-1]
        assert found.steps == 10 * (behind[-1] - max(complete, 0))
        assert found.oldest_s == 99.0
    else:
        assert (found.steps, found.oldest_s) == (0, 0.0)


def test_lag_over_a_rewind_or_unknown_steps_has_no_steps() -> None:
    groups = [group(0, GroupState.COMPLETE), group(1)]

    def found(newest: Checkpoint) -> Lag:
        return lag("s", backlog_of(groups), lambda one: seen() if one == 1 else newest, now=1.0)

    assert found(seen(1)).steps == 10
    assert found(seen(1, branch=1)).steps is None
    assert found(seen(1, step=-1)).steps is None
