"""Compares studies, and the replicates of each."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phyla.errors import ConfigurationError, StudyNotFound
from phyla.study.opening import names_in, open_existing
from phyla.study.places import Places
from phyla.study.replicates import replicate_of
from phyla.study.results import Results

if TYPE_CHECKING:
    from phyla.report import StudyComparison
    from phyla.store import Store


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
    found: dict[tuple[str, str], Results] = {}
    for results in _found(asked, Places.of(home, storage, checkpoints)):
        found.setdefault((results.places.storage, results.name), results)
    group_of = _groups(list(found.values()))
    return compare_studies(
        [
            ComparedStudy(
                data=one.data(),
                group=group_of(one),
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
    for one in asked:
        if isinstance(one, Results):
            yield one
        else:
            store = store or open_existing(f"study {one!r}", places)
            yield from _named(one, store, places)


def _named(name: str, store: "Store", places: Places) -> list[Results]:
    known = [study for study in store.studies() if not study.watched]
    replicates = [(replicate_of(study.config), study) for study in known]
    of_it = [(which.index, study) for which, study in replicates if which is not None and which.of == name]
    chosen = [study for _, study in sorted(of_it, key=lambda pair: pair[0])]
    chosen = chosen or [study for study in known if study.name == name]
    if not chosen:
        raise StudyNotFound(
            f"there is no study {name!r} in {store.url}, nor replicates of one; there are: "
            f"{names_in(store, watched=False)}"
        )
    return [Results(store, study, places) for study in chosen]


def _groups(studies: Sequence[Results]) -> Callable[[Results], str]:
    """Return what names the group of a study: what it repeats, and its home if one is in several stores."""
    names = [one.name for one in studies]
    apart = {_repeats(one) for one in studies if names.count(one.name) > 1}
    return lambda one: f"{_repeats(one)} ({one.places.home})" if _repeats(one) in apart else _repeats(one)


def _repeats(results: Results) -> str:
    return results.name if results.replicate is None else results.replicate.of
