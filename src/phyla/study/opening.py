"""Find studies by name in the store of some place."""

from pathlib import Path
from typing import TYPE_CHECKING

from phyla.errors import StudyNotFound
from phyla.records import StudyRecord
from phyla.store.sqlite_url import PREFIX, read_sqlite_url
from phyla.study.places import Places

if TYPE_CHECKING:
    from phyla.store import Store


def find_study(name: str, places: Places) -> "tuple[Store, StudyRecord]":
    """Open the store of a place and find a study in it; a SQLite file that is missing is not created.

    Raises:
        StudyNotFound: there is no such study there.
        StoreError: the database failed.
    """
    store = open_existing(f"study {name!r}", places)
    study = store.find_study(name)
    if study is None:
        names = ", ".join(repr(known.name) for known in store.studies()) or "none"
        store.close()
        raise StudyNotFound(f"there is no study {name!r} in {store.url}; there are: {names}")
    return store, study


def open_existing(what: str, places: Places) -> "Store":
    """Open the store of a place; a SQLite file that is missing is not created.

    Args:
        what: what is looked for there, for the message.
        places: where it is.

    Raises:
        StudyNotFound: the SQLite file does not exist.
        StoreError: the database failed.
    """
    from phyla.store import open_store

    file = sqlite_file(places.storage)
    if file is not None and not file.exists():
        raise StudyNotFound(
            f"there is no {what}: {file} does not exist; "
            "run the study first, or say where it is with home= or storage= "
            "(on the command line: --home, --storage)"
        )
    return open_store(places.storage)


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite store, or None for another kind of store.

    Raises:
        ConfigurationError: the URL names no file.
    """
    return read_sqlite_url(url)[0] if url.startswith(PREFIX) else None
