"""Generators that depend on what is decided, never on who asks first."""

from functools import lru_cache
from typing import Any, final

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISpawnableSeedSequence

BLOCK = 64
"""Members whose generators are seeded together."""


def decision_rng(seed: int, member: int, generation: int, replacement: int) -> np.random.Generator:
    """Return the generator for one decision.

    The same decision asked again, by another controller, draws the same numbers: those of
    `np.random.SeedSequence(seed, spawn_key=(member, generation, replacement))`.

    Args:
        seed: the study's seed, not negative.
        member: index of the member.
        generation: its number of completed trials.
        replacement: how many broken trials it replaced at this generation.
    """
    if seed < 2**32 and replacement == 0:
        block, place = divmod(member, BLOCK)
        state = _states(seed, block, generation)[place]
        seeds: Any = _Seeds(state, seed, (member, generation, replacement))
        return np.random.Generator(np.random.PCG64(seeds))
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(member, generation, replacement))
    return np.random.Generator(np.random.PCG64(sequence))


def trial_seed(rng: np.random.Generator) -> int:
    """Draw the seed that a trial's training code gets, in [0, 2**31)."""
    return int(rng.integers(2**31))


@final
class _Seeds(ISpawnableSeedSequence):
    """A `SeedSequence` whose first words are known already, as PCG64 asks for them."""

    def __init__(self, state: npt.NDArray[np.uint64], seed: int, key: tuple[int, int, int]) -> None:
        self._state = state
        self._of = seed, key
        self._sequence: np.random.SeedSequence | None = None

    @property
    def sequence(self) -> np.random.SeedSequence:
        """The sequence itself; made when it is first asked for."""
        if self._sequence is None:
            seed, key = self._of
            self._sequence = np.random.SeedSequence(entropy=seed, spawn_key=key)
        return self._sequence

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        if n_words == 4 and dtype is np.uint64:
            return self._state
        return self.sequence.generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> Any:
        return self.sequence.spawn(n_children)


# What follows is `SeedSequence` for many members at once; NumPy keeps its numbers the same for good (NEP 19).
# Seeded one by one, generators take a tenth of all the time of a simulation.

_MASK = 2**32 - 1
_POOL = 4


def _constants(first: int, factor: int, count: int) -> list[int]:
    found = [first]
    while len(found) < count:
        found.append(found[-1] * factor & _MASK)
    return found


_INWARDS = _constants(0x43B0D7E5, 0x931E8875, 29)
_INWARD_COLUMN = np.array(_INWARDS, np.uint32)[:, None]
_OUTWARD_COLUMN = np.array(_constants(0x8B51F9DD, 0x58F38DED, 9), np.uint32)[:, None]


@lru_cache(maxsize=1024)
def _states(seed: int, block: int, generation: int) -> npt.NDArray[np.uint64]:
    """Return the four words that seed PCG64 for each member of a block; (BLOCK, 4)."""
    pool, at = _pool_of(seed), _POOL**2
    for words in (np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.uint32), generation, 0):
        first, second = _INWARD_COLUMN[at : at + _POOL], _INWARD_COLUMN[at + 1 : at + _POOL + 1]
        pool, at = _mixed(pool, _hashed(words, first, second)), at + _POOL
    drawn = _hashed(np.concatenate((pool, pool)), _OUTWARD_COLUMN[:-1], _OUTWARD_COLUMN[1:])
    return np.ascontiguousarray(drawn.T, "<u4").view("<u8").astype(np.uint64)


@lru_cache(maxsize=16)
def _pool_of(seed: int) -> npt.NDArray[np.uint32]:
    """Return what is in the pool before a spawn key is mixed in: of the seed, filled up with zeros; (4, 1)."""
    pool = [_hashed(word, *_INWARDS[at : at + 2]) for at, word in enumerate((seed, 0, 0, 0))]
    at = _POOL
    for source in range(_POOL):
        for place in range(_POOL):
            if place != source:
                pool[place] = _mixed(pool[place], _hashed(pool[source], *_INWARDS[at : at + 2]))
                at += 1
    return np.array(pool, np.uint32)[:, None]


def _hashed(words: Any, first: Any, second: Any) -> Any:
    words = (words ^ first) * second & _MASK
    return words ^ (words >> 16)


def _mixed(words: Any, others: Any) -> Any:
    words = words * 0xCA01F9DD - others * 0x4973F715 & _MASK
    return words ^ (words >> 16)
