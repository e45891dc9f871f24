"""Who is in the population: who is youngest, who starts from an import, who joined, and who is retired."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from phyla import machine
from phyla.configuration import to_config
from phyla.controller import Controller, StudyRecords
from phyla.machine import Imported, TrainRules, Update
from phyla.machine.population import explore_after_join, is_at_import, joining
from phyla.records import (
    AttemptState,
    Checkpoint,
    CheckpointState,
    JobKind,
    JobState,
    Maximize,
    Member,
    MemberState,
    Scored,
    StudyState,
)
from phyla.space import Float, Space
from phyla.store import Store, Transaction, open_store
from phyla.strategies import PBT, Context, Start, Wait
from populations import context
from simulation import VirtualClock

READY, DONE = MemberState.READY, MemberState.DONE
RULES = TrainRules(
    space=Space(lr=Float(0.1, 1.0)),
    objective=Maximize("Q"),
    strategy=PBT(population_size=4, steps_per_trial=5, total_steps=20),
)


class Study:
    """A study in memory whose members are written as a test wants them."""

    def __init__(self, *members: dict[str, Any]) -> None:
        self.store: Store = open_store("memory://", clock=VirtualClock())
        self.id = self.store.create_study("s", to_config(RULES, 0), 0, len(members)).id
        with self.transaction() as tx:
            tx.apply([Update(replace(tx.member(index), **given)) for index, given in enumerate(members)])

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self.store.transaction(self.id, exclusive=True) as tx:
            yield tx

    def members(self) -> list[Member]:
        with self.store.reader(self.id) as reader:
            return list(reader.members())


def scored(member: int, order: float | None = None, *, trial: int = 1, **given: Any) -> Scored:
    return Scored(
        trial=trial,
        member=member,
        checkpoint=f"{trial}.1",
        index=0,
        step=5,
        params={"lr": 0.5},
        fitness=order,
        order=order,
        **given,
    )


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ([{}, {}, {}], 0),
        ([{"progress": 5}, {"progress": 4}, {"progress": 4}], 1),
        (
            [{"progress": 5, "generation": 2}, {"progress": 5, "generation": 1}, {"progress": 5, "generation": 1}],
            1,
        ),
        ([{"progress": 5, "generation": 1}, {"progress": 4, "generation": 9}], 1),
        ([{"progress": 1, "state": DONE}, {"progress": 9, "generation": 3}], 1),
        ([{"progress": 9, "state": DONE}, {"progress": 8, "state": DONE}], 1),
        ([{"retired": True}, {"progress": 9}, {"progress": 7}], 2),
        ([{"retired": True, "state": DONE}, {"progress": 9, "state": DONE}], 1),
    ],
)
def test_the_youngest_member_is_the_one_with_most_left_to_train(members: list[dict[str, Any]], found: int) -> None:
    with Study(*members).transaction() as tx:
        assert machine.youngest(tx).index == found


def test_of_nobody_nobody_is_youngest() -> None:
    with Study({"retired": True}).transaction() as tx, pytest.raises(ValueError, match="empty"):
        machine.youngest(tx)


@pytest.mark.parametrize(
    ("first", "awaits"),
    [
        ({}, True),
        ({"head": scored(0)}, False),
        ({"generation": 1}, False),
        ({"state": DONE}, False),
        ({"state": MemberState.RUNNING, "current_trial": 1}, False),
    ],
)
def test_imports_are_awaited_until_the_first_member_has_begun(first: dict[str, Any], awaits: bool) -> None:
    study = Study(first, {"generation": 1})
    records = StudyRecords(study.store, study.id)
    assert study.store.look(study.id, machine.awaits_imports) == awaits
    entry = Imported(name="start-0", origin="/a", step=3, params={}, index=0, digest="d", size_bytes=1)
    assert records.import_checkpoints([entry]) == awaits
    assert not study.store.look(study.id, machine.awaits_imports)


def test_members_start_from_what_is_imported_in_turn() -> None:
    study = Study({}, {}, {})
    imports = [
        Imported(name="start-0", origin="/a", step=30, params={"lr": 0.5}, index=2, digest="d0", size_bytes=10),
        Imported(name="start-1", origin="/b", step=0, params={}, index=0, digest="d1", size_bytes=11),
    ]
    assert StudyRecords(study.store, study.id).import_checkpoints(imports)
    with study.store.reader(study.id) as reader:
        now = reader.now()
        rows = [reader.checkpoint(entry.name) for entry in imports]
        live = reader.checkpoints(CheckpointState.LIVE)
        trials = list(reader.trials())
        members = list(reader.members())
    for row, entry, trial in zip(rows, imports, trials, strict=False):
        assert row is not None
        assert (row.name, row.step, row.identity, row.digest) == (
            entry.name,
            entry.step,
            entry.digest,
            entry.digest,
        )
        assert (row.trial, row.size_bytes, row.created_at, row.index) == (trial.id, entry.size_bytes, now, 0)
    assert len({trial.id for trial in trials}) == len(trials) == 3
    assert [row.name for row in live] == ["start-0", "start-1"]
    for member, trial, entry in zip(members, trials, [*imports, imports[0]], strict=True):
        assert (trial.member, trial.generation, trial.kind, trial.state) == (
            member.index,
            0,
            JobKind.IMPORT,
            JobState.COMPLETED,
        )
        assert (trial.start_step, trial.end_step, trial.reached_step) == (entry.step,) * 3
        assert (trial.checkpoint, trial.checkpoint_index, trial.params) == (entry.name, entry.index, entry.params)
        assert (trial.origin, trial.reason) == (entry.origin, {"decision": "import", "digest": entry.digest})
        assert (trial.created_at, trial.started_at, trial.ended_at, trial.seed) == (now, now, now, 0)
        assert (trial.fitness, trial.order, trial.failures, trial.parent) == (None, None, 0, None)
        head = member.head
        assert head is not None
        assert (head.trial, head.member, head.checkpoint, head.index) == (
            trial.id,
            member.index,
            entry.name,
            entry.index,
        )
        assert (head.step, head.params, head.fitness, head.order) == (entry.step, entry.params, None, None)
        assert (member.state, member.progress, member.generation, member.published) == (READY, 0, 0, None)
        assert is_at_import(member)
        assert not joining(member)


@pytest.mark.parametrize(
    ("given", "is_import", "is_joining"),
    [
        ({}, False, False),
        ({"head": scored(0)}, True, False),
        ({"head": scored(0, 1.0)}, False, False),
        ({"head": scored(0), "generation": 1}, False, False),
        ({"head": scored(1, 1.0)}, False, True),
        ({"head": scored(1, 1.0), "generation": 3, "joined_generation": 3}, False, True),
        ({"head": scored(1, 1.0), "generation": 4, "joined_generation": 3}, False, False),
    ],
)
def test_where_a_member_stands(given: dict[str, Any], is_import: bool, is_joining: bool) -> None:
    (member,) = Study(given).members()
    assert (is_at_import(member), joining(member)) == (is_import, is_joining)


@pytest.mark.parametrize(
    ("members", "gone"),
    [
        ([{}, {}, {}], [2, 1, 0]),
        ([{"states": (scored(0, 3.0),)}, {"states": (scored(1, 1.0),)}, {"states": (scored(2, 2.0),)}], [1, 2, 0]),
        ([{"states": (scored(0, 3.0),)}, {}, {"states": (scored(2, 2.0),)}, {}], [3, 1, 2, 0]),
        ([{"states": (scored(0, 3.0),)}, {"retired": True}, {}], [2, 0]),
    ],
)
def test_who_goes_first_when_the_population_shrinks(members: list[dict[str, Any]], gone: list[int]) -> None:
    with Study(*members).transaction() as tx:
        for count in range(len(gone) + 1):
            assert machine.to_retire(tx, count) == gone[:count]


def test_a_member_that_is_retired_holds_nothing() -> None:
    state = scored(0, 1.0)
    study = Study(
        {"head": state, "states": (state,), "best": state, "measures_left": 2, "broken_trial": 7, "progress": 5},
        {},
    )
    before, other = study.members()
    with study.transaction() as tx:
        tx.apply(machine.retire(tx, 0))
    after = study.members()
    assert after[0] == replace(
        before,
        state=DONE,
        head=None,
        states=(),
        best=None,
        measures_left=0,
        broken_trial=None,
        retired=True,
    )
    assert after[1] == other


@pytest.mark.parametrize("released", [False, True])
def test_the_trial_of_a_member_that_is_retired_is_cancelled(released: bool) -> None:
    study = Study({}, {})
    controller = Controller(study.store, study.id, RULES)
    works, _ = controller.claim("w", 2)
    trial = next(work.trial for work in works if work.trial.member == 0)
    begun = Checkpoint(
        name=f"{trial.id}.1.p1", study=study.id, trial=trial.id, step=2, identity="d", size_bytes=1, created_at=0.0
    )
    controller.save_progress(trial.id, 1, begun)
    if released:
        controller.release(trial.id, 1)
    with study.transaction() as tx:
        tx.apply(machine.retire(tx, 0))
    why = "its member was retired: the population shrank"
    with study.store.reader(study.id) as reader:
        row, attempt, now = reader.trial(trial.id), reader.attempt(trial.id, 1), reader.now()
        assert attempt is not None
        assert (row.state, row.error, row.ended_at, row.progress) == (JobState.CANCELLED, why, now, None)
        ended = (AttemptState.RELEASED, None) if released else (AttemptState.CANCELLED, why)
        assert (attempt.state, attempt.error, attempt.ended_at) == (*ended, now)
        assert reader.member(0).current_trial is None
        assert [one.member for one in reader.trials() if one.state is JobState.RUNNING] == [1]
    with study.transaction() as tx:
        assert len(machine.retire(tx, 0)) == 1, "what was cancelled is not cancelled again"


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({"state": DONE}, READY),
        ({"state": DONE, "retired": True}, DONE),
        ({"state": MemberState.RUNNING, "current_trial": 1}, MemberState.RUNNING),
    ],
)
def test_only_a_member_that_was_called_done_is_made_ready_again(given: dict[str, Any], state: MemberState) -> None:
    study = Study(given)
    with study.transaction() as tx:
        tx.apply(machine.reopen(tx, 0))
    assert study.members()[0].state is state


@pytest.mark.parametrize(("progress", "runs"), [(20, False), (19, True)])
def test_a_study_runs_on_if_anybody_has_something_to_train(progress: int, runs: bool) -> None:
    study = Study({"progress": 20}, {"progress": progress}, {"progress": 1, "retired": True, "state": READY})
    with study.transaction() as tx:
        tx.apply([machine.SetStudyState(StudyState.COMPLETED)])
        tx.apply(machine.reopen_study(tx, RULES))
        assert tx.study().state is (StudyState.RUNNING if runs else StudyState.COMPLETED)
    assert [member.state for member in study.members()] == ([READY] * 3 if runs else [DONE, DONE, READY])


def decided(**given: Any) -> Start:
    head = scored(1, 1.0, trial=4)
    return Start(
        **{
            "weights": head,
            "params": head.params,
            "params_from": 4,
            "steps": 5,
            "reason": {"decision": "x"},
            **given,
        }
    )


def test_a_member_that_joined_explores_where_the_strategy_would_not() -> None:
    head = scored(1, 1.0, trial=4)
    (member,) = Study({"head": head}).members()
    at: Context = context(np.random.default_rng(0))
    donor = {"member": 1, "trial": 4, "step": 5}
    same: Any = explore_after_join(decided(), member, RULES, at)
    assert same.params != head.params
    assert (same.weights, same.params_from, same.steps, same.exploited) == (head, 4, 5, True)
    assert (same.reason["decision"], same.reason["donor"]) == ("join", donor)
    changed = same.reason["changes"]["lr"]
    assert (changed["from"], changed["to"]) == (0.5, same.params["lr"])
    for other in (decided(params={"lr": 0.75}), decided(weights=scored(0, 2.0, trial=3))):
        found: Any = explore_after_join(other, member, RULES, at)
        assert found == replace(other, exploited=True, reason={"decision": "x", "joined": donor})
    wait = Wait(reason={})
    assert explore_after_join(wait, member, RULES, at) is wait
    start = decided()
    assert explore_after_join(start, replace(member, head=None), RULES, at) is start
