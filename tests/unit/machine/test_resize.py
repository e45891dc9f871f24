"""The population grows and shrinks while its study goes on, and its budget stays exact."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phyla
from effort import rarely, times
from facts import check_facts, raises
from phyla.controller import Controller, StudyChanges
from phyla.errors import ConfigurationError, LeaseLost
from phyla.machine import Claimed, Ended, Failure, TrainRules
from phyla.records import (
    AttemptState,
    JobState,
    Maximize,
    Member,
    MemberState,
    StudyState,
    TrialRecord,
)
from phyla.space import Float, Space
from phyla.strategies import Strategy, ranked
from simulation import Simulation

STEPS, TRIALS = 5, 8


def strategies(size: int) -> list[Strategy]:
    common: Any = {"population_size": size, "steps_per_trial": STEPS, "total_steps": TRIALS * STEPS}
    return [
        phyla.PBT(**common, exploit=phyla.Truncation(0.3)),
        phyla.PBT(**common, exploit=phyla.Truncation(0.3), quorum=1.0),
        phyla.PBT(**common, exploit=phyla.strategies.Backtrack()),
        phyla.PBT(**common, exploit=phyla.strategies.TTest(), ready_interval=STEPS),
        phyla.PBT(**common, exploit=phyla.strategies.BinaryTournament(), quorum=1.0),
        phyla.InitiatorPBT(**common),
        phyla.InitiatorPBT(**common, gate=False),
    ]


def rules(strategy: Strategy) -> TrainRules:
    space = Space(lr=Float(0.01, 1.0, log=True))
    return TrainRules(space=space, objective=Maximize("Q"), strategy=strategy, max_broken=1000)


def train(parent: Any, trial: TrialRecord) -> tuple[Any, float]:
    lr: Any = trial.params["lr"]
    value = (parent or 0.0) + lr
    return value, value


class Resized:
    """A study whose population changes between two answers."""

    def __init__(self, strategy: Strategy) -> None:
        self.simulation = Simulation(rules(strategy), train)
        self.store, self.study = self.simulation.store, self.simulation.study
        self.controllers = [self.simulation.controller]
        self.size = strategy.population_size
        self.quorum = strategy.quorum
        self.busy: dict[str, Claimed] = {}
        self.lost = 0

    def resize(self, size: int, *, fresh: bool = False, **more: Any) -> None:
        strategy: Any = self.controllers[-1].population.strategy
        new = Controller(self.store, self.study.id, rules(replace(strategy, population_size=size, **more)))
        changes = StudyChanges(self.store, self.study.id, new.population)
        changes.change({"size": size}, {"strategy.population_size": (self.size, size)}, fresh=fresh)
        # Workers that run keep the rules they have read; others read the new ones.
        self.controllers.append(new)
        self.size = size

    def step(self, rng: np.random.Generator, failure_rate: float = 0.0) -> bool:
        """Let one of three workers go on; return False at the end."""
        name = f"worker-{rng.integers(3)}"
        controller = self.controllers[int(rng.integers(len(self.controllers)))]
        work = self.busy.pop(name, None)
        if work is None:
            claimed, rest = controller.claim(name)
            if claimed:
                self.busy[name] = claimed[0]
            return not (isinstance(rest, Ended) and not self.busy)
        try:
            if rng.random() < failure_rate:
                controller.fail(Failure(job=work.trial.id, token=work.trial.token, error="simulated"))
                return True
            answers, _, _ = controller.complete([self.simulation.completion(work.trial)])
            self.lost += isinstance(answers[0], LeaseLost)
        except LeaseLost:
            self.lost += 1
        return True

    def members(self) -> list[Member]:
        with self.store.reader(self.study.id) as reader:
            return list(reader.members())

    def trials(self) -> list[TrialRecord]:
        with self.store.reader(self.study.id) as reader:
            return list(reader.trials())

    def finish(self, rng: np.random.Generator, failure_rate: float = 0.0) -> None:
        for _ in range(100_000):
            if not self.step(rng, failure_rate):
                return
        raise AssertionError("it never ends")


def check(resized: Resized, *, active: int) -> None:
    """Everybody who is left has trained to the end, and every trial is accounted for."""
    members, trials = resized.members(), resized.trials()
    assert sum(not member.retired for member in members) == active
    completed = [row for row in trials if row.state is JobState.COMPLETED]
    for member in members:
        own = sorted((row for row in completed if row.member == member.index), key=lambda row: row.generation)
        assert len(own) == member.generation - member.joined_generation
        assert [row.generation for row in own] == list(range(member.joined_generation, member.generation))
        trained = sum(STEPS for _ in own)
        assert trained <= member.progress - member.joined_steps or member.retired
        if resized.quorum == 1:
            assert trained == member.progress - member.joined_steps
        if member.retired:
            assert (member.state, member.head, member.published) == (MemberState.DONE, None, None)
        else:
            assert member.progress == TRIALS * STEPS
    with resized.store.reader(resized.study.id) as reader:
        assert reader.study().state is StudyState.COMPLETED
        assert reader.study().population_size == reader.study().population_size == len(members)
        assert reader.counts()["completed"] == sum(m.generation - m.joined_generation for m in members)
        assert {scored.member for scored in ranked([one for one in members if not one.retired])} == {
            member.index for member in members if not member.retired
        }
        assert not reader.running()
    assert max(Counter((row.member, row.generation) for row in completed).values()) == 1


@settings(max_examples=times(8, 80))
@given(
    which=st.integers(0, len(strategies(1)) - 1),
    start=st.integers(1, 6),
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8), st.booleans()), max_size=3),
    seed=st.integers(0, 1000),
    failure_rate=st.sampled_from([0.0, 0.1]),
)
def test_the_budget_is_exact_whenever_it_is_resized(
    which: int, start: int, sizes: list[tuple[int, int, bool]], seed: int, failure_rate: float
) -> None:
    resized = Resized(strategies(start)[which])
    rng = np.random.default_rng(seed)
    for turns, size, fresh in sizes:
        for _ in range(turns):
            if not resized.step(rng, failure_rate):
                break
        if min(m.progress for m in resized.members() if not m.retired) >= TRIALS * STEPS:
            break
        resized.resize(size, fresh=fresh)
    resized.finish(rng, failure_rate)
    check(resized, active=resized.size)


@pytest.mark.parametrize("which", [0, 1, 2, rarely(3), rarely(4), 5, rarely(6)])
def test_new_members_stand_where_the_others_are_and_explore(which: int) -> None:
    resized = Resized(strategies(4)[which])
    rng = np.random.default_rng(0)
    while min(member.generation for member in resized.members()) < 3:
        resized.step(rng)
    before = resized.members()
    best = ranked(before)[:2]
    resized.resize(7)
    added = resized.members()[4:]
    least = min(before, key=lambda member: member.progress)
    for number, member in enumerate(added):
        assert (member.progress, member.generation) == (least.progress, least.generation)
        assert member.states == ()
        assert member.head is not None
        if resized.quorum == 0:
            assert member.head == best[number % 2], "the better half, the best first, over and over"
        else:
            assert member.head.progress <= least.progress, "not ahead of the others"
        assert member.published is None
    resized.finish(rng)
    check(resized, active=7)
    for member in added:
        first = next(row for row in resized.trials() if row.member == member.index)
        assert member.head is not None
        assert first.reason.get("joined" if which >= 5 else "donor") is not None
        if which < 5:
            assert (first.parent, first.jump_from) == (member.head.trial, None)
            assert first.params != member.head.params
            check_facts(phyla.strategies.describe(first.reason), f"member {member.head.member}")


def test_fresh_ones_start_from_nothing() -> None:
    resized = Resized(strategies(2)[0])
    rng = np.random.default_rng(0)
    for _ in range(12):
        resized.step(rng)
    resized.resize(4, fresh=True)
    resized.finish(rng)
    check(resized, active=4)
    firsts = [next(row for row in resized.trials() if row.member == index) for index in (2, 3)]
    assert [(row.parent, row.start_step) for row in firsts] == [(None, 0)] * 2


def test_before_anybody_has_a_score_new_members_start_fresh() -> None:
    resized = Resized(strategies(2)[0])
    resized.resize(5)
    resized.finish(np.random.default_rng(0))
    check(resized, active=5)
    assert len(resized.trials()) <= 5 * TRIALS


@pytest.mark.parametrize("which", [0, 1, 5])
def test_the_worst_are_retired_and_their_work_is_cancelled(which: int) -> None:
    resized = Resized(strategies(5)[which])
    rng = np.random.default_rng(1)
    while min(member.generation for member in resized.members()) < 2 or len(resized.busy) < 3:
        resized.step(rng)
    places = [scored.member for scored in ranked(resized.members())]
    running = {work.trial.member: work.trial for work in resized.busy.values()}
    resized.resize(2)
    members = resized.members()
    assert [index for index in places if not members[index].retired] == places[:2]
    rows = {row.id: row for row in resized.trials()}
    with resized.store.reader(resized.study.id) as reader:
        for index in places[2:]:
            if index in running:
                trial = running[index]
                assert rows[trial.id].state is JobState.CANCELLED
                attempt = reader.attempt(trial.id, trial.token)
                assert attempt is not None
                assert attempt.state is AttemptState.CANCELLED
        held = reader.held_checkpoints()
    cancelled = sum(row.state is JobState.CANCELLED for row in rows.values())
    assert cancelled == len(set(running) & set(places[2:]))
    for index in places[:2]:
        if index in running:
            assert rows[running[index].id].state is JobState.RUNNING, "others are untouched"
    newest = {row.member: row.checkpoint for row in rows.values() if row.state is JobState.COMPLETED}
    used = {row.parent_checkpoint for row in rows.values() if row.state is JobState.RUNNING}
    for index in places[2:]:
        assert newest[index] not in held - used, "nothing of it is held"
    collectable = {row.name for row in resized.controllers[-1].retention().collectable}
    if which != 5:
        # Whole generations are kept for initiators; one may be the best there is.
        assert len({newest[index] for index in places[2:]} - used - collectable) <= 1
    resized.finish(rng)
    assert resized.lost == cancelled
    check(resized, active=2)


def test_a_barrier_opens_when_those_it_waits_for_are_retired() -> None:
    resized = Resized(strategies(3)[1])
    controller = resized.controllers[0]
    claimed, _ = controller.claim("a", 3)
    for work in claimed[:2]:
        controller.complete([resized.simulation.completion(work.trial)])
    assert controller.claim("a")[0] == []
    resized.resize(2)
    assert [member.retired for member in resized.members()] == [False, False, True]
    (opened,), _ = resized.controllers[-1].claim("a")
    assert opened.trial.generation == 1
    resized.controllers[-1].release(opened.trial.id, opened.trial.token)
    resized.finish(np.random.default_rng(0))
    check(resized, active=2)


def test_members_that_were_retired_stay_so_when_the_study_is_extended() -> None:
    resized = Resized(strategies(4)[0])
    rng = np.random.default_rng(0)
    for _ in range(30):
        resized.step(rng)
    resized.resize(2)
    resized.finish(rng)
    resized.resize(3, total_steps=2 * TRIALS * STEPS)
    # Nobody works on a study that has ended, so all read the new settings.
    del resized.controllers[:-1]
    assert [member.retired for member in resized.members()].count(True) == 2
    joined = resized.members()[4]
    assert joined.joined_steps == TRIALS * STEPS
    while resized.step(rng):
        pass
    spent = [member.progress for member in resized.members() if not member.retired]
    assert spent == [2 * TRIALS * STEPS] * 3


def test_a_study_that_has_nothing_to_train_cannot_grow() -> None:
    resized = Resized(strategies(2)[0])
    resized.finish(np.random.default_rng(0))
    with raises(ConfigurationError, "total_steps"):
        resized.resize(3)
    assert len(resized.members()) == 2
    with resized.store.reader(resized.study.id) as reader:
        assert reader.study().state is StudyState.COMPLETED
        assert "size" not in reader.study().config
