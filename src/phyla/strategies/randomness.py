"""Generators that depend on what is decided, never on the order in which workers ask."""

import numpy as np


def decision_rng(seed: int, member: int, generation: int, replacement: int) -> np.random.Generator:
    """Return the generator for one decision.

    The same decision asked again, by another controller, draws the same numbers.

    Args:
        seed: the study's seed, not negative.
        member: index of the member.
        generation: its number of completed trials.
        replacement: how many broken trials it replaced at this generation.
    """
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(member, generation, replacement))
    return np.random.Generator(np.random.PCG64(sequence))


def trial_seed(rng: np.random.Generator) -> int:
    """Draw the seed that a trial's training code gets, in [0, 2**31)."""
    return int(rng.integers(2**31))
