"""Find studies of every kind in the store of some place."""

from pathlib import Path
from typing import TYPE_CHECKING

from phyla.errors import ConfigurationError, StudyNotFound
from phyla.records import StudyRecord
from phyla.store.sqlite_url import PREFIX, read_sqlite_url
from phyla.study.places import Places

if TYPE_CHECKING:
    from phyla.store import Store


def find_study(name: str, places: Places, *, watched: bool = False) -> "tuple[Store, StudyRecord]":
    """Open the store of a place and find a study in it; a SQLite file that is missing is not created.

    Args:
        name: name of the study.
        places: where it is.
        watched: also find a watched directory, or a watched study, under its name.

    Raises:
        StudyNotFound: there is no such study there; the message names those that are.
        StoreError: the database failed.
    """
    store = open_existing(f"study {'or run ' if watched else ''}{name!r}", places)
    study = store.find_study(name)
    if study is not None and (watched or not study.watched):
        return store, study
    runs = watched and any(known.watched for known in store.studies())
    others = names_in(store, watched=True) if runs else ""
    text = f"there is no study {name!r} in {store.url}{', and no watched run of that name' if watched else ''}"
    text = f"{text}; there are: {names_in(store, watched=False)}{others and f'; watched runs: {others}'}"
    store.close()
    raise StudyNotFound(text)


def names_in(store: "Store", *, watched: bool) -> str:
    """Return the names of the studies of a store, or of its watched runs, for a message."""
    return ", ".join(repr(study.name) for study in store.studies() if study.watched == watched) or "none"


def find_population(store: "Store", name: str) -> StudyRecord | None:
    """Return the study with a population of that name, or None.

    Raises:
        ConfigurationError: the name is that of something that is watched.
    """
    found = store.find_study(name)
    return None if found is None else checked_population(store, found)


def checked_population(store: "Store", found: StudyRecord) -> StudyRecord:
    """Return a study that has a population.

    Raises:
        ConfigurationError: it is watched.
    """
    if found.watched:
        raise ConfigurationError(
            f"{store.url} has a watched study called {found.name!r} ({found.location or 'another study'}); give "
            "the study another name"
        )
    return found


def open_existing(what: str, places: Places) -> "Store":
    """Open the store of a place; a SQLite file that is missing is not created.

    Args:
        what: what is looked for there, for the message.
        places: where it is.

    Raises:
        StudyNotFound: the SQLite file does not exist.
        StoreError: the database failed.
    """
    store = open_if_there(places)
    if store is None:
        raise StudyNotFound(
            f"there is no {what}: {sqlite_file(places.storage)} does not exist; "
            "run the study first, or say where it is with home= or storage= "
            "(on the command line: --home, --storage)"
        )
    return store


def open_if_there(places: Places) -> "Store | None":
    """Open the store of a place; return None where it is a SQLite file that does not exist.

    Raises:
        StoreError: the database failed.
    """
    from phyla.store import open_store

    file = sqlite_file(places.storage)
    return open_store(places.storage) if file is None or file.exists() else None


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite store, or None for another kind of store.

    Raises:
        ConfigurationError: the URL names no file.
    """
    return read_sqlite_url(url)[0] if url.startswith(PREFIX) else None
