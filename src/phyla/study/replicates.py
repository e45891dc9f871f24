"""Replicates of a study, which are the same again with other seeds; and comparing studies and their replicates."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phyla.errors import ConfigurationError, StudyNotFound
from phyla.records import StudyState
from phyla.study.places import Places, names_in, open_existing
from phyla.study.results import Results

if TYPE_CHECKING:
    from phyla.report import StudyComparison
    from phyla.store import Store
    from phyla.study.study import Study


def replicate_seed(seed: int, index: int) -> int:
    """Return the seed of a replicate, in [0, 2**53).

    It depends on the study's seed and the index alone, so replicates of different studies with the same seed
    share their seeds, and can be compared in pairs. NumPy's `SeedSequence` draws it, whose numbers never change.
    Studies of neighbouring seeds share no replicates, as they would with `seed + index`.
    """
    return derived_seed(seed, index)


def derived_seed(seed: int, *key: int) -> int:
    """Return a seed in [0, 2**53) that depends on a seed and a key alone, in every version."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint64)[0]) >> 11


def replicates(study: "Study", count: int) -> "list[Study]":
    """Return the first replicates of a study, as studies: `NAME-r0`, `NAME-r1`, ... with seeds of their own."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigurationError(f"replicates={count!r}: must be an integer of at least 1")
    return [study.replicate(index) for index in range(count)]


def run_replicates(study: "Study", count: int, workers: int = 0, **options: Any) -> list[Results]:
    """Run a study several times, one replicate after the other, each with a seed of its own.

    Run again, it resumes: replicates that are complete stay as they are. Replicate i is the study `NAME-r{i}` with
    `replicate_seed(seed, i)`, and remembers that it is one; `phyla.compare` puts replicates together.

    Args:
        study: the study to repeat; it does not run itself.
        count: how many replicates.
        workers: worker processes to start for each; 0 works in this process.
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
        done.append(replicate.run(workers, **options))
        if done[-1].state is StudyState.STOPPED:
            # A person stopped this one with `phyla stop`, and meant what follows too.
            break
    return done


def compare(
    studies: "str | Results | Sequence[str | Results]",
    *,
    metric: str = "best",
    by: str = "steps",
    target: float | None = None,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> "StudyComparison":
    """Compare studies; replicates of one study are taken together.

    Args:
        studies: names, or results. The name of a study that has replicates means all of them; a replicate's own
            name means that one. Results may come from different stores: where one replicate is in several of
            them, or one study is, these are compared with each other, and told apart by their homes.
        metric: `best`, the best fitness so far, or `median`, the median of every member's newest one.
        by: `steps` of all members together, or `time` in which anything was running.
        target: the value whose first time is told; by default the worst median of the final values, of two in
            the middle the worse one.
        home: directory where the named studies live; by default `.phyla` or the environment's.
        storage: URL of their store, if that is not in the home.
        checkpoints: directory of all studies' checkpoints, if that is not in the home.

    Returns:
        The comparison: `groups`, `tests`, `rows()`, `to_json()` and `write_report(path)`.

    Raises:
        StudyNotFound: there is no such study there.
        UsageError: fewer than two studies, different objectives or constraints, or none has a finite fitness.
        ConfigurationError: an argument makes no sense.
        StoreError: the database failed.
    """
    from phyla.report import ComparedStudy, compare_studies

    if metric not in ("best", "median"):
        raise ConfigurationError(f"metric={metric!r}: choose 'best' or 'median'")
    if by not in ("steps", "time"):
        raise ConfigurationError(f"by={by!r}: choose 'steps' or 'time'")
    if target is not None and not math.isfinite(target):
        raise ConfigurationError(f"target={target!r}: must be a finite number")
    asked = [studies] if isinstance(studies, (str, Results)) else list(studies)
    found = {(one.places.storage, one.name): one for one in _found(asked, Places.of(home, storage, checkpoints))}
    names = [one.name for one in found.values()]
    # Studies of one name are in several stores, and are told apart by their homes.
    apart = {_repeats(one) for one in found.values() if names.count(one.name) > 1}
    return compare_studies(
        [
            ComparedStudy(
                data=one.data(),
                group=f"{_repeats(one)} ({one.places.home})" if _repeats(one) in apart else _repeats(one),
                replicate=None if one.replicate is None else one.replicate.index,
            )
            for one in found.values()
        ],
        measure="best" if metric == "best" else "median",
        by="steps" if by == "steps" else "time",
        target=target,
    )


def _found(asked: "Sequence[str | Results]", places: Places) -> Iterator[Results]:
    store: Store | None = None
    for name in asked:
        if isinstance(name, Results):
            yield name
            continue
        store = store or open_existing(f"study {name!r}", places)
        known = [Results(store, study, places) for study in store.studies() if not study.watched]
        of_it = [one for one in known if one.replicate is not None and one.replicate.of == name]
        of_it.sort(key=lambda one: 0 if one.replicate is None else one.replicate.index)
        chosen = of_it or [one for one in known if one.name == name]
        if not chosen:
            raise StudyNotFound(
                f"there is no study {name!r} in {store.url}, nor replicates of one; there are: "
                f"{names_in(store, watched=False)}"
            )
        yield from chosen


def _repeats(results: Results) -> str:
    return results.name if results.replicate is None else results.replicate.of
