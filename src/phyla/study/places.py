"""Where a study keeps its things, and how the store of a place is opened and searched."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from phyla import settings
from phyla.checkpoints import RemotePlace, place_of
from phyla.errors import ConfigurationError, StateError, StudyNotFound
from phyla.records import StudyRecord, StudyState
from phyla.store.sqlite_url import PREFIX, read_sqlite_url, sqlite_url
from phyla.words import masked, pasted

if TYPE_CHECKING:
    from phyla.store import Store

NAME = re.compile(r"\w[\w.-]{0,99}")
"""What studies of every kind may be called."""


def shown(path: Path | RemotePlace) -> str:
    """Return a path as text that says so if there is nothing; nobody looks at an object store for it."""
    return str(path) if isinstance(path, RemotePlace) or path.exists() else f"{path} (not found on this machine)"


def entries(folder: Path) -> list[Path]:
    """Return what is in a directory, if it is there."""
    return list(folder.iterdir()) if folder.is_dir() else []


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where studies live."""

    home: Path
    storage: str
    checkpoint_root: Path | RemotePlace  # Of all studies' checkpoints.

    @staticmethod
    def of(
        home: str | Path | None = None, storage: str | None = None, checkpoints: str | Path | None = None
    ) -> "Places":
        """Fill in what was not given: the environment's, else everything under `.phyla`."""
        root = (Path(home) if home is not None else settings.home()).expanduser().absolute()
        url = storage or (None if home is not None else settings.storage()) or sqlite_url(root / "phyla.db")
        kept = place_of(checkpoints or root / "checkpoints", root)
        if isinstance(kept, Path):
            kept = kept.expanduser().absolute()
        return Places(home=root, storage=url, checkpoint_root=kept)

    def checkpoints(self, study: str) -> Path | RemotePlace:
        """Return where one study's checkpoints are."""
        return self.checkpoint_root / study

    def work(self, study: str) -> Path:
        """Return the directory of one study's working directories."""
        return self.home / "work" / study

    def outputs(self, study: str) -> Path:
        """Return the directory of what the evaluations of one study save."""
        return self.home / "outputs" / study

    def snapshots(self, study: str) -> Path:
        """Return the directory of snapshots of a watched directory's checkpoints."""
        return self.home / "snapshots" / study

    def best(self, study: str) -> Path:
        """Return the directory of links to the best checkpoints of a watched study."""
        return self.home / "best" / study

    def logs(self, study: str) -> Path:
        """Return the directory of one study's worker logs."""
        return self.home / "logs" / study

    def tracking(self, study: str) -> Path:
        """Return the directory of what says how much trackers were told of one study."""
        return self.home / "tracking" / study

    def watch_lock(self, study: str) -> Path:
        """Return the file that the process that watches a study holds a lock on."""
        return self.home / "watch" / f"{study}.lock"

    @property
    def pools(self) -> Path:
        """Directory of the pools of workers."""
        return self.home / "pools"

    @property
    def locks(self) -> Path | None:
        """Directory of the locks of launches; None where no other process can see the store."""
        return None if self.storage == "memory://" else self.home / "locks"

    @property
    def sqlite_file(self) -> Path | None:
        """File of a SQLite store; None for another kind of store."""
        return read_sqlite_url(self.storage)[0] if self.storage.startswith(PREFIX) else None

    def command(self, name: str, study: str, *more: str) -> str:
        """Return the command line that runs a command on a study, wherever it is."""
        words, usual = ["phyla", name, study, *more], Places.of()
        if self.home != usual.home:
            words += ["--home", _relative(self.home)]
        if self.storage != Places.of(self.home if self.home != usual.home else None).storage:
            service = self.storage.startswith(("http://", "https://", "published:"))
            url = masked(self.storage.removeprefix("published:"))
            words += ["--server" if service else "--storage", url]
        if self.checkpoint_root != Places.of(self.home).checkpoint_root:
            words += ["--checkpoints", _relative(self.checkpoint_root)]
        return pasted(words)


def _relative(path: Path | RemotePlace) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if isinstance(path, Path) and path.is_relative_to(here) else str(path)


def open_if_there(places: Places) -> "Store | None":
    """Open the store of a place; return None where it is a SQLite file that does not exist."""
    from phyla.store import open_store

    file = places.sqlite_file
    return open_store(places.storage) if file is None or file.exists() else None


def open_existing(what: str, places: Places) -> "Store":
    """Open the store of a place where something is looked for; a SQLite file has to exist."""
    store = open_if_there(places)
    if store is None:
        raise StudyNotFound(
            f"there is no {what}: {places.sqlite_file} does not exist; run the study first, or say where it is "
            "with --home, --storage or --server (in Python: home=, storage=)"
        )
    return store


def find_study(
    name: str, places: Places, *, watched: bool = False, deleting: bool = False
) -> "tuple[Store, StudyRecord]":
    """Open the store of a place and find a study in it; with `watched` also a watched one.

    One whose deletion was begun is refused, unless `deleting` says otherwise.
    """
    store = open_existing(f"study {'or run ' if watched else ''}{name!r}", places)
    study = store.find_study(name)
    if study is not None and (watched or not study.watched):
        if not deleting:
            check_kept(study)
        return store, study
    text = f"there is no study {name!r} in {store.url}{', and no watched run of that name' if watched else ''}"
    text += f"; there are: {names_in(store, watched=False)}"
    runs = names_in(store, watched=True)
    store.close()
    raise StudyNotFound(f"{text}; watched runs: {runs}" if watched and runs != "none" else text)


def find_population(store: "Store", name: str, *, deleting: bool = False) -> StudyRecord | None:
    """Return the study with a population of that name, or None; a watched one is refused."""
    found = store.find_study(name)
    if found is not None and found.watched:
        raise ConfigurationError(
            f"{store.url} has a watched study called {name!r} ({found.location or 'another study'}); give the "
            "study another name"
        )
    if found is not None and not deleting:
        check_kept(found)
    return found


def check_kept(study: StudyRecord) -> None:
    """Refuse a study whose deletion was begun."""
    if study.state is StudyState.DELETING:
        raise StateError(
            f"{study.name!r} is being deleted; if that was interrupted, finish it with: phyla delete {study.name}"
        )


def names_in(store: "Store", *, watched: bool) -> str:
    """Return the names of the studies of a store, or of its watched runs, for a message."""
    return ", ".join(repr(study.name) for study in store.studies() if study.watched == watched) or "none"
