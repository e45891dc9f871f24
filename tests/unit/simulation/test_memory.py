"""A simulation keeps the cyclic garbage collector from its records, and from nothing else."""

import gc
import weakref

import numpy as np
import pytest

from phyla.machine import Rules
from phyla.population import PBT
from phyla.records import JsonObject, Maximize
from phyla.simulation import Crew, Durations, Fitness, Hazards, Simulator
from phyla.space import Float, Space


class Cycle:
    """Garbage that only the cyclic collector finds."""

    def __init__(self) -> None:
        self.itself = self


def simulator(fitness: Fitness) -> Simulator:
    rules = Rules(
        space=Space(rate=Float(0.0, 1.0)),
        objective=Maximize("Q"),
        strategy=PBT(population_size=10, steps_per_trial=1, total_steps=300),
    )
    return Simulator(
        rules,
        0,
        crew=Crew(workers=5),
        durations=Durations(trial_s=30.0),
        hazards=Hazards(),
        fitness=fitness,
        rng=np.random.default_rng(0),
    )


def test_garbage_of_the_users_is_found_meanwhile() -> None:
    alive, most = weakref.WeakSet[Cycle](), 0

    def fitness(_params: JsonObject, _step: int, rng: np.random.Generator) -> float:
        nonlocal most
        alive.add(Cycle())
        most = max(most, len(alive))
        return float(rng.random())

    assert simulator(fitness).run().completed == 3000
    assert most < 1000


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was_even_after_a_failure(enabled: bool) -> None:
    def fails(_params: JsonObject, step: int, _rng: np.random.Generator) -> float:
        if step == 100:
            raise ValueError("no fitness")
        return 0.0

    if not enabled:
        gc.disable()
    try:
        with pytest.raises(ValueError, match="no fitness"):
            simulator(fails).run()
        assert gc.isenabled() is enabled
        assert gc.get_freeze_count() == 0
    finally:
        gc.enable()
