"""What strategies and rules refuse, and the last values that they take."""

from collections.abc import Callable
from typing import Any

import pytest

import phyla
from facts import check_facts
from phyla.errors import ConfigurationError, UsageError
from phyla.strategies import (
    ASHA,
    PB2,
    PBT,
    Crossover,
    Divergence,
    ExploitPipeline,
    ExplorePipeline,
    ExploreWith,
    FixedSchedule,
    FromSuite,
    GridSearch,
    InitiatorPBT,
    MedianStopping,
    MultiFrequency,
    Mutate,
    ParetoTruncation,
    Perturb,
    RandomSearch,
    Replay,
    SingleWorkerExplore,
    Threshold,
    Truncation,
    TTest,
)
from phyla.strategies.strategy import require_strategy

THREE: Any = 3
NOTHING: Any = None
CLASS: Any = ExploreWith
SUITE = FromSuite("s")


def pbt(**other: Any) -> PBT:
    return PBT(**{"population_size": 4, "steps_per_trial": 5, "total_steps": 20, **other})


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: pbt(population_size=0), "PBT(population_size=0) 1"),
        (lambda: pbt(burn_in=-1), "PBT(burn_in=-1) 0"),
        (lambda: pbt(min_scores=0), "PBT(min_scores=0) 1"),
        (lambda: pbt(ready_interval=0), "PBT(ready_interval=0) 1"),
        (lambda: pbt(quorum=1.5), "PBT(quorum=1.5) [0 1]"),
        (lambda: pbt(copy="all"), "PBT(copy= all both weights hyperparameters"),
        (lambda: pbt(total_steps=0), "PBT(total_steps=0) 1"),
        (lambda: pbt(steps_per_trial=0), "PBT(steps_per_trial=0) 1"),
        (lambda: pbt(steps_per_trial=21), "PBT(steps_per_trial=21 total_steps=20"),
        (lambda: pbt(burn_in=20), "PBT(burn_in=20 total_steps=20 RandomSearch"),
        (lambda: pbt(ready_interval=20), "PBT(ready_interval=20 total_steps=20 RandomSearch"),
        (lambda: pbt(burn_in=16), "PBT(burn_in=16 steps_per_trial=5 total_steps=20 15"),
        (lambda: pbt(ready_interval=16), "PBT(ready_interval=16 steps_per_trial=5 total_steps=20 15"),
        (lambda: pbt(burn_in=1, steps_per_trial=20), "PBT(burn_in=1 steps_per_trial=20 shorter trials"),
        (lambda: pbt(min_scores=4), "PBT(min_scores=4 steps_per_trial=5 total_steps=20 donate 3 15"),
        (lambda: pbt(min_scores=2, steps_per_trial=10), "PBT(min_scores=2 steps_per_trial=10 donate 1"),
        (lambda: pbt(exploit=THREE), "PBT(exploit=3) Truncation()"),
        (lambda: pbt(explore=THREE), "PBT(explore=3) Perturb() ExploreWith(function)"),
        (lambda: FixedSchedule(schedule=[THREE], total_steps=10), "FixedSchedule(schedule=[3]) 1000 lr 0.1} step"),
        (lambda: FixedSchedule(schedule=[], total_steps=10), "FixedSchedule(schedule=...) step 0"),
        (lambda: FixedSchedule(schedule=[(1, {})], total_steps=10), "FixedSchedule(schedule=...) 1 step 0"),
        (lambda: FixedSchedule(schedule=[(0, {}), (0, {})], total_steps=10), "FixedSchedule(step=0) 1"),
        (
            lambda: FixedSchedule(schedule=[(0, {}), (10, {})], total_steps=10),
            "FixedSchedule(total_steps=10) step 10",
        ),
        (lambda: FixedSchedule(schedule=[(0, {})], total_steps=10, members=0), "FixedSchedule(members=0) 1"),
        (lambda: Replay(trials=[]), "Replay(trials=[])"),
        (lambda: GridSearch(grid=[], total_steps=10), "GridSearch(grid=[]) lr [0.1 0.01]}"),  # type: ignore[arg-type]  # it is refused
        (lambda: GridSearch(grid={}, total_steps=10), "GridSearch(grid={}) RandomSearch(members=1"),
        (lambda: GridSearch(grid={"lr": "ab"}, total_steps=10), "GridSearch(lr= ab [0.1 0.01]"),
        (lambda: GridSearch(grid={"lr": []}, total_steps=10), "GridSearch(lr=[]) [0.1 0.01]"),
        (lambda: RandomSearch(members=0, total_steps=10), "RandomSearch(members=0) 1"),
        (
            lambda: InitiatorPBT(population_size=4, steps_per_trial=5, total_steps=20, gate=False, fitness=SUITE),
            "InitiatorPBT(gate=False gate=True",
        ),
        (
            lambda: SingleWorkerExplore(explore_steps=0, exploit_steps=5, total_steps=20),
            "SingleWorkerExplore(explore_steps=0) 1",
        ),
        (
            lambda: SingleWorkerExplore(explore_steps=5, exploit_steps=0, total_steps=20),
            "SingleWorkerExplore(exploit_steps=0) 1",
        ),
        (
            lambda: SingleWorkerExplore(explore_steps=5, exploit_steps=5, total_steps=15),
            "SingleWorkerExplore(explore_steps=5 total_steps=15 15 steps",
        ),
        (
            lambda: SingleWorkerExplore(explore_steps=5, exploit_steps=5, total_steps=16, factor=1),
            "SingleWorkerExplore(factor=1) inf",
        ),
        (lambda: PB2(rows=1), "PB2(rows=1) 2"),
        (lambda: PB2(least_rows=1), "PB2(least_rows=1) 2"),
        (lambda: PB2(restarts=0), "PB2(restarts=0) 1"),
        (lambda: PB2(resample=1.5), "PB2(resample=1.5) [0 1]"),
        (lambda: PB2(rows=3), "PB2(rows=3 least_rows=4"),
        (lambda: PB2(fallback=NOTHING), "PB2(fallback=None) Perturb() ExploreWith(function)"),
        (lambda: Perturb(factors=(1, 2)), "Perturb(factors=(1 0.8 1.2"),
        (lambda: Perturb(factors=()), "Perturb(factors=()) 0.8 1.2"),
        (lambda: Perturb(resample=-0.1), "Perturb(resample=-0.1) [0 1]"),
        (lambda: ExploreWith(THREE), "ExploreWith(function=3)"),
        (lambda: ExplorePipeline([]), "ExplorePipeline(rules=()) explore=None"),
        (lambda: ExploitPipeline([]), "ExploitPipeline(rules=()) exploit=None"),
        (lambda: Mutate(mutation_rate=2), "Mutate(mutation_rate=2) [0 1]"),
        (lambda: Mutate(change_range=(1, 2)), "Mutate(change_range=(1 1.1 2.0"),
        (lambda: Mutate(discount_range=(2, 1.5)), "Mutate(discount_range=(2 1.5 1.1 2.0"),
        (lambda: Mutate(discounts="gamma"), "Mutate(discounts= gamma names"),
        (lambda: ASHA(members=4, min_steps=21, total_steps=20), "ASHA(total_steps=20 min_steps=21"),
        (
            lambda: ASHA(members=4, min_steps=5, total_steps=20, fitness=FromSuite("s"), quorum=0.5),
            "ASHA(fitness=FromSuite( quorum=1.0",
        ),
        (lambda: Divergence(metric=""), "Divergence(metric='')"),
        (lambda: Divergence(above=1, below=1), "Divergence(above=1 below=1"),
        (lambda: MedianStopping(min_steps=-1), "MedianStopping(min_steps=-1) 0"),
        (lambda: Truncation(0), "Truncation(quantile=0) 0.5]"),
        (lambda: Truncation(0.6), "Truncation(quantile=0.6) 0.5]"),
        (lambda: TTest(window=1), "TTest(window=1) 2"),
        (lambda: TTest(alpha=0), "TTest(alpha=0) 1"),
        (lambda: Threshold(std=-1), "Threshold(std=-1) [0 inf"),
        (lambda: Threshold(absolute=-1), "Threshold(absolute=-1) [0 inf"),
        (lambda: Crossover(quantile=0), "Crossover(quantile=0) 1]"),
        (lambda: Crossover(share=2), "Crossover(share=2) [0 1]"),
        (lambda: ParetoTruncation(0), "ParetoTruncation(quantile=0) 0.5]"),
        (lambda: require_strategy(PBT), "strategy=PBT PBT(population_size= steps_per_trial= total_steps="),
        (
            lambda: require_strategy(SingleWorkerExplore),
            "strategy=SingleWorkerExplore SingleWorkerExplore(explore_steps= exploit_steps= total_steps=",
        ),
        (lambda: require_strategy(pbt(exploit=Truncation)), "PBT(exploit=...) Truncation()"),
        (
            lambda: require_strategy(pbt(explore=ExplorePipeline([CLASS]))),
            "ExplorePipeline(rules=...) ExploreWith(function=...)",
        ),
        (lambda: require_strategy(pbt(fitness=THREE)), "PBT(fitness=3) Last()"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_what_to_do(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    check_facts(str(refused.value), *told.split())


def test_what_is_no_strategy_is_told_all_that_it_lacks() -> None:
    with pytest.raises(ConfigurationError) as refused:
        require_strategy(THREE)
    told, way_out = str(refused.value).split("; ", 1)
    lacks = told.removeprefix("strategy=3 is not a strategy: it has no ").split(" and no ")
    assert [name for name in lacks if "mutmut" not in name] == [
        "population_size",
        "quorum",
        "exclusive",
        "fitness",
        "member_steps",
        "keeps_generations",
        "keeps_best",
        "line",
        "finished",
        "check_extension",
        "decide",
    ]
    check_facts(way_out, "PBT(...)", "phyla.strategies.Strategy")


@pytest.mark.parametrize(
    "make",
    [
        lambda: pbt(population_size=1, burn_in=0, min_scores=1, ready_interval=1, quorum=0),
        lambda: pbt(quorum=1, burn_in=15, min_scores=3, copy="weights"),
        lambda: pbt(steps_per_trial=19, ready_interval=19, copy="hyperparameters"),
        lambda: pbt(steps_per_trial=20),
        lambda: pbt(exploit=None, min_scores=4),
        lambda: pbt(population_size=8, exploit=MultiFrequency((1, 3))),
        lambda: pbt(exploit=None, explore=None),
        lambda: FixedSchedule(schedule=[(0, {}), (9, {})], total_steps=10, members=1),
        lambda: RandomSearch(members=1, total_steps=1),
        lambda: SingleWorkerExplore(explore_steps=1, exploit_steps=1, total_steps=4, factor=1.01),
        lambda: PB2(rows=2, least_rows=2, restarts=1, resample=0),
        lambda: PB2(rows=4, resample=1),
        lambda: Perturb(factors=(0.5,), resample=1),
        lambda: Mutate(mutation_rate=0, change_range=(1.1, 1.1)),
        lambda: ASHA(members=4, min_steps=20, total_steps=20),
        lambda: Divergence(above=1, below=0.5),
        lambda: Truncation(0.5),
        lambda: TTest(window=2, alpha=0.99),
        lambda: Threshold(std=0, absolute=0),
        lambda: ParetoTruncation(0.5),
        lambda: require_strategy(pbt()),
    ],
)
def test_settings_at_the_edge_are_taken(make: Callable[[], Any]) -> None:
    make()


HUGE = 10**5000


@pytest.mark.parametrize(
    "make",
    [
        lambda: phyla.PBT(population_size=2, steps_per_trial=1, total_steps=HUGE),
        lambda: phyla.RandomSearch(members=HUGE, total_steps=1),
        lambda: phyla.Int(0, HUGE),
        lambda: phyla.Float(-HUGE, 0),
        lambda: phyla.Choice([1, HUGE]),
        lambda: phyla.Space({"x": phyla.Float(0, 1)}).validate({"x": HUGE}),
        lambda: phyla.Maximize("score", stop_at=HUGE),
        lambda: phyla.Retention(best=HUGE),
        lambda: phyla.strategies.Perturb(factors=(0.8, HUGE)),
    ],
)
def test_numbers_that_no_message_can_show_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=r"digits|too large|finite number|must fit"):
        make()
