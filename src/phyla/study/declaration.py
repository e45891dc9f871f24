"""The definition of a study, as values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from phyla.checkpoints import look_at_source
from phyla.errors import ConfigurationError
from phyla.machine import TrainRules
from phyla.records import StartFrom
from phyla.study.places import Places
from phyla.validation import check, suggest_arguments

if TYPE_CHECKING:
    from phyla.worker import Trial, WorkerContext


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which checkpoints a study keeps besides those in use.

    Args:
        best: this many of the best ones.
        front: with a Pareto objective, at most this many of its front, in place of the best; the most crowded go.
        every_steps: also those whose step is a multiple of this; None keeps no milestones.

    Raises:
        ConfigurationError: a number is out of range.
    """

    best: int = 1
    front: int = 100
    every_steps: int | None = None

    def __post_init__(self) -> None:
        check(self, best=1, front=1, every_steps=1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a study tries again before it gives up.

    Args:
        attempts: attempts of one trial that may fail before the trial counts as broken.
        broken: broken trials in a row that stop the study; counted afresh when it is run again.
        stops: how often a stopping rule may stop a member within one generation; then its trial is left to run.

    Raises:
        ConfigurationError: a number is out of range.
    """

    attempts: int = 3
    broken: int = 10
    stops: int = 3

    def __post_init__(self) -> None:
        check(self, attempts=1, broken=1, stops=1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """Which replicate of which study this is, from 0. It affects no decision; it is stored with the study."""

    of: str
    index: int

    @property
    def name(self) -> str:
        """Name of the study that is this replicate: `NAME-r0`, `NAME-r1`, ..."""
        return f"{self.of}-r{self.index}"


def replicate_of(config: Mapping[str, Any]) -> Replicate | None:
    """Return which replicate a stored configuration describes; None for an ordinary study."""
    stored = config.get("replicate")
    return None if stored is None else Replicate(of=str(stored["of"]), index=int(stored["index"]))


def replicate_seed(seed: int, *key: int) -> int:
    """Return the seed of a replicate, in [0, 2**53).

    It depends on the study's seed and the key alone, in every version. The key is the index of the replicate, so
    replicates of different studies with the same seed share their seeds, and can be compared in pairs.
    """
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint64)[0]) >> 11


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The definition of a study: the checked arguments of `Study(...)`.

    Attributes:
        name: of the study.
        seed: root of all randomness.
        rules: what decides: space, objective, strategy, suites, ...
        places: where it keeps its things.
        train: the training function or command; None where trials are asked for.
        setup: called once per worker process.
        start_from: checkpoints that its members start from.
        replicate_of: the study that this one repeats with another seed.
    """

    name: str
    seed: int
    rules: TrainRules
    places: Places
    train: "Callable[[Trial], object] | None" = None
    setup: "Callable[[WorkerContext], object] | None" = None
    start_from: Sequence[StartFrom] = ()
    replicate_of: Replicate | None = None


def check_sources(study: Declared) -> None:
    """Make sure that what the members of a new study start from exists, and that a member takes each of it."""
    entries, members = study.start_from, study.rules.strategy.population_size
    if len(entries) > members:
        raise ConfigurationError(
            f"start_from has {len(entries)} entries for a population of {members}: the last "
            f"{len(entries) - members} would never be used; leave them out, or use more members"
        )
    for entry in entries:
        look_at_source(Path(entry.path))


suggest_arguments(Retention, Retries)
