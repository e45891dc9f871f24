"""Checkpoints whose bytes vanished behind the study's back."""

from dataclasses import replace

from phyla.machine import Claimed, Rules, SetCheckpointState, UpdateMember
from phyla.population import PBT, Perturb, Truncation
from phyla.records import CheckpointState, Maximize
from phyla.space import Float, Space
from simulation import Simulation


def simulation(size: int) -> Simulation:
    strategy = PBT(population_size=size, steps_per_trial=1, total_steps=3, exploit=None)
    rules = Rules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=strategy)
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
        tx.apply([SetCheckpointState(lost, CheckpointState.LOST), UpdateMember(replace(member, measures_left=2))])
    (work,), _ = made.controller.claim("worker")
    assert (work.trial.parent, work.trial.kind, work.trial.reason["lost"]) == (None, "train", lost)
    with made.store.reader(made.study.id) as reader:
        assert reader.member(0).measures_left == 0


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
    made.controller.set_checkpoints([shared.name], CheckpointState.LOST)
    works, _ = made.controller.claim("worker", size)
    assert {work.trial.parent for work in works} == {claimed[0].trial.id}


def test_a_member_whose_donor_vanished_trains_on_its_own_weights_with_its_own_hyperparameters() -> None:
    strategy = PBT(
        population_size=2,
        steps_per_trial=1,
        total_steps=3,
        exploit=Truncation(0.5),
        explore=Perturb(factors=(0.5,)),
    )
    rules = Rules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=strategy)
    made = Simulation(rules, lambda parent, trial: (None, float(-trial.member)))
    donor, own = (work.trial for work in complete_first_generation(made, 2))
    # The row still says that the donor may be taken over; taking it is what fails.
    made.controller.set_checkpoints([f"{donor.id}.{donor.token}"], CheckpointState.LOST)
    claimed, _ = made.controller.claim("worker", 2)
    (child,) = (work.trial for work in claimed if work.trial.member == own.member)
    assert (child.parent, child.parent_checkpoint, child.start_step) == (own.id, f"{own.id}.{own.token}", 1)
    assert (child.params, child.params_from) == (own.params, own.id)
    assert (child.jump_from, child.exploited, child.reason["decision"]) == (None, False, "continue")
