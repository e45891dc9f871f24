"""Open what is stored to read its results; needs no training or evaluation code, and changes nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyla.errors import StudyNotFound
from phyla.evaluation.suite import outlines
from phyla.records import StudyRecord
from phyla.study.evaluations import Evaluations
from phyla.study.places import Places, find_study, open_existing, open_if_there
from phyla.study.results import Results

if TYPE_CHECKING:
    from phyla.store import Store


def load_study(
    name: str,
    *,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> Results:
    """Open a study to read its results; needs no training code and changes nothing.

    Args:
        name: name of the study.
        home: directory where it lives; by default `.phyla` or the environment's.
        storage: URL of its store, if that is not in the home.
        checkpoints: directory of all studies' checkpoints, if that is not in the home.

    Raises:
        StudyNotFound: there is no such study there.
        StoreError: the database failed.
    """
    places = Places.of(home, storage, checkpoints)
    return Results(*find_study(name, places), places)


def load_evaluations(
    name: str,
    *,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> Evaluations:
    """Open what a study's suites, or a watched run, have found; needs no evaluation code and changes nothing.

    Args:
        name: name of the run; a study's is called like the study.
        home: directory where it lives; by default `.phyla` or the environment's.
        storage: URL of its store, if that is not in the home.
        checkpoints: directory of all studies' checkpoints, if that is not in the home.

    Raises:
        StudyNotFound: there is no such run there, or the study has no suites.
        StoreError: the database failed.
    """
    places = Places.of(home, storage, checkpoints)
    return evaluations_of(open_existing(f"run {name!r}", places), name, places)


def evaluations_of(store: "Store", name: str, places: Places) -> Evaluations:
    """Return what the suites of a study of any kind have found."""
    found = store.find_study(name)
    if found is None:
        names = ", ".join(repr(known.name) for known in store.studies() if outlines(known.config)) or "none"
        raise StudyNotFound(f"there is no run {name!r} in {store.url}; runs that are evaluated: {names}")
    with store.reader(found.id) as reader:
        evaluated = found.watched or bool(found.config.get("suites")) or bool(reader.all_seen(limit=1))
    if not evaluated:
        raise StudyNotFound(
            f"study {name!r} has no suites, so nothing was evaluated; give it some: Study(..., suites=[...])"
        )
    return Evaluations(store, found, places)


def open_any(name: str, places: Places) -> Results | Evaluations:
    """Open a study of any kind, a watched one as what its evaluation found."""
    return _opened(*find_study(name, places, watched=True), places)


def list_all(places: Places) -> list[Results | Evaluations]:
    """Open all studies of a store, oldest first; a SQLite file that is missing has none."""
    store = open_if_there(places)
    return [] if store is None else [_opened(store, study, places) for study in store.studies()]


def _opened(store: "Store", study: StudyRecord, places: Places) -> Results | Evaluations:
    return (Evaluations if study.watched else Results)(store, study, places)


def list_studies(**where: Any) -> list[Results]:
    """Open all studies with a population, oldest first; where they are, is said as for `load_study`."""
    return [one for one in list_all(Places.of(**where)) if isinstance(one, Results)]
