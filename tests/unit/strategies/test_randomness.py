"""A decision draws the same numbers whoever asks, and as it always did."""

import pickle

import numpy as np
import pytest

from phyla.strategies import decision_rng, trial_seed


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32, 2**80 + 5])
@pytest.mark.parametrize("key", [(0, 0, 0), (63, 1, 0), (64, 2, 0), (9_999, 1_000_000, 1_003), (2**32 - 1, 1, 0)])
def test_the_generator_is_that_of_the_seed_and_the_key(seed: int, key: tuple[int, int, int]) -> None:
    wanted = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=key)))
    found = decision_rng(seed, *key)
    assert found.bit_generator.state == wanted.bit_generator.state
    assert found.random(3).tolist() == wanted.random(3).tolist()


@pytest.mark.parametrize("key", [(1, 2, 0), (1, 2, 3)])
def test_the_generator_spawns_and_pickles_as_any_other(key: tuple[int, int, int]) -> None:
    wanted = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=5, spawn_key=key)))
    found = decision_rng(5, *key)
    for _ in range(2):
        children = [[child.random() for child in rng.spawn(2)] for rng in (found, wanted)]
        assert children[0] == children[1]
    again = pickle.loads(pickle.dumps(found))  # noqa: S301  # our own
    assert again.random() == found.random() == wanted.random()
    assert again.spawn(1)[0].random() == wanted.spawn(1)[0].random()
    words = found.bit_generator.seed_seq.generate_state(3)
    assert words.tolist() == wanted.bit_generator.seed_seq.generate_state(3).tolist()


def test_seeds_of_trials_fit_into_31_bits_and_use_them_all() -> None:
    seeds = [trial_seed(np.random.default_rng(number)) for number in range(200)]
    assert 2**30 < max(seeds) < 2**31
    assert 0 <= min(seeds) < 2**27
