"""Replicates of a study: the same again with other seeds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, StudyState

if TYPE_CHECKING:
    from phyla.study.results import Results
    from phyla.study.study import Study


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """Which replicate a study is. It decides nothing; it is remembered with the study.

    Attributes:
        of: name of the study it repeats.
        index: 0 for the first one.
    """

    of: str
    index: int

    @property
    def name(self) -> str:
        """Name of the study that is this replicate: `NAME-r0`, `NAME-r1`, ..."""
        return f"{self.of}-r{self.index}"

    def to_json(self) -> JsonObject:
        """Write it as JSON."""
        return {"of": self.of, "index": self.index}


def replicate_of(config: Mapping[str, Any]) -> Replicate | None:
    """Return which replicate the study of a configuration is; None if it is none."""
    stored = config.get("replicate")
    return None if stored is None else Replicate(of=str(stored["of"]), index=int(stored["index"]))


def replicate_seed(seed: int, index: int) -> int:
    """Return the seed of a replicate, in [0, 2**53).

    It depends on the study's seed and the index alone, so replicates of different studies with the same seed
    share their seeds, and can be compared in pairs. NumPy's `SeedSequence` draws it, whose numbers never change.
    Studies of neighbouring seeds share no replicates, as they would with `seed + index`.

    Args:
        seed: the study's seed, not negative.
        index: 0 for the first replicate.
    """
    return derived_seed(seed, index)


def derived_seed(seed: int, *key: int) -> int:
    """Return a seed in [0, 2**53) that depends on a seed and a key alone, in every version."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint64)[0]) >> 11


def replicates(study: "Study", count: int) -> "list[Study]":
    """Return the replicates of a study, as studies: `NAME-r0`, `NAME-r1`, ... with seeds of their own.

    Args:
        study: the study to repeat; it is left as it is.
        count: how many; more can be added later, and the first ones stay the same.

    Raises:
        ConfigurationError: the count is no positive integer, or the study is a replicate itself.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigurationError(f"replicates={count!r}: must be an integer of at least 1")
    return [study.replicate(index) for index in range(count)]


def run_replicates(
    study: "Study",
    count: int,
    workers: int = 0,
    *,
    on_replicate: "Callable[[Study], None]" = lambda replicate: None,
    **options: Any,
) -> "list[Results]":
    """Run a study several times, one replicate after the other, each with a seed of its own.

    Run again, it resumes: replicates that are complete stay as they are. Replicate i is the study `NAME-r{i}` with
    `replicate_seed(seed, i)`, and remembers that it is one; `phyla.compare` puts replicates together.

    Args:
        study: the study to repeat; it does not run itself.
        count: how many replicates.
        workers: worker processes to start for each; 0 works in this process.
        on_replicate: called with each replicate before it runs.
        **options: as `Study.run` takes them.

    Returns:
        The results of the replicates; when one was stopped with `phyla stop`, up to that one.

    Raises:
        ConfigurationError: an argument makes no sense.
        StudyChanged: a replicate exists with another configuration.
        StudyFailed: a replicate stopped itself; the ones after it were not run.
        KeyboardInterrupt: a person stopped it; run it again to resume.
        StoreError: the database failed.
    """
    done: list[Results] = []
    for replicate in replicates(study, count):
        on_replicate(replicate)
        done.append(replicate.run(workers, **options))
        if done[-1].state is StudyState.STOPPED:
            # A person stopped this one with `phyla stop`, and meant what follows too.
            break
    return done
