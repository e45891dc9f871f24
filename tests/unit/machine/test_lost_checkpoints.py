"""Checkpoints whose bytes vanished behind the study's back."""

from dataclasses import replace

import pytest

from facts import raises
from phyla.controller import Controller, StudyRecords
from phyla.errors import LeaseLost, UsageError
from phyla.machine import Claimed, Failure, SetCheckpointState, TrainRules, Update
from phyla.records import CheckpointState, Maximize, StudyState
from phyla.space import Float, Space
from phyla.strategies import PBT, Perturb, Truncation
from simulation import Simulation


def simulation(size: int) -> Simulation:
    strategy = PBT(population_size=size, steps_per_trial=1, total_steps=3, exploit=None)
    rules = TrainRules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=strategy)
    return Simulation(rules, lambda parent, trial: (None, float(trial.member)))


def complete_first_generation(made: Simulation, size: int) -> list[Claimed]:
    claimed, _ = made.controller.claim("worker", size)
    made.controller.complete([made.completion(work.trial) for work in claimed])
    return claimed


def test_a_lost_checkpoint_that_was_to_be_measured_does_not_hold_up_the_claim() -> None:
    made = simulation(1)
    complete_first_generation(made, 1)
    with made.store.transaction(made.study.id, exclusive=True) as tx:
        member = tx.locked_member(0)
        assert member.head is not None
        lost = member.head.checkpoint
        tx.apply([SetCheckpointState(lost, CheckpointState.LOST), Update(replace(member, measures_left=2))])
    (work,), _ = made.controller.claim("worker")
    assert (work.trial.parent, work.trial.kind, work.trial.reason["lost"]) == (None, "train", lost)
    with made.store.reader(made.study.id) as reader:
        assert reader.member(0).measures_left == 0


def test_a_checkpoint_that_is_lost_while_it_is_measured_is_not_measured_again() -> None:
    made = simulation(1)
    complete_first_generation(made, 1)
    with made.store.transaction(made.study.id, exclusive=True) as tx:
        tx.apply([Update(replace(tx.locked_member(0), measures_left=2))])
    (work,), _ = made.controller.claim("worker")
    name = work.trial.parent_checkpoint
    assert work.trial.kind == "measure"
    made.controller.fail(Failure(job=work.trial.id, token=1, error="cannot start", gone=name))
    with made.store.reader(made.study.id) as reader:
        member = reader.member(0)
        assert reader.trial(work.trial.id).state == "cancelled"
    assert (member.state, member.measures_left, member.broken_trial) == ("ready", 0, None)


def test_progress_of_a_trial_that_has_ended_is_not_needed() -> None:
    made = simulation(1)
    (work,) = complete_first_generation(made, 1)
    late = made.completion(work.trial).checkpoint
    assert late is not None
    with raises(LeaseLost, "trial 1"):
        made.controller.save_progress(work.trial.id, 1, replace(late, name="1.1.p1"))
    with raises(LeaseLost, "job 99"):
        made.controller.save_progress(99, 1, replace(late, name="1.1.p1"))


def test_recovery_looks_past_all_who_shared_the_lost_checkpoint() -> None:
    size = 6
    made = simulation(size)
    claimed, _ = made.controller.claim("worker", size)
    done = [made.completion(work.trial) for work in claimed]
    shared = done[-1].checkpoint
    # Everybody but member 0, who is worst, is in one checkpoint.
    done[1:] = [replace(one, checkpoint=shared, checkpoint_index=i) for i, one in enumerate(done[1:])]
    made.controller.complete(done)
    assert shared is not None
    StudyRecords(made.store, made.study.id).set_checkpoints([shared.name], CheckpointState.LOST)
    works, _ = made.controller.claim("worker", size)
    assert {work.trial.parent for work in works} == {claimed[0].trial.id}


@pytest.mark.parametrize("kept", [True, False], ids=["older states are kept", "only the last ones are"])
def test_recovery_after_the_others_have_ended_trains_nothing_beyond_the_end(kept: bool) -> None:
    size, last = 4, 3
    made = simulation(size)
    for _ in range(last - 1):
        complete_first_generation(made, size)
    mine, *others = sorted(made.controller.claim("worker", size)[0], key=lambda work: work.trial.member)
    made.controller.complete([made.completion(work.trial) for work in others])
    if not kept:
        for work in others:
            StudyRecords(made.store, made.study.id).set_unusable(work.trial.parent_checkpoint or "", None)
    lost = mine.trial.parent_checkpoint
    made.controller.fail(Failure(job=mine.trial.id, token=1, error="cannot start", gone=lost))
    with made.store.transaction(made.study.id, exclusive=True) as tx:
        # Its older states have been lost before.
        tx.apply([Update(replace(tx.locked_member(0), states=()))])
    (work,), _ = made.controller.claim("worker")
    assert work.trial.reason["decision"] == "recover"
    # The others are seen as they were when they had come as far.
    assert (work.trial.start_step, work.trial.end_step) == ((last - 1, last) if kept else (0, 1))
    made.controller.complete([made.completion(work.trial)])
    claimed, rest = made.controller.claim("worker")
    assert not claimed
    assert rest.state is StudyState.COMPLETED  # type: ignore[union-attr]
    with made.store.reader(made.study.id) as reader:
        assert [member.progress for member in reader.members()] == [last] * size


@pytest.mark.parametrize(
    ("damage", "state", "told"),
    [(None, CheckpointState.LOST, "lost"), ("a byte differs", CheckpointState.DAMAGED, "damaged")],
)
def test_a_parent_that_cannot_be_used_is_no_failure_of_training(
    damage: str | None, state: CheckpointState, told: str
) -> None:
    made = simulation(2)
    complete_first_generation(made, 2)
    (work,), _ = made.controller.claim("worker")
    name = work.trial.parent_checkpoint
    assert name is not None
    failure = Failure(job=work.trial.id, token=1, error="cannot start", gone=name, damage=damage)
    made.controller.fail(failure)
    with made.store.reader(made.study.id) as reader:
        row = reader.checkpoint(name)
        assert row is not None
        assert (row.state, row.error) == (state, damage)
        assert [one.name for one in reader.checkpoints(CheckpointState.DAMAGED)] == ([name] if damage else [])
        trial = reader.trial(work.trial.id)
        assert (trial.state, trial.failures, trial.error) == ("cancelled", 0, "cannot start")
        attempt = reader.attempt(work.trial.id, 1)
        assert attempt is not None
        assert (attempt.state, attempt.error) == ("cancelled", "cannot start")
        assert trial.ended_at == attempt.ended_at == reader.now()
        assert reader.broken_in_a_row() == 0
        member = reader.member(work.trial.member)
        assert (member.replacements, member.published) == (0, None)
        assert (member.state, member.current_trial, member.broken_trial) == ("ready", None, work.trial.id)
        assert name not in {one.name for one in reader.checkpoints(CheckpointState.LIVE)}
    claimed, _ = made.controller.claim("worker", 2)
    again = next(one.trial for one in claimed if one.trial.member == work.trial.member)
    assert again.parent_checkpoint != name
    assert again.replaces == work.trial.id
    assert again.reason[told] == name
    (late,), _, _ = made.controller.complete([made.completion(work.trial)])
    assert isinstance(late, LeaseLost)


@pytest.mark.parametrize(
    ("damage", "state"), [(None, CheckpointState.LOST), ("a byte differs", CheckpointState.DAMAGED)]
)
def test_a_trial_whose_progress_cannot_be_used_begins_again(damage: str | None, state: CheckpointState) -> None:
    made = simulation(1)
    strategy = PBT(population_size=1, steps_per_trial=4, total_steps=8, exploit=None)
    controller = Controller(made.store, made.study.id, replace(made.controller.population, strategy=strategy))
    (work,), _ = controller.claim("worker")
    done = made.completion(work.trial).checkpoint
    assert done is not None
    controller.save_progress(work.trial.id, 1, replace(done, name="1.1.p1", step=2))
    controller.release(work.trial.id, 1)
    (again,), _ = controller.claim("other")
    assert (again.trial.progress, again.trial.progress_step, again.trial.token) == ("1.1.p1", 2, 2)
    failure = Failure(job=work.trial.id, token=2, error="cannot resume", gone="1.1.p1", damage=damage)
    controller.fail(failure)
    with made.store.reader(made.study.id) as reader:
        trial, attempt, row = reader.trial(1), reader.attempt(1, 2), reader.checkpoint("1.1.p1")
        assert row is not None
        assert attempt is not None
        assert (trial.state, trial.progress, trial.progress_step) == ("pending", None, None)
        assert (trial.worker, trial.failures, trial.ended_at) == (None, 0, None)
        assert (attempt.state, attempt.error) == ("released", "cannot resume")
        assert (row.state, row.error) == (state, damage)
        assert reader.member(0).current_trial == 1
    (afresh,), _ = controller.claim("worker")
    assert (afresh.trial.id, afresh.trial.token, afresh.trial.progress) == (1, 3, None)


@pytest.mark.parametrize(("damage", "state"), [(None, CheckpointState.LOST), ("flip", CheckpointState.DAMAGED)])
def test_what_is_found_damaged_is_no_donor_any_more(damage: str | None, state: CheckpointState) -> None:
    made = simulation(2)
    complete_first_generation(made, 2)
    with made.store.reader(made.study.id) as reader:
        before = reader.members()
    names = [member.head.checkpoint for member in before if member.head]
    for why in (damage, "something else"):
        StudyRecords(made.store, made.study.id).set_unusable(names[0], why)
    StudyRecords(made.store, made.study.id).set_unusable("nobody's", damage)
    with made.store.reader(made.study.id) as reader:
        row, other = reader.checkpoint(names[0]), reader.checkpoint(names[1])
        members = reader.members()
    assert row is not None
    assert other is not None
    assert (row.state, row.error) == (state, damage)
    assert (other.state, other.error) == (CheckpointState.LIVE, None)
    assert (members[0].published, members[0].states) == (None, ())
    assert members[1] == before[1]


def test_a_checkpoint_that_a_trial_does_not_start_from_is_none_of_its_business() -> None:
    made = simulation(2)
    complete_first_generation(made, 2)
    (work,), _ = made.controller.claim("worker")
    with made.store.reader(made.study.id) as reader:
        other = next(
            row.name
            for row in reader.checkpoints(CheckpointState.LIVE)
            if row.name != work.trial.parent_checkpoint
        )
    failure = Failure(job=work.trial.id, token=1, error="x", gone=other, damage="a byte differs")
    made.controller.fail(failure)
    with made.store.reader(made.study.id) as reader:
        assert reader.checkpoints(CheckpointState.DAMAGED) == []
        assert reader.trial(work.trial.id).failures == 1


def test_progress_beyond_the_end_of_a_trial_is_refused() -> None:
    made = simulation(1)
    (work,), _ = made.controller.claim("worker")
    done = made.completion(work.trial)
    assert done.checkpoint is not None
    beyond = replace(done.checkpoint, name="1.1.p1", step=work.trial.end_step + 1)
    with raises(UsageError, "save_progress(step=2)", "trial 1", "step 0", "step 1"):
        made.controller.save_progress(work.trial.id, 1, beyond)
    with made.store.reader(made.study.id) as reader:
        assert reader.checkpoint("1.1.p1") is None
        assert reader.member(0).progress == 0
    made.controller.complete([done])
    with made.store.reader(made.study.id) as reader:
        assert reader.member(0).progress == 1


def test_a_member_whose_donor_vanished_trains_on_its_own_weights_with_its_own_hyperparameters() -> None:
    strategy = PBT(
        population_size=2,
        steps_per_trial=1,
        total_steps=3,
        exploit=Truncation(0.5),
        explore=Perturb(factors=(0.5,)),
    )
    rules = TrainRules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=strategy)
    made = Simulation(rules, lambda parent, trial: (None, float(-trial.member)))
    donor, own = (work.trial for work in complete_first_generation(made, 2))
    # The row still says that the donor may be taken over; taking it is what fails.
    StudyRecords(made.store, made.study.id).set_checkpoints([f"{donor.id}.{donor.token}"], CheckpointState.LOST)
    claimed, _ = made.controller.claim("worker", 2)
    (child,) = (work.trial for work in claimed if work.trial.member == own.member)
    assert (child.parent, child.parent_checkpoint, child.start_step) == (own.id, f"{own.id}.{own.token}", 1)
    assert (child.params, child.params_from) == (own.params, own.id)
    assert (child.jump_from, child.exploited, child.reason["decision"]) == (None, False, "continue")
