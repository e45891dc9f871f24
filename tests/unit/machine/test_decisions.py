"""After an exploit, weights and hyperparameters come from the trial whose score was compared."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from effort import rarely
from facts import check_facts
from phyla.controller import StudyRecords
from phyla.errors import LeaseLost, StoreBusy
from phyla.integrations.optuna_search import Optuna
from phyla.machine import Claimed, Completion, Ended, Failure, Imported, TrainRules
from phyla.records import (
    CheckpointState,
    JobKind,
    JobState,
    JsonObject,
    Maximize,
    Member,
    MemberState,
    StudyState,
    TrialRecord,
)
from phyla.space import Float, Int, Space
from phyla.strategies import (
    ASHA,
    PBT,
    Context,
    Decision,
    GridSearch,
    Measure,
    Perturb,
    RandomSearch,
    Start,
    Stop,
    Strategy,
    Truncation,
    Wait,
    lowest_generation,
)
from simulation import Simulation

SPACE = Space(lr=Float(0.1, 1.0))


def noisy(parent: Any, trial: TrialRecord) -> tuple[Any, float]:
    return (trial.id,), float(np.random.default_rng(trial.seed).normal())


def make(strategy: Any, train: Any = noisy, **options: Any) -> Simulation:
    rules = TrainRules(space=SPACE, objective=Maximize("Q"), strategy=strategy, **options)
    return Simulation(rules, train)


def trials(simulation: Simulation) -> dict[int, TrialRecord]:
    with simulation.store.reader(simulation.study.id) as reader:
        return {trial.id: trial for trial in reader.trials()}


def members(simulation: Simulation) -> list[Member]:
    with simulation.store.reader(simulation.study.id) as reader:
        return list(reader.members())


def claim(simulation: Simulation, worker: str = "w") -> Claimed:
    claimed, rest = simulation.controller.claim(worker)
    assert claimed, rest
    return claimed[0]


def givers_up() -> dict[str, tuple[Any, int]]:
    """Strategies whose members have nothing to do with each other, and trials that each completes before."""
    return {
        "grid": (GridSearch({"lr": [0.1, 0.2, 0.3]}, 10), 0),
        "grid in pieces": (GridSearch({"lr": [0.1, 0.2, 0.3]}, 30, steps_per_trial=10), 1),
        "random in pieces": (RandomSearch(3, 30, steps_per_trial=10), 1),
        "halving": (ASHA(3, 30, 10), 1),
        "optuna": (Optuna(3, 30, steps_per_trial=10), 1),
    }


@pytest.mark.parametrize(("strategy", "before"), givers_up().values(), ids=givers_up())
@pytest.mark.parametrize("everybody", [False, True])
def test_a_member_whose_trials_break_again_does_not_keep_the_others(
    strategy: Any, before: int, everybody: bool
) -> None:
    simulation = make(strategy, max_attempts=1, max_broken=100)

    def worked(mended: bool) -> Ended:
        while True:
            claimed, rest = simulation.controller.claim("w")
            if isinstance(rest, Ended):
                return rest
            trial = claimed[0].trial
            breaks = not mended and trial.generation == before and (everybody or trial.member == bad)
            if breaks:
                simulation.controller.fail(Failure(job=trial.id, token=trial.token, error="out of memory"))
            else:
                done = simulation.completion(trial)
                simulation.controller.complete([replace(done, values={"Q": [float(trial.member)]})])

    # Of three only the best is promoted.
    bad = 2 if isinstance(strategy, ASHA) else 1
    ended = worked(False)
    broken = [trial.member for trial in trials(simulation).values() if trial.state is JobState.FAILED]
    alone = isinstance(strategy, ASHA) or not everybody
    assert broken == ([bad] * 3 if alone else sorted([0, 1, 2] * 3))
    assert "with: out of memory" in (ended.message or "")
    assert ended.state is (StudyState.COMPLETED if alone else StudyState.FAILED)
    assert all(member.state is MemberState.DONE for member in members(simulation))
    simulation.store.set_state(simulation.study.id, StudyState.RUNNING)
    assert worked(True).state is StudyState.COMPLETED
    assert all(member.broken_trial is None for member in members(simulation))
    assert members(simulation)[bad].generation > before


@pytest.mark.parametrize(
    ("workers", "copy"),
    [
        case if case in {(5, "both"), (1, "weights"), (1, "hyperparameters")} else rarely(*case)
        for case in itertools.product([1, 5], ["both", "weights", "hyperparameters"])
    ],
)
def test_what_exploit_copies(copy: Any, workers: int) -> None:
    strategy = PBT(
        population_size=8,
        steps_per_trial=1,
        total_steps=12,
        exploit=Truncation(0.25),
        explore=None,
        copy=copy,
    )
    simulation = make(strategy)
    simulation.run(workers, np.random.default_rng(0))
    rows = trials(simulation)
    exploits = [trial for trial in rows.values() if trial.reason["decision"] == "exploit"]
    assert len(exploits) > 5
    for trial in exploits:
        compared: Any = trial.reason["compared"]
        donor, own = rows[compared["donor"]["trial"]], rows[compared["own"]["trial"]]
        assert donor.fitness == compared["donor"]["fitness"]
        assert donor.fitness is not None
        assert own.fitness is not None
        assert donor.fitness > own.fitness
        weights_from = own if copy == "hyperparameters" else donor
        params_from = own if copy == "weights" else donor
        assert trial.parent == weights_from.id
        assert trial.parent_checkpoint == weights_from.checkpoint
        assert simulation.weights[trial.parent_checkpoint or ""] == (weights_from.id,)
        assert trial.start_step == weights_from.reached_step
        assert trial.params == params_from.params
        assert trial.params_from == params_from.id
        assert trial.jump_from == (None if copy == "hyperparameters" else own.id)


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_a_tie_is_no_reason_to_move_and_nan_never_donates(value: float) -> None:
    strategy = PBT(population_size=4, steps_per_trial=1, total_steps=5)
    simulation = make(strategy, lambda parent, trial: (None, value))
    simulation.run_serially()
    assert {t.reason["decision"] for t in trials(simulation).values()} == {"start", "continue"}


def test_nan_members_are_replaced_by_finite_ones() -> None:
    simulation = make(
        PBT(population_size=4, steps_per_trial=1, total_steps=4, exploit=Truncation(0.25)),
        lambda parent, trial: (None, float("nan") if trial.member == 2 else float(trial.member)),
    )
    simulation.run_serially()
    rows = trials(simulation)
    moved = [t for t in rows.values() if t.reason["decision"] == "exploit"]
    assert moved
    assert {t.member for t in moved} == {2}
    assert {rows[t.parent or 0].member for t in moved} == {3}


def test_burn_in_and_ready_interval() -> None:
    def exploits(**settings: Any) -> list[TrialRecord]:
        strategy = PBT(population_size=6, steps_per_trial=10, total_steps=150, exploit=Truncation(0.5), **settings)
        simulation = make(strategy)
        simulation.run_serially()
        return [t for t in trials(simulation).values() if t.reason["decision"] == "exploit"]

    assert min(t.generation for t in exploits()) == 1
    assert min(t.generation for t in exploits(burn_in=100)) >= 10
    by_member: dict[int, list[int]] = {}
    for trial in exploits(ready_interval=50):
        by_member.setdefault(trial.member, []).append(trial.generation)
    assert all(b - a >= 5 for g in by_member.values() for a, b in itertools.pairwise(g))


@pytest.mark.parametrize("trials_between", [1, 2, 5])
@pytest.mark.parametrize("burn_in", [0, 20])
def test_who_is_always_worse_exploits_exactly_once_in_each_ready_interval(
    trials_between: int, burn_in: int
) -> None:
    strategy = PBT(
        population_size=2,
        steps_per_trial=10,
        total_steps=200,
        exploit=Truncation(0.5),
        ready_interval=10 * trials_between,
        burn_in=burn_in,
    )
    simulation = make(strategy, lambda parent, trial: (None, float(-trial.member)))
    simulation.run_serially()
    exploits = [t.generation for t in trials(simulation).values() if t.reason["decision"] == "exploit"]
    assert exploits == list(range(max(trials_between, burn_in // 10), 20, trials_between))


def test_a_worker_trains_the_member_that_it_trained_before() -> None:
    simulation = make(PBT(population_size=3, steps_per_trial=1, total_steps=3))
    first = {worker: claim(simulation, f"host:{worker}:7:l").trial for worker in "abc"}
    simulation.controller.complete([simulation.completion(trial) for trial in first.values()])
    # The last part of the name changes when a worker is started again.
    again = {worker: claim(simulation, f"host:{worker}:8:m").trial.member for worker in "cab"}
    assert again == {worker: trial.member for worker, trial in first.items()}


def test_leases_that_run_out_are_no_failures() -> None:
    simulation = make(PBT(population_size=1, steps_per_trial=1, total_steps=2), lease_s=10.0, max_attempts=1)
    first = claim(simulation, "w0").trial
    for attempt in range(2, 5):
        simulation.clock.now += 100
        again = claim(simulation, f"w{attempt}").trial
        assert (again.id, again.token, again.failures) == (first.id, attempt, 0)
    simulation.controller.complete([simulation.completion(again)])
    assert trials(simulation)[first.id].state is JobState.COMPLETED


def test_a_repeated_completion_gets_the_first_answer_and_counts_once() -> None:
    simulation = make(PBT(population_size=1, steps_per_trial=1, total_steps=3))
    done = simulation.completion(claim(simulation).trial)
    first, again = (simulation.controller.complete([done])[0][0] for _ in range(2))
    assert first == again
    assert not isinstance(again, LeaseLost)
    assert again.repeated
    assert members(simulation)[0].progress == 1


def test_a_late_completion_counts_until_somebody_else_claims() -> None:
    simulation = make(PBT(population_size=1, steps_per_trial=1, total_steps=3), lease_s=10.0)
    late = simulation.completion(claim(simulation).trial)
    simulation.clock.now += 100
    with simulation.store.transaction(simulation.study.id, exclusive=True) as tx:
        simulation.controller._expire(tx)
    assert trials(simulation)[late.trial].state is JobState.PENDING
    answer = simulation.controller.complete([late])[0][0]
    assert not isinstance(answer, LeaseLost)
    assert trials(simulation)[late.trial].state is JobState.COMPLETED

    second = simulation.completion(claim(simulation).trial)
    simulation.clock.now += 100
    taken_over = claim(simulation, "other").trial
    assert (taken_over.id, taken_over.token) == (second.trial, 2)
    superseded = simulation.controller.complete([second])[0][0]
    assert isinstance(superseded, LeaseLost)
    check_facts(str(superseded), "attempt 2")
    assert trials(simulation)[second.trial].state is JobState.RUNNING


def test_a_retry_keeps_parent_hyperparameters_and_seed() -> None:
    simulation = make(PBT(population_size=2, steps_per_trial=1, total_steps=3), max_attempts=3)
    first = claim(simulation).trial
    simulation.controller.fail(Failure(job=first.id, token=1, error="boom"))
    again = claim(simulation).trial
    assert (again.id, again.token, again.failures, again.error) == (first.id, 2, 1, "boom")
    assert (again.parent, again.params, again.seed) == (first.parent, first.params, first.seed)


def test_after_a_retry_the_member_belongs_to_the_worker_that_has_it() -> None:
    simulation = make(PBT(population_size=1, steps_per_trial=1, total_steps=3), max_attempts=3)
    slots = []
    for worker in ("host:0:1:a", "host:1:2:a"):
        claimed, _ = simulation.controller.claim(worker)
        with simulation.store.reader(simulation.study.id) as reader:
            slots.append(reader.member(0).slot)
        simulation.controller.fail(Failure(job=claimed[0].trial.id, token=claimed[0].trial.token, error="boom"))
    assert slots == ["host:0", "host:1"]


def test_a_broken_first_trial_is_replaced_by_a_fresh_sample_that_counts_in_its_place() -> None:
    simulation = make(PBT(population_size=1, steps_per_trial=1, total_steps=2), max_attempts=1)
    broken = claim(simulation).trial
    simulation.controller.fail(Failure(job=broken.id, token=1, error="boom"))
    fresh = claim(simulation).trial
    assert fresh.replaces == broken.id
    assert fresh.generation == 0
    assert fresh.params != broken.params
    assert trials(simulation)[broken.id].state is JobState.FAILED


def test_a_broken_exploit_sends_the_member_back_to_its_true_ancestor() -> None:
    simulation = make(
        PBT(population_size=2, steps_per_trial=1, total_steps=9, exploit=Truncation(0.5)), max_attempts=1
    )
    for _ in range(30):
        work = claim(simulation).trial
        if work.jump_from is not None:
            break
        simulation.controller.complete([simulation.completion(work)])
    head = members(simulation)[work.member].head
    assert head is not None
    assert head.trial == work.jump_from
    simulation.controller.fail(Failure(job=work.id, token=1, error="boom"))
    again = claim(simulation).trial
    assert again.replaces == work.id
    assert again.member == work.member
    assert again.generation == work.generation
    assert again.seed != work.seed


def test_many_broken_trials_in_a_row_stop_the_study_with_the_error() -> None:
    simulation = make(PBT(population_size=2, steps_per_trial=1, total_steps=3), max_attempts=1, max_broken=4)
    for _ in range(4):
        work = claim(simulation).trial
        simulation.controller.fail(Failure(job=work.id, token=1, error="ImportError: no torch"))
    claimed, rest = simulation.controller.claim("w")
    assert not claimed
    assert isinstance(rest, Ended)
    assert rest.state is StudyState.FAILED
    assert "4 trials in a row" in (rest.message or "")
    assert "ImportError: no torch" in (rest.message or "")


def test_a_lost_checkpoint_is_no_donor_and_its_member_recovers_from_the_best() -> None:
    simulation = make(PBT(population_size=3, steps_per_trial=1, total_steps=6), max_attempts=1)
    for _ in range(3):
        simulation.controller.complete([simulation.completion(claim(simulation).trial)])
    work = claim(simulation).trial
    lost = work.parent_checkpoint or ""
    simulation.controller.fail(Failure(job=work.id, token=1, error="gone", gone=lost))
    with simulation.store.reader(simulation.study.id) as reader:
        row = reader.checkpoint(lost)
        assert row is not None
        assert row.state is CheckpointState.LOST
    again = next(t for t in iter(lambda: claim(simulation).trial, None) if t.member == work.member)
    assert again.parent_checkpoint != lost
    assert again.reason["decision"] in ("recover", "exploit")
    assert again.generation == work.generation


def test_lost_progress_only_sends_the_retry_back_to_the_parent() -> None:
    simulation = make(PBT(population_size=1, steps_per_trial=5, total_steps=10))
    work = claim(simulation).trial
    progress = replace(_checkpoint(simulation.completion(work)), name=f"{work.id}.1.p1", step=3)
    simulation.controller.save_progress(work.id, 1, progress)
    simulation.controller.release(work.id, 1)
    again = claim(simulation).trial
    assert (again.progress, again.progress_step, again.failures) == (progress.name, 3, 0)
    simulation.controller.fail(Failure(job=work.id, token=2, error="gone", gone=progress.name))
    assert claim(simulation).trial.progress is None


def _checkpoint(done: Completion) -> Any:
    assert done.checkpoint is not None
    return done.checkpoint


def test_retention_keeps_what_is_needed_and_stays_within_its_bound() -> None:
    simulation = make(PBT(population_size=5, steps_per_trial=1, total_steps=15), keep_best=2)
    rng = np.random.default_rng(1)
    busy: dict[str, TrialRecord] = {}
    for _ in range(200):
        name = f"w{rng.integers(4)}"
        if name in busy:
            simulation.controller.complete([simulation.completion(busy.pop(name))])
        else:
            claimed, _ = simulation.controller.claim(name)
            if claimed:
                busy[name] = claimed[0].trial
        look = simulation.controller.retention()
        marked = StudyRecords(simulation.store, simulation.study.id).mark_deleting(look.collectable)
        assert len(marked) == len(look.collectable)
        kept = {row.name for row, _ in look.kept}
        assert len(kept) <= look.bound
        needed = {trial.parent_checkpoint for trial in busy.values()} | {
            scored.checkpoint for m in members(simulation) for scored in (m.head, m.published) if scored
        }
        assert needed - {None} <= kept
        with simulation.store.reader(simulation.study.id) as reader:
            assert {t.checkpoint for t in reader.best_trials(2)} <= kept | {None}


class Scripted(Strategy):
    """A strategy of a third party that uses every kind of decision."""

    population_size = 3
    exclusive = True

    def finished(self, member: Member) -> bool:
        return member.generation >= 4

    def decide(self, member: Member, population: Any, context: Context) -> Decision:
        count = context.state if isinstance(context.state, int) else 0
        if member.index == 2 and member.generation == 2:
            return Stop(reason={"why": "enough"}, state=count + 1)
        if member.head is not None and member.head.measurements < 3:
            return Measure(times=2, reason={"why": "noisy"}, state=count + 1)
        lowest = lowest_generation(population)
        if lowest is not None and lowest < member.generation:
            return Wait(reason={"why": "the others"})
        return Start(
            weights=member.head,
            params=context.space.sample(context.rng),
            params_from=None,
            steps=1,
            reason={"decision": "start"},
            state=count + 1,
        )


@pytest.mark.parametrize("workers", [1, 4])
def test_a_strategy_may_wait_measure_stop_and_keep_state(workers: int) -> None:
    simulation = make(Scripted())
    ended = simulation.run(workers, np.random.default_rng(3))
    assert ended.state is StudyState.COMPLETED
    rows = trials(simulation)
    trained = [t for t in rows.values() if t.kind is JobKind.TRAIN]
    measured = [t for t in rows.values() if t.kind is JobKind.MEASURE]
    assert [sum(t.member == m for t in trained) for m in range(3)] == [4, 4, 2]
    # The last trial of a finished member is not asked about again, so it is measured once only.
    assert [sum(t.member == m for t in measured) for m in range(3)] == [6, 6, 2]
    first = next(t for t in trained if t.member == 0 and t.generation == 0)
    again = [t.fitness for t in measured if t.parent == first.id]
    assert len(again) == 2
    with simulation.store.reader(simulation.study.id) as reader:
        study = reader.study()
    # One of each trial that was started, of two measurements, and the one that ended a member.
    assert study.strategy_state == len(trained) + len(measured) // 2 + 1


class OneByOne(Scripted):
    """Measures three times, and decides after each."""

    def decide(self, member: Member, population: Any, context: Context) -> Decision:
        if member.head is not None and member.head.measurements < 4:
            return Measure(times=1, reason={"why": "noisy"})
        return super().decide(member, population, context)


def test_measurements_of_a_checkpoint_have_different_seeds_even_if_each_is_decided_by_itself() -> None:
    simulation = make(OneByOne())
    simulation.run(1, np.random.default_rng(3))
    measured = [trial for trial in trials(simulation).values() if trial.kind is JobKind.MEASURE]
    assert len(measured) >= 3 * 8
    assert len({(trial.parent, trial.seed) for trial in measured}) == len(measured)


class Ending(Scripted):
    """Ends the study at its second decision."""

    def __init__(self, reason: JsonObject) -> None:
        self.reason = reason

    def decide(self, member: Member, population: Any, context: Context) -> Decision:
        if context.state == 1:
            return Stop(reason=self.reason, study=True)
        return super().decide(member, population, context)


@pytest.mark.parametrize(
    ("reason", "told"), [({"why": "good enough"}, "good enough"), ({}, "the strategy ended the study")]
)
def test_a_strategy_that_ends_the_study_says_why_and_running_trials_finish(reason: JsonObject, told: str) -> None:
    simulation = make(Ending(reason))
    running = claim(simulation).trial
    ended = Ended(state=StudyState.COMPLETED, message=told)
    assert simulation.controller.claim("other") == ([], ended)
    simulation.controller.complete([simulation.completion(running)])
    assert [trial.state for trial in trials(simulation).values()] == [JobState.COMPLETED]
    assert simulation.controller.claim("w") == ([], ended)


def test_a_measurement_that_breaks_does_not_count_towards_giving_its_member_up() -> None:
    simulation = make(Scripted(), max_attempts=1, max_broken=4)

    def fail(claimed: Claimed) -> None:
        simulation.controller.fail(Failure(job=claimed.trial.id, token=claimed.trial.token, error="broken"))

    trained = claim(simulation)
    simulation.controller.complete([simulation.completion(trained.trial)])
    others = [claim(simulation, f"other {number}") for number in range(2)]
    measured = claim(simulation)
    assert (measured.trial.kind, measured.trial.member) == (JobKind.MEASURE, trained.trial.member)
    fail(measured)
    fail(others[0])
    # Two broken trials of one member in a row would be too many: this is the first of each.
    states = {member.index: (member.state, member.replacements) for member in members(simulation)}
    assert states[trained.trial.member] == (MemberState.READY, 0)
    assert states[others[0].trial.member] == (MemberState.READY, 1)


def test_a_strategy_that_waits_for_ever_is_told_so() -> None:
    class Forever(Scripted):
        def decide(self, member: Member, population: Any, context: Context) -> Decision:
            return Wait(reason={"why": "never"})

    simulation = make(Forever())
    _, rest = simulation.controller.claim("w")
    assert isinstance(rest, Ended)
    assert rest.state is StudyState.FAILED
    assert "every member waits" in (rest.message or "")


def test_perturbed_copies_stay_in_the_space() -> None:
    simulation = make(
        PBT(
            population_size=6,
            steps_per_trial=1,
            total_steps=10,
            exploit=Truncation(0.5),
            explore=Perturb(factors=(0.5, 2.0), resample=0.1),
        )
    )
    simulation.run_serially()
    assert all(SPACE.contains(trial.params) for trial in trials(simulation).values())


def test_a_request_that_met_a_crowd_is_made_again() -> None:
    class Crowded(Scripted):
        asked = 0

        def decide(self, member: Member, population: Any, context: Context) -> Decision:
            Crowded.asked += 1
            if Crowded.asked < 3:
                raise StoreBusy("deadlock detected")
            return Scripted.decide(self, member, population, context)

    simulation = make(Crowded())
    assert claim(simulation).trial.token == 1
    assert Crowded.asked == 3
    Crowded.asked = -10
    with pytest.raises(StoreBusy):
        simulation.controller.claim("w")


def test_a_member_starts_from_its_import_with_what_is_known_of_it_and_the_rest_drawn() -> None:
    rules = TrainRules(
        space=Space(lr=Float(0.1, 1.0), width=Int(1, 9)),
        objective=Maximize("Q"),
        strategy=PBT(population_size=2, steps_per_trial=5, total_steps=20),
    )
    made = Simulation(rules, lambda parent, trial: (None, 0.0))
    known: tuple[JsonObject, JsonObject] = ({}, {"lr": 0.5})
    imports = [
        Imported(
            name=f"start-{index}", origin="/a", step=3, params=params, index=0, digest=f"d{index}", size_bytes=1
        )
        for index, params in enumerate(known)
    ]
    assert StudyRecords(made.store, made.study.id).import_checkpoints(imports)
    claimed, _ = made.controller.claim("w", 2)
    trials = [work.trial for work in claimed]
    assert [trial.parent_checkpoint for trial in trials] == ["start-0", "start-1"]
    assert [(trial.start_step, trial.end_step) for trial in trials] == [(3, 8), (3, 8)]
    assert [trial.reason for trial in trials] == [
        {"decision": "start", "imported": trial.parent} for trial in trials
    ]
    assert trials[1].params["lr"] == 0.5
    assert all(rules.space.contains(trial.params) for trial in trials)
