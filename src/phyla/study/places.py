"""Where a study keeps its things, and how the store of a place is opened and searched."""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from phyla import settings
from phyla.checkpoints import RemotePlace, place_of
from phyla.errors import ConfigurationError, StateError, StudyNotFound
from phyla.formatting import join_names, mask_password, quote_command
from phyla.records import Checkpoint, StudyRecord, StudyState
from phyla.store.sqlite_url import PREFIX, read_sqlite_url, sqlite_url

if TYPE_CHECKING:
    from phyla.store import Store

ROOT = "checkpoint_root"
"""Name of the setting that says where a study's checkpoints are; without it they are in its home."""
USUAL = "checkpoints"
NAMES_SHOWN = 20
CLIENTS = "(its files are with the client that made it)"

Folder: TypeAlias = Literal["work", "logs", "outputs", "prepared", "tracking", "best", "snapshots"]
"""Directories of one study: working directories, logs of workers, what its evaluations save, prepared checkpoints,
what trackers were told, links to the best checkpoints of a watched study, snapshots of a watched directory's
checkpoints."""


def format_path(path: Path | RemotePlace) -> str:
    """Return a path as text, with a remark if nothing is there; object stores are not asked."""
    return str(path) if isinstance(path, RemotePlace) or path.exists() else f"{path} (not found on this machine)"


def where_of(row: Checkpoint, root: Path | RemotePlace) -> str:
    """Return the place of a study's checkpoint as text; only its name if a black-box client keeps it."""
    return f"{row.name} {CLIENTS}" if row.weak else format_path(root / row.name)


def entries(folder: Path) -> list[Path]:
    """Return the entries of a directory, if it exists."""
    return list(folder.iterdir()) if folder.is_dir() else []


_FOREIGN = re.compile(r"(sqlite:/*)?([A-Za-z]:[\\/]|\\\\)|file:")


def _refuse_foreign(name: str, value: str) -> None:
    """Reject Windows paths and file URLs, which would become files of that literal name here."""
    if os.name != "nt" and (match := _FOREIGN.match(value)):
        kind = "a URL" if match.group() == "file:" else "a path of Windows"
        raise ConfigurationError(
            f"{name}={value!r}: this is {kind}; give a path of this machine, as /data/studies"
        )


def absolute_path(path: Path) -> Path:
    """Return a path of this machine from its root; `ConfigurationError` if the current directory was deleted."""
    try:
        return path.expanduser().absolute()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{path}: the current directory was deleted; change to another one, or give an absolute path"
        ) from error


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where studies live."""

    home: Path
    storage: str
    checkpoint_root: Path | RemotePlace  # Of all studies' checkpoints.
    named: bool = False  # Whether a person named it.

    @staticmethod
    def of(
        home: str | Path | None = None, storage: str | None = None, checkpoints: str | Path | None = None
    ) -> "Places":
        """Fill in defaults: from the environment, else under `.phyla`."""
        for name, value in {"home": home, "storage": storage, "checkpoints": checkpoints}.items():
            if value == "":
                raise ConfigurationError(f"{name} is empty: is the variable that should fill it not set?")
            _refuse_foreign(name, str(value))
        if home is None:
            _refuse_foreign("PHYLA_HOME", str(settings.home()))
            if storage is None:
                _refuse_foreign("PHYLA_STORAGE", settings.storage() or "")
        root = absolute_path(Path(home) if home is not None else settings.home())
        with suppress(PermissionError):  # which opening the store reports
            if root.is_file():
                raise ConfigurationError(
                    f"the home {root} is a file, not a directory: name another with --home, home= or PHYLA_HOME"
                )
        url = storage or (None if home is not None else settings.storage()) or _store_of(root)
        place = place_of(checkpoints or root / USUAL, root)
        if isinstance(place, Path):
            place = absolute_path(place)
        return Places(home=root, storage=url, checkpoint_root=place, named=checkpoints is not None)

    def checkpoints(self, study: str, config: Mapping[str, Any] | None = None) -> Path | RemotePlace:
        """Return where a study's checkpoints are; reject a place other than that of its stored `config`."""
        expected = self.checkpoint_root / study
        if config is None:
            return expected
        stored = self._root(config) / study
        if not self.named or str(stored) == str(expected):
            return stored
        if not config.get(ROOT) and not self._movable:
            return expected  # It was created in another home, perhaps.
        if isinstance(stored, Path):
            # A missing directory may have another name on this machine; its marker is checked at each use.
            with suppress(OSError):
                if not stored.is_dir() or (isinstance(expected, Path) and stored.samefile(expected)):
                    return expected
        raise ConfigurationError(
            f"study {study!r} has its checkpoints in {stored}, not in {expected}. Leave --checkpoints out (in "
            f"Python: checkpoints=): the study remembers where they are. If you copied them to {expected}, let "
            f"the study go on there with: phyla doctor {study} --adopt --checkpoints {self.checkpoint_root}"
        )

    def _root(self, config: Mapping[str, Any]) -> Path | RemotePlace:
        place = place_of(config.get(ROOT) or USUAL, self.home)
        return self.home / place if isinstance(place, Path) else place

    def like(self, config: Mapping[str, Any]) -> "Places":
        """Return the places of a new study that takes over from a stored one, unless a person named others."""
        if self.named or not config.get(ROOT):
            return self
        return replace(self, checkpoint_root=self._root(config), named=True)

    def remembered(self) -> dict[str, Any]:
        """Return what a study's configuration has of the place; within a home that can be moved it is relative."""
        root = self.checkpoint_root
        if not self.named or root == self.home / USUAL:
            return {}
        if self._movable and isinstance(root, Path) and root.is_relative_to(self.home):
            return {ROOT: str(root.relative_to(self.home))}
        return {ROOT: str(root)}

    @property
    def _movable(self) -> bool:
        return self.sqlite_file == self.home / "phyla.db"

    def folder(self, kind: Folder, study: str) -> Path:
        """Return one of a study's directories."""
        return self.home / kind / study

    def snapshots(self, run: str, named: str, store: str) -> Path:
        """Return where a watched run keeps snapshots: in the home, wherever it is now, or in a named directory."""
        # A run of this name in another store would remove what it does not know.
        return Path(named, f"{run}-{store[:6]}") if named else self.folder("snapshots", run)

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
        return read_sqlite_url(self.storage) if self.storage.startswith(PREFIX) else None

    @property
    def reaches_others(self) -> bool:
        """Whether other machines can use the store."""
        return self.sqlite_file is None and self.locks is not None

    def command(self, name: str, study: str, *more: str) -> str:
        """Return the command line that runs a command on a study, wherever it is."""
        words, usual = ["phyla", name, study, *more], Places.of()
        if self.home != usual.home:
            words += ["--home", _relative(self.home)]
        if self.storage != Places.of(self.home if self.home != usual.home else None).storage:
            service = self.storage.startswith(("http://", "https://", "published:"))
            url = mask_password(self.storage.removeprefix("published:"))
            words += ["--server" if service else "--storage", url]
        if self.checkpoint_root != Places.of(self.home).checkpoint_root:
            words += ["--checkpoints", _relative(self.checkpoint_root)]
        return quote_command(words)


def _relative(path: Path | RemotePlace) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if isinstance(path, Path) and path.is_relative_to(here) else str(path)


def _store_of(home: Path) -> str:
    """Return the store of a home: its SQLite file; where none can be opened, the service that is named there."""
    file, service = home / "phyla.db", home / "service.json"
    if service.exists():
        from phyla.store.remote import PUBLISHED
        from phyla.system.file_systems import network_file_system

        if not file.exists() or network_file_system(file) is not None:
            return f"{PUBLISHED}{service}"
    return sqlite_url(file)


def open_if_there(places: Places) -> "Store | None":
    """Open the store of a place; return None where it is a SQLite file that does not exist."""
    from phyla.store import open_store

    file = places.sqlite_file
    return open_store(places.storage) if file is None or file.exists() else None


def open_existing(subject: str, places: Places) -> "Store":
    """Open the store of a place where something is looked for; a SQLite file has to exist."""
    store = open_if_there(places)
    if store is None:
        raise StudyNotFound(
            f"there is no {subject}: {places.sqlite_file} does not exist; start it first, with phyla run or "
            "phyla watch, or give its place with --home, --storage or --server (in Python: home=, storage=)"
        )
    return store


def find_study(
    name: str, places: Places, *, watched: bool = False, deleting: bool = False, patient: bool = False
) -> "tuple[Store, StudyRecord]":
    """Open the store of a place and find a study in it; with `watched` also a watched one.

    A study that is being deleted is rejected, unless `deleting`. With `patient`, wait for an absent service.
    """
    store = open_existing(f"study {'or run ' if watched else ''}{name!r}", places)
    if patient:
        from phyla.store import hold_on

        hold_on(store)
    study = store.find_study(name)
    if study is not None and (watched or not study.watched):
        if not deleting:
            check_kept(study)
        return store, study
    if study is not None:
        store.close()
        raise StudyNotFound(
            f"{is_watched(name, store)}; see what was evaluated with: {places.command('status', name)}, "
            f"{places.command('evaluations', name)} or {places.command('export', name)}. Ctrl-C stops its phyla "
            "watch; watch again to change its suites"
        )
    text = f"there is no study {name!r} in {store.url}{', and no watched run of that name' if watched else ''}"
    text += f"; there are: {names_in(store, watched=False)}"
    runs = names_in(store, watched=True)
    store.close()
    raise StudyNotFound(f"{text}; watched runs: {runs}" if watched and runs != "none" else text)


def is_watched(name: str, store: "Store") -> str:
    """Explain that a name is that of a watched run, where one of a study with a population is needed."""
    return f"{name!r} in {store.url} is a watched run, and this is for studies with a population"


def find_population(store: "Store", name: str, *, deleting: bool = False) -> StudyRecord | None:
    """Return the study with a population of that name, or None; reject a watched study."""
    record = store.find_study(name)
    if record is not None and record.watched:
        raise ConfigurationError(
            f"{store.url} has a watched study called {name!r} ({record.location or 'another study'}); give the "
            "study another name"
        )
    if record is not None and not deleting:
        check_kept(record)
    return record


def check_kept(study: StudyRecord) -> None:
    """Reject a study whose deletion has begun."""
    if study.state is StudyState.DELETING:
        raise StateError(
            f"{study.name!r} is being deleted; if that was interrupted, finish it with: phyla delete {study.name}"
        )


def names_in(store: "Store", *, watched: bool) -> str:
    """Return the names of the studies of a store, or of its watched runs, for a message."""
    return list_names(study for study in store.studies() if study.watched == watched)


def list_names(studies: Iterable[StudyRecord]) -> str:
    """Return the names of some studies for a message: a store may have thousands."""
    return join_names([repr(study.name) for study in studies], NAMES_SHOWN) or "none"
