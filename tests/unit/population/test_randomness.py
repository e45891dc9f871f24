"""A decision draws the same numbers whoever asks, and as it always did."""

import numpy as np
import pytest

from phyla.population.randomness import decision_rng


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32, 2**80 + 5])
@pytest.mark.parametrize("key", [(0, 0, 0), (9_999, 1_000_000, 1_003), (2**32 - 1, 1, 2)])
def test_the_generator_is_that_of_the_seed_and_the_key(seed: int, key: tuple[int, int, int]) -> None:
    wanted = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=key)))
    found = decision_rng(seed, *key)
    assert found.bit_generator.state == wanted.bit_generator.state
    assert found.random(3).tolist() == wanted.random(3).tolist()
