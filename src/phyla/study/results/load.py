"""Open stored studies to read or compare their results; needs no training or evaluation code, changes nothing."""

from pathlib import Path

from phyla.study.places import Places, find_study, open_existing, open_if_there
from phyla.study.results.evaluations import Evaluations, evaluations_of
from phyla.study.results.results import Results


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
        home: where studies live, as for `Study`.
        storage: URL of the database, as for `Study`.
        checkpoints: where the checkpoints are, as for `Study`.

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
        home: where studies live, as for `Study`.
        storage: URL of the database, as for `Study`.
        checkpoints: where the checkpoints are, as for `Study`.

    Raises:
        StudyNotFound: there is no such run there, or the study has no suites.
    """
    places = Places.of(home, storage, checkpoints)
    return evaluations_of(open_existing(f"run {name!r}", places), name, places)


def open_any(name: str, places: Places) -> Results | Evaluations:
    """Open a study of any kind, a watched one as what its evaluation found."""
    store, study = find_study(name, places, watched=True)
    return (Evaluations if study.watched else Results)(store, study, places)


def list_all(places: Places) -> list[Results | Evaluations]:
    """Open all studies of a store, oldest first; a SQLite file that is missing has none."""
    store = open_if_there(places)
    if store is None:
        return []
    return [(Evaluations if study.watched else Results)(store, study, places) for study in store.studies()]
