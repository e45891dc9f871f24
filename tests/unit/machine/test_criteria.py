"""Studies with several metrics: what donates, what is best, and which checkpoints stay."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from effort import rarely, times
from evaluation_simulation import EvaluatedStudy, nothing
from facts import check_facts
from phyla.controller import StudyRecords
from phyla.evaluation import EvalTask, Suite
from phyla.machine import TrainRules, Update
from phyla.records import (
    Constrained,
    JobKind,
    JobState,
    Maximize,
    Minimize,
    Objective,
    Pareto,
    StudyState,
    TrialRecord,
    WeightedSum,
)
from phyla.space import Float, Space
from phyla.strategies import PBT, Exploit, FromSuite, ParetoTournament, ParetoTruncation, Truncation, front_of
from simulation import Simulation

LIMITED = Constrained(Maximize("accuracy"), subject_to=["latency_ms <= 20"])
FRONT = Constrained(Pareto(Maximize("accuracy"), Minimize("latency_ms")), subject_to=["latency_ms <= 20"])


def noisy(parent: object, trial: TrialRecord) -> tuple[object, Mapping[str, float]]:
    rng = np.random.default_rng(trial.seed)
    accuracy = math.nan if rng.random() < 0.1 else float(rng.normal())
    return None, {"accuracy": accuracy, "latency_ms": float(rng.uniform(0, 30))}


def simulated(
    objective: Objective, exploit: Exploit, *, seed: int = 0, trials: int = 12, **options: int
) -> Simulation:
    strategy = PBT(population_size=8, steps_per_trial=1, total_steps=trials, exploit=exploit)
    rules = TrainRules(space=Space(lr=Float(0.1, 1.0)), objective=objective, strategy=strategy, **options)  # type: ignore[arg-type]
    return Simulation(rules, noisy, seed=seed)


@pytest.mark.parametrize("workers", [rarely(1), 5])
@pytest.mark.parametrize(
    ("objective", "exploit"),
    [(LIMITED, Truncation(0.4)), (FRONT, ParetoTruncation(0.4)), (FRONT, ParetoTournament())],
    ids=["constrained", "pareto-truncation", "pareto-tournament"],
)
def test_what_is_infeasible_never_donates_and_is_never_best(
    objective: Objective, exploit: Exploit, workers: int
) -> None:
    simulation = simulated(objective, exploit, seed=workers)
    assert simulation.run(workers, np.random.default_rng(workers)).state is StudyState.COMPLETED
    with simulation.store.reader(simulation.study.id) as reader:
        trials = {trial.id: trial for trial in reader.trials()}
        best = reader.best_trials(1000)
    infeasible = {one.id for one in trials.values() if one.criteria and one.criteria.infeasible}
    donors = {one.parent for one in trials.values() if one.jump_from is not None}
    assert len(trials) == 8 * 12
    assert len(infeasible) > 10
    assert len(donors) > 10
    assert not donors & infeasible
    assert not {one.id for one in best} & infeasible
    for number in infeasible:
        criteria = trials[number].criteria
        assert criteria is not None
        assert criteria.infeasible == f"latency_ms {criteria.values['latency_ms']:g} > 20"
        assert trials[number].order == -math.inf


def test_an_infeasible_member_takes_over_a_feasible_one() -> None:
    simulation = simulated(LIMITED, Truncation(0.4), seed=3, trials=6)
    simulation.run(1, np.random.default_rng(3))
    with simulation.store.reader(simulation.study.id) as reader:
        trials = {trial.id: trial for trial in reader.trials()}
    left = [trials[one.jump_from] for one in trials.values() if one.jump_from is not None]
    assert any(one.criteria is not None and one.criteria.infeasible for one in left)


def test_a_weighted_sum_selects_by_the_sum() -> None:
    weights = WeightedSum({"accuracy": 1.0, "latency_ms": -0.1})
    simulation = simulated(weights, Truncation(0.25), trials=6)
    simulation.run(1, np.random.default_rng(0))
    with simulation.store.reader(simulation.study.id) as reader:
        trials = list(reader.trials())
        best = reader.best_trials(1)[0]
    sums = [one.metrics["accuracy"] - 0.1 * one.metrics["latency_ms"] for one in trials]  # type: ignore[operator]
    assert best.fitness == pytest.approx(max(value for value in sums if not math.isnan(value)))
    assert best.criteria is not None
    assert best.criteria.values == best.metrics


@pytest.mark.parametrize(("workers", "keep_front"), [rarely(4, 1), (1, 3), (4, 100)])
def test_checkpoints_on_the_front_stay_up_to_the_limit(workers: int, keep_front: int) -> None:
    simulation = simulated(FRONT, ParetoTournament(), seed=workers, trials=times(5, 12), keep_front=keep_front)
    rng = np.random.default_rng(workers)
    busy: dict[str, TrialRecord] = {}
    while True:
        name = f"w{rng.integers(workers)}"
        if name in busy:
            simulation.controller.complete([simulation.completion(busy.pop(name))])
        else:
            claimed, _ = simulation.controller.claim(name)
            if not claimed and not busy:
                break
            if claimed:
                busy[name] = claimed[0].trial
        look = simulation.controller.retention()
        assert len(look.kept) <= look.bound
        assert len(StudyRecords(simulation.store, simulation.study.id).mark_deleting(look.collectable)) == len(
            look.collectable
        )
        kept = {row.name: why for row, why in look.kept}
        with simulation.store.reader(simulation.study.id) as reader:
            front = front_of([one for one in reader.trials() if one.state is JobState.COMPLETED])
        there = [one for one in front if one.checkpoint in kept]
        assert sum(why == "on the Pareto front" for why in kept.values()) <= keep_front
        assert len(there) >= min(len(front), keep_front)
        if keep_front >= 100:
            assert len(there) == len(front)
    with simulation.store.reader(simulation.study.id) as reader:
        assert reader.study().state is StudyState.COMPLETED


def test_measuring_again_averages_every_metric() -> None:
    simulation = simulated(FRONT, ParetoTruncation(0.4))
    controller, store = simulation.controller, simulation.store
    trial = controller.claim("w")[0][0].trial
    first = replace(simulation.completion(trial), values={"accuracy": [1.0], "latency_ms": [30.0]})
    controller.complete([first])
    with store.transaction(simulation.study.id, exclusive=True) as tx:
        member = tx.member(trial.member)
        tx.apply([Update(replace(member, measures_left=1, progress=0))])
    again = controller.claim("w")[0][0].trial
    assert again.kind is JobKind.MEASURE
    done = replace(simulation.completion(again), values={"accuracy": [2.0], "latency_ms": [6.0]}, checkpoint=None)
    controller.complete([done])
    with store.reader(simulation.study.id) as reader:
        head = reader.members()[trial.member].head
    assert head is not None
    assert head.criteria is not None
    assert head.criteria.values == {"accuracy": 1.5, "latency_ms": 18.0}
    assert (head.fitness, head.order, head.measurements) == (1.5, 1.5, 2)
    assert head.criteria.orders == (1.5, -18.0)
    assert head.criteria.infeasible is None


@pytest.mark.parametrize("remeasure", [0, 2])
def test_several_aggregates_of_a_suite_are_a_fitness(remeasure: int) -> None:
    objective = Constrained(Pareto(Maximize("x_mean"), Minimize("cost")), subject_to=["cost <= 4"])
    strategy = PBT(
        population_size=4,
        steps_per_trial=1,
        total_steps=6,
        exploit=ParetoTruncation(0.5),
        fitness=FromSuite("s", remeasure=remeasure),
    )
    suite = Suite("s", (EvalTask("a", nothing),))
    rules = TrainRules(space=Space(h=Float(0.1, 1.0)), objective=objective, strategy=strategy, suites=(suite,))
    one = EvaluatedStudy(
        rules,
        lambda weights, trial: weights + float(trial.params["h"]),  # type: ignore[arg-type]
        lambda weights, work: weights,
        also=lambda x: {"cost": 5 - x},
    )
    assert one.run_serially().state is StudyState.COMPLETED
    with one.store.reader(one.study.id) as reader:
        done = [trial for trial in reader.trials() if trial.state is JobState.COMPLETED]
        best = reader.best_trials(1)[0]
        # The standard error of what two goals come to is not known.
        assert [member.head.stderr for member in reader.members() if member.head is not None] == [None] * 4
    assert len(done) == 4 * 6
    for trial in done:
        assert trial.criteria is not None
        x, cost = trial.criteria.values["x_mean"], trial.criteria.values["cost"]
        assert cost == pytest.approx(5 - x)
        assert trial.criteria.orders == (x, -cost)
        assert (trial.criteria.infeasible is None) == (cost <= 4)
        assert trial.metrics["s/cost"] == cost
        assert "s/cost/stderr" in trial.metrics
    assert best.fitness == max(trial.fitness or 0.0 for trial in done)


def test_an_aggregate_that_the_suite_does_not_give_stops_the_study_with_its_name() -> None:
    objective = WeightedSum({"x_mean": 1.0, "speed": 2.0})
    strategy = PBT(population_size=2, steps_per_trial=1, total_steps=2, fitness=FromSuite("s"))
    suite = Suite("s", (EvalTask("a", nothing),))
    rules = TrainRules(space=Space(h=Float(0.1, 1.0)), objective=objective, strategy=strategy, suites=(suite,))
    one = EvaluatedStudy(rules, lambda weights, trial: weights, lambda weights, work: weights)
    ended = one.run_serially()
    assert ended.state is StudyState.FAILED
    check_facts(str(ended.message), "speed", "x_mean")
