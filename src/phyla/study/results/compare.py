"""Studies that are compared."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phyla.errors import ConfigurationError, StudyNotFound
from phyla.study.places import Places, is_watched, names_in, open_existing
from phyla.study.results.results import Results

if TYPE_CHECKING:
    from phyla.report import StudyComparison
    from phyla.store import Store


def compare(
    studies: "str | Results | Sequence[str | Results]",
    *,
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
            them, or one study is, these are compared with each other, and distinguished by their homes.
        by: `steps` of all members together, or `time` in which anything was running.
        target: report when each study first reaches this value; by default the worst median of the best scores
            (of two middle scores, the worse one).
        home: where studies live, as for `Study`.
        storage: URL of the database, as for `Study`.
        checkpoints: where the checkpoints are, as for `Study`.

    Returns:
        The comparison: `groups`, `tests`, `rows()`, `to_json()` and `write_report(path)`.

    Raises:
        StudyNotFound: there is no such study there.
        UsageError: fewer than two studies, different objectives or constraints, or none has a finite fitness.
        ConfigurationError: an argument is invalid.
    """
    from phyla.report import ComparedStudy, compare_studies

    if by not in ("steps", "time"):
        raise ConfigurationError(f"by={by!r}: choose 'steps' or 'time'")
    if target is not None and not math.isfinite(target):
        raise ConfigurationError(f"target={target!r}: must be a finite number")
    asked = [studies] if isinstance(studies, (str, Results)) else list(studies)
    chosen = {
        (results.places.storage, results.name): results
        for results in _found(asked, Places.of(home, storage, checkpoints))
    }
    names = [results.name for results in chosen.values()]
    # Studies of one name in several stores are distinguished by their homes.
    ambiguous = {_repeats(results) for results in chosen.values() if names.count(results.name) > 1}
    return compare_studies(
        [
            ComparedStudy(
                data=results.data(),
                group=_repeats(results) + (f" ({results.places.home})" if _repeats(results) in ambiguous else ""),
                replicate=None if results.replicate is None else results.replicate.index,
            )
            for results in chosen.values()
        ],
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
        replicates = {
            results.replicate.index: results
            for results in known
            if results.replicate and results.replicate.of == name
        }
        chosen = [replicates[index] for index in sorted(replicates)] or [
            results for results in known if results.name == name
        ]
        watched = None if chosen else store.find_study(name)
        if watched is not None:
            results_of = places.command("evaluations", name, "--format", "json")
            raise StudyNotFound(
                f"{is_watched(name, store)}; compare its newest checkpoint with that of another watched run with: "
                f"{results_of} > run.json, then: {places.command('evaluations', 'OTHER', '--against', 'run.json')}"
            )
        if not chosen:
            raise StudyNotFound(
                f"there is no study {name!r} in {store.url}, nor replicates of one; there are: "
                f"{names_in(store, watched=False)}"
            )
        yield from chosen


def _repeats(results: Results) -> str:
    return results.name if results.replicate is None else results.replicate.of
