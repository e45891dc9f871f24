"""Training with the same random numbers at each step, so that two ways to the same step can be compared."""

import gc
import itertools
import operator
import random  # noqa: TID251  # training may draw from it
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np

from phyla.records import Minimize, Phase
from phyla.worker.training.trial import Trial, session_of

PIN = 20_240_601
NOTHING = Minimize("phyla/nothing")
"""The objective of a study without a fitness."""
UNEVEN = "phyla/uneven"
"""Metric of a trial whose first step draws a different number of random numbers than the next."""
STEPPED = "phyla/stepped"
"""How many steps training took from `trial.steps()`, of a trial whose random numbers are pinned."""

Source: TypeAlias = tuple[Callable[[], Any], Callable[[Any], object], Callable[[int], object]]
"""Functions of a random generator: to get its state, to set it, and to seed it."""


@final
@dataclass(frozen=True, slots=True)
class Pinned:
    """A training function with pinned random numbers, for each member `since` a step of each trial, or never."""

    train: Callable[[Trial], object]
    since: Sequence[int | None]

    def __call__(self, trial: Trial) -> None:
        """Train, and restore all generators."""
        session, pins, since = session_of(trial), _Pins(), self.since[trial.member]
        steps, drawn = session.steps, list[Any]()

        def pinned_steps(since: int) -> Iterator[int]:
            for count, step in enumerate(steps()):
                with session.watch.within(Phase.CONTROL):  # which is no time of training's
                    if count >= since:
                        pins.set(PIN, with_numpy=True)
                yield step
                with session.watch.within(Phase.CONTROL):
                    drawn.append(pins.states() if count < 2 else None)

        if NOTHING.metric in session.unreported:
            # Before training: a command has to have reported when it ends.
            trial.report({NOTHING.metric: float("nan")})
        if since is not None:
            pins.set(trial.seed)
            session.steps = partial(pinned_steps, since)  # type: ignore[method-assign]
        try:
            self.train(trial)
        finally:
            pins.restore()
        if len(drawn) < 2 or drawn[0] != drawn[1]:
            trial.report({UNEVEN: 1.0})
        if drawn and not session.unreported:
            trial.report({STEPPED: float(len(drawn))})


@final
class _Pins:
    """Sets random generators to one state, whether they are global or made from `trial.seed`."""

    def __init__(self) -> None:
        self._sources: dict[int, Source] = {}
        self._before: list[Callable[[], object]] = []
        self._looked = False

    def set(self, number: int, *, with_numpy: bool = False) -> None:
        """Seed the global generators; `with_numpy` also those of NumPy that existed at the first such call."""
        sources = _global_sources()
        if with_numpy and not self._looked:
            self._looked = True
            sources |= _made_sources()
        for owner in sources.keys() - self._sources.keys():
            self._sources[owner] = sources[owner]
            get, put, _ = sources[owner]
            self._before.append(partial(put, get()))
        for _, _, seed in self._sources.values():
            seed(number)

    def states(self) -> list[Any]:
        return [_comparable(get()) for get, _, _ in self._sources.values()]

    def restore(self) -> None:
        for put_back in self._before:
            put_back()


def _comparable(state: Any) -> Any:
    """Return a generator's state without arrays, which do not compare as a whole."""
    match state:
        case np.ndarray():
            return state.tobytes()
        case dict():
            return {key: _comparable(part) for key, part in state.items()}
        case tuple():
            return tuple(map(_comparable, state))
    return state


def _global_sources() -> dict[int, Source]:
    numpys: Any = np.random
    sources: dict[int, Source] = {
        id(random): (random.getstate, random.setstate, random.seed),
        id(np.random): (numpys.get_state, numpys.set_state, numpys.seed),
    }
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "manual_seed"):

        def put(state: bytes) -> None:
            torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

        # For each kind of device that is missing, manual_seed formats a traceback: a tenth of the time of a check.
        devices = getattr(torch, "accelerator", torch.cuda).is_available()
        seed = torch.manual_seed if devices else torch.default_generator.manual_seed
        sources[id(torch)] = (lambda: torch.get_rng_state().numpy().tobytes(), put, seed)
    return sources


def _made_sources() -> dict[int, Source]:
    def seed(bits: Any, number: int) -> None:
        bits.state = type(bits)(number).state

    objects = gc.get_objects()  # often a million
    are_generators = map(operator.is_, map(type, objects), itertools.repeat(np.random.Generator))
    generators = [generator.bit_generator for generator in itertools.compress(objects, are_generators)]
    return {
        id(bits): (partial(getattr, bits, "state"), partial(setattr, bits, "state"), partial(seed, bits))
        for bits in generators
    }
