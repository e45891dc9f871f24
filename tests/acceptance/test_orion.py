"""Broken trials and pipelines as in Orion (pull request 705), and the winner takes all of learned_optimization."""

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from phyla.machine import Failure, TrainRules
from phyla.records import JobState, Maximize, TrialRecord
from phyla.space import Float, Space
from phyla.strategies import (
    PBT,
    Backtrack,
    BinaryTournament,
    ExploitPipeline,
    ExplorePipeline,
    Perturb,
    Resample,
    Truncation,
    WinnerTakesAll,
)
from populations import Listed, context, source
from simulation import Simulation

SPACE = Space(lr=Float(1e-9, 1e9))


def made(strategy: PBT) -> Simulation:
    rules = TrainRules(space=SPACE, objective=Maximize("Q"), strategy=strategy, max_attempts=1, max_broken=100)
    return Simulation(rules, lambda parent, trial: (None, float(np.random.default_rng(trial.seed).normal())))


def rows(simulation: Simulation) -> dict[int, TrialRecord]:
    with simulation.store.reader(simulation.study.id) as reader:
        return {trial.id: trial for trial in reader.trials()}


def run_until(simulation: Simulation, wanted: Callable[[TrialRecord], bool]) -> TrialRecord:
    """Train until a trial is claimed that is wanted."""
    while True:
        (work,), _ = simulation.controller.claim("worker")
        if wanted(work.trial):
            return work.trial
        simulation.controller.complete([simulation.completion(work.trial)])


def break_it(simulation: Simulation, trial: TrialRecord) -> TrialRecord:
    """Break a trial and return what its member is given instead."""
    simulation.controller.fail(Failure(job=trial.id, token=trial.token, error="broken", retryable=False))
    return run_until(simulation, lambda other: other.member == trial.member)


@pytest.mark.parametrize("exploited", [True, False], ids=["exploit", "promotion"])
def test_when_a_trial_breaks_its_true_ancestor_is_examined_again_however_often(exploited: bool) -> None:
    simulation = made(PBT(population_size=4, steps_per_trial=1, total_steps=50, exploit=BinaryTournament()))
    broken = run_until(
        simulation, lambda trial: trial.generation > 2 and (trial.jump_from is not None) == exploited
    )
    ancestor = broken.jump_from if exploited else broken.parent
    seen = set[object]()
    for _ in range(6):
        again = break_it(simulation, broken)
        assert (again.generation, again.replaces) == (broken.generation, broken.id)
        assert (again.parent if again.jump_from is None else again.jump_from) == ancestor
        # Examined again, it may be promoted or abandoned; in neither case is the broken trial built on.
        assert again.parent != broken.id
        assert (again.parent == ancestor) == (again.jump_from is None)
        seen.add((again.parent, str(again.params)))
        broken = again
    assert len(seen) > 1


def test_what_breaks_at_generation_0_is_replaced_by_fresh_samples_that_do_not_count() -> None:
    simulation = made(PBT(population_size=2, steps_per_trial=1, total_steps=3))
    broken = run_until(simulation, lambda trial: True)
    drawn = {str(broken.params)}
    for _ in range(5):
        broken = break_it(simulation, broken)
        assert (broken.generation, broken.parent, broken.jump_from) == (0, None, None)
        drawn.add(str(broken.params))
    assert len(drawn) == 6
    simulation.controller.complete([simulation.completion(broken)])
    simulation.run_serially()
    done = [trial for trial in rows(simulation).values() if trial.state is JobState.COMPLETED]
    assert Counter(trial.member for trial in done) == {0: 3, 1: 3}


def test_every_exploit_leaves_a_jump_edge_from_what_it_abandoned() -> None:
    simulation = made(PBT(population_size=6, steps_per_trial=1, total_steps=20, exploit=Truncation(0.34)))
    simulation.run_serially()
    found = rows(simulation)
    jumps = [(trial.jump_from, trial.id) for trial in found.values() if trial.jump_from is not None]
    assert len(jumps) > 20
    for abandoned, replacement in jumps:
        assert found[abandoned].member == found[replacement].member
        assert found[abandoned].generation == found[replacement].generation - 1
        assert found[replacement].parent != abandoned
    exploited = {trial.id for trial in found.values() if trial.reason["decision"] == "exploit"}
    assert exploited == {replacement for _, replacement in jumps}


def test_the_first_exploit_rule_that_moves_wins() -> None:
    # Member 0 is last, and its line was never good; member 2 fell from the best there was.
    population = Listed([0.0, 0.0], [5.0, 4.0], [9.0, 1.0], [6.0, 6.0])
    truncation, backtrack = Truncation(0.25), Backtrack(quantile=0.5, pool=0.2)

    def moved(member: int, *rules: Truncation | Backtrack) -> int | None:
        choice = ExploitPipeline(rules).choose(population.member(member), population, context())
        return choice.donor.trial if choice.donor else None

    best_now, best_ever = 8, 5
    assert moved(0, truncation, backtrack) == best_now
    assert moved(0, backtrack, truncation) == best_ever
    assert moved(2, truncation, backtrack) == best_ever
    assert moved(3, truncation) is None


def test_explore_resamples_with_a_probability_of_a_fifth_and_else_perturbs() -> None:
    rule = ExplorePipeline([Resample(probability=0.2), Perturb(factors=(0.8, 1.2))])
    settings = context(1, space=SPACE)
    ways: Counter[str] = Counter()
    for _ in range(2000):
        explored = rule.propose(source({"lr": 1.0}), Listed([1.0]), settings)
        assert explored is not None
        new = explored.params["lr"]
        ways["perturbed" if new in (0.8, 1.2) else "resampled"] += 1
    deviation = (0.2 * 0.8 / 2000) ** 0.5
    assert ways["resampled"] / 2000 == pytest.approx(0.2, abs=4 * deviation)


def test_the_winner_takes_all_of_every_generation() -> None:
    """All members go on from the single best of the generation, with hyperparameters of their own."""
    simulation = made(
        PBT(population_size=5, steps_per_trial=1, total_steps=8, exploit=WinnerTakesAll(), quorum=1.0)
    )
    simulation.run_serially()
    generations = defaultdict[int, list[TrialRecord]](list)
    for trial in rows(simulation).values():
        generations[trial.generation].append(trial)
    assert {len(trials) for trials in generations.values()} == {5}
    for generation in range(1, 8):
        best = max(generations[generation - 1], key=lambda trial: trial.fitness or 0.0)
        for trial in generations[generation]:
            assert trial.parent == best.id
            assert (trial.params == best.params) == (trial.member == best.member)
