"""The quorum, through the real engine: what it costs in time, and what it brings in quality.

The numbers that studies are compared with come from a simulation of the rule (20 seeds; standard errors of the
scores 0.7 to 1.3). Few seeds are run here, so tolerances are generous.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import rarely, times
from evaluation_simulation import EvaluatedStudy, nothing
from phyla.controller import Controller, StudyChanges, StudyRecords
from phyla.errors import ConfigurationError
from phyla.evaluation import EvalTask, Suite
from phyla.machine import Claimed, ClaimedEvaluation, Completion, Ended, Failure, Imported, TrainRules
from phyla.records import JobState, Maximize, StudyState, TrialRecord, WorkKind
from phyla.space import Float, Space
from phyla.strategies import PBT, Backtrack, FromSuite, Truncation
from quorum_reference import TOTAL, Outcome, by_age, mean, study
from simulation import Simulation

SEEDS = 3
SHORT = 60
"""Steps where the number of generations does not matter."""


def outcomes(quorum: float, members: int, workers: int, **how: Any) -> Outcome:
    seeds = how.pop("seeds", SEEDS)
    return mean([study(quorum, members, workers, seed, **how) for seed in range(seeds)])


@pytest.mark.parametrize(
    ("quorum", "workers"),
    [case if case in {(0.8, 2), (1.0, 8)} else rarely(*case) for case in product((0.5, 0.8, 1.0), (1, 2, 8))],
)
def test_weights_never_grow_older_than_total_steps(quorum: float, workers: int) -> None:
    found = study(quorum, 8, workers, 0, task=by_age, total=SHORT)
    assert (found.score, found.age, found.oldest) == (SHORT, SHORT, SHORT)


def test_without_a_quorum_no_weights_are_older_either() -> None:
    assert study(0.0, 8, 2, 0, task=by_age, total=SHORT).oldest == SHORT


@pytest.mark.thorough  # unit/machine/test_quorum.py: decisions; below: waiting
@pytest.mark.parametrize(
    ("members", "score", "time"), [(8, 95.6, 221.0), rarely(16, 103.0, 220.0)], ids=["8 of 8", "16 of 16"]
)
def test_the_quality_of_a_barrier_at_nearly_the_speed_without(members: int, score: float, time: float) -> None:
    found = outcomes(0.8, members, members)
    assert found.score == pytest.approx(score, abs=8.0)
    assert found.time == pytest.approx(time, rel=0.05)


def test_a_slow_worker_costs_little_where_a_barrier_waits_for_it() -> None:
    quorum, barrier = (study(share, 8, 8, 0, slow=4, total=TOTAL // 4) for share in (0.8, 1.0))
    assert quorum.time < 75
    assert barrier.time > 175


@pytest.mark.parametrize("members", [4, rarely(8), rarely(16)])
def test_a_worker_that_is_stuck_for_good_holds_up_only_its_own_member(members: int) -> None:
    found = study(0.8, members, members, 0, stuck=True, total=SHORT)
    free = study(0.8, members, members, 0, total=SHORT)
    assert found.time < 1.15 * free.time
    assert found.oldest == SHORT
    # All but the one that is stuck train to the end.
    assert found.trials >= 0.8 * (members - 1) * SHORT / 4


@pytest.mark.thorough  # unit/machine/test_quorum.py: steps beyond a line
def test_training_that_overshoots_is_not_waited_for() -> None:
    """Up to 3 of 4 steps too many: trials then differ in length, which is all that it costs."""
    found = outcomes(0.8, 8, 8, overshoot=3, seeds=2)
    assert found.oldest <= TOTAL + 3
    assert found.score == pytest.approx(92.7, abs=10.0)
    assert found.time == pytest.approx(269.0, rel=0.06)


@pytest.mark.thorough  # unit/machine/test_budget.py: the contract of every strategy
def test_a_quorum_of_1_gives_the_same_study_with_any_number_of_workers() -> None:
    def decisions(workers: int) -> list[tuple[object, ...]]:
        strategy = PBT(population_size=8, steps_per_trial=4, total_steps=60, exploit=Truncation(0.25), quorum=1.0)
        rules = TrainRules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=strategy)

        def train(parent: Any, trial: TrialRecord) -> tuple[object, float]:
            value = (parent or 0.0) + float(np.random.default_rng(trial.seed).normal())
            return value, value

        simulation = Simulation(rules, train)
        assert simulation.run(workers, np.random.default_rng(workers)).state is StudyState.COMPLETED
        with simulation.store.reader(simulation.study.id) as reader:
            rows = list(reader.trials())
        names = {row.id: (row.member, row.generation) for row in rows}
        return sorted(
            (row.member, row.generation, str(row.params), row.seed, str(names.get(row.parent or 0)))
            for row in rows
        )

    one = decisions(1)
    assert one == decisions(4) == decisions(16)
    assert len(one) == 8 * 15


STEPS, OVER = 3, 2


@settings(max_examples=times(4, 20), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    quorum=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    members=st.integers(1, 6),
    workers=st.integers(1, 7),
    imports=st.booleans(),
    backtrack=st.booleans(),
    events=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 7), st.integers(0, 4)), max_size=3),
    breaks=st.sampled_from([0.0, 0.2, 0.6]),
    seed=st.integers(0, 2**20),
)
def test_every_study_ends_and_no_weights_are_too_old(
    quorum: float,
    members: int,
    workers: int,
    imports: bool,
    backtrack: bool,
    events: list[tuple[int, int, int]],
    breaks: float,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    total = 6 * STEPS
    strategy = PBT(
        population_size=members,
        steps_per_trial=STEPS,
        total_steps=total,
        exploit=Backtrack(quantile=0.5, pool=0.5) if backtrack else Truncation(0.4),
        quorum=quorum,
    )
    space = Space(lr=Float(0.1, 1.0))
    rules = TrainRules(space=space, objective=Maximize("Q"), strategy=strategy, max_attempts=1, max_broken=1000)
    simulation = Simulation(rules, lambda parent, trial: (None, float(rng.normal())))
    controller = simulation.controller
    if imports:
        start = Imported(name="start", origin="/x", step=1000, params={}, index=0, digest="d", size_bytes=1)
        simulation.weights["start"] = None
        assert StudyRecords(simulation.store, simulation.study.id).import_checkpoints([start])
    changes = {turn: (size, more) for turn, size, more in events}
    busy: dict[int, Claimed] = {}
    for turn in range(5000):
        if turn in changes:
            size, more = changes[turn]
            new = replace(strategy, population_size=size, total_steps=total + more * STEPS)
            other = Controller(simulation.store, simulation.study.id, replace(rules, strategy=new))
            try:
                changed = StudyChanges(simulation.store, simulation.study.id, other.population)
                changed.change({"turn": turn}, {"size": (strategy.population_size, size)})
            except ConfigurationError:
                continue
            strategy, controller, total = new, other, new.total_steps
        worker = int(rng.integers(workers))
        work = busy.pop(worker, None)
        if work is None:
            claimed, rest = controller.claim(f"h:{worker}:1:1")
            if claimed:
                busy[worker] = claimed[0]
            elif not busy:
                assert isinstance(rest, Ended), rest
                break
        elif rng.random() < breaks and turn < 2000:
            _try_failing(controller, work)
        else:
            controller.complete([_overshot(simulation, work.trial, int(rng.integers(OVER + 1)))])
    else:
        raise AssertionError("the study does not end")
    assert isinstance(rest, Ended)
    assert rest.state is StudyState.COMPLETED, rest.message
    with simulation.store.reader(simulation.study.id) as reader:
        trained = [row for row in reader.trials() if row.state is JobState.COMPLETED and row.kind == "train"]
        left = [member for member in reader.members() if not member.retired]
    ages = [row.age + (row.reached_step or 0) - row.start_step for row in trained]
    assert max(ages) <= total + OVER
    assert all(total <= member.progress <= total + OVER for member in left)


def _try_failing(controller: Controller, work: Claimed) -> None:
    controller.lose_worker(str(work.trial.worker), "preempted", counts=False)
    again, _ = controller.claim(str(work.trial.worker))
    for one in again:
        controller.fail(Failure(job=one.trial.id, token=one.trial.token, error="broke"))


def _overshot(simulation: Simulation, trial: TrialRecord, more: int) -> Completion:
    done = simulation.completion(trial)
    assert done.checkpoint is not None
    reached = trial.end_step + more
    return replace(done, reached_step=reached, checkpoint=replace(done.checkpoint, step=reached))


@settings(max_examples=times(5, 25), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    quorum=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    members=st.integers(1, 5),
    max_lag=st.integers(0, 3),
    workers=st.integers(1, 4),
    evaluators=st.integers(1, 3),
    partial=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_every_study_whose_fitness_comes_from_a_suite_ends(
    quorum: float, members: int, max_lag: int, workers: int, evaluators: int, partial: bool, seed: int
) -> None:
    fitness = FromSuite("s", "x_mean", max_lag=max_lag, max_partial=1000)
    strategy = PBT(
        population_size=members,
        steps_per_trial=1,
        total_steps=6,
        exploit=Truncation(0.4),
        fitness=fitness,
        quorum=quorum,
    )
    suite = Suite("s", (EvalTask("a", nothing),))
    rules = TrainRules(space=Space(h=Float(0.1, 1.0)), objective=Maximize("x"), strategy=strategy, suites=(suite,))
    noise = np.random.default_rng(seed)

    def measure(weights: float, work: ClaimedEvaluation) -> float:
        return weights + float(noise.normal())

    def grow(weights: float, trial: TrialRecord) -> float:
        return weights + float(trial.params["h"])  # type: ignore[arg-type]  # a float of the space

    one = EvaluatedStudy(rules, grow, measure)
    if partial:
        one.fails = lambda work: (work.group.trial or 0) % 5 == 0
    train, evaluate = frozenset({WorkKind.TRAIN}), frozenset({WorkKind.EVALUATE})
    kinds = [train] * workers + [evaluate] * evaluators
    ended = one.run_at_random(len(kinds), np.random.default_rng(seed), kinds)
    assert ended.state is StudyState.COMPLETED, ended.message
    trials = one.trials()
    assert max(trial.age for trial in trials) <= 5
    assert len(trials) <= 6 * members
    if quorum == 1:
        assert len(trials) == 6 * members
