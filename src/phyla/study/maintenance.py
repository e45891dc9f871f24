"""Maintain a study from outside: collect its checkpoints, stop it, let it go on. Needs no training code."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from phyla import machine
from phyla.api import CollectResult
from phyla.controller import Controller, keeping_of, resized
from phyla.errors import CheckpointMissing, ConfigurationError, NotImportable, StateError
from phyla.machine import Retention
from phyla.records import StudyRecord, StudyState
from phyla.study.opening import find_study
from phyla.study.places import Places

if TYPE_CHECKING:
    from phyla.store import Store


@final
class Maintenance:
    """What a person may do to a study besides running it.

    Args:
        store: where the study is remembered.
        study: the study.
        places: where its checkpoints are.
    """

    def __init__(self, store: "Store", study: StudyRecord, places: Places) -> None:
        from phyla.checkpoints import LocalCheckpoints

        self._store = store
        self._study = study
        self._places = places
        self._repository = LocalCheckpoints(places.checkpoints(study.name))

    @property
    def places(self) -> Places:
        """Where the study keeps its things."""
        return self._places

    def retention(self) -> Retention:
        """Return which checkpoints are kept and why, and which may go; changes nothing.

        Raises:
            ConfigurationError: the store does not say what the study keeps.
        """
        with self._store.reader(self._study.id) as reader:
            return machine.retention(reader, keeping_of(reader.study().config))

    def explain_retention(self) -> str:
        """Return the formula of what is kept, and its bound, in words.

        Raises:
            ConfigurationError: the store does not say what the study keeps.
        """
        return machine.explain(keeping_of(self._study.config))

    def collect(self) -> CollectResult:
        """Delete the checkpoints that nobody needs any more.

        Raises:
            ConfigurationError: the store does not say what the study keeps.
            CheckpointMissing: none of the study's checkpoints is where they are looked for.
        """
        from phyla.local_client import collect

        found = self.retention()
        known = {row.name for row, _ in found.kept}
        if known and known.isdisjoint(self._repository.names()):
            raise CheckpointMissing(
                f"none of the {len(known)} checkpoints that study {self._study.name!r} keeps is in "
                f"{self._places.checkpoints(self._study.name)}; say where they are with checkpoints= "
                "(on the command line: --checkpoints). Nothing was deleted."
            )
        return collect(self._store, self._study.id, self._repository, found.collectable)

    def stop(self, message: str) -> None:
        """Stop the study: running workers finish their trial and end.

        Raises:
            StateError: it is not running.
        """
        state = self._state()
        if state is not StudyState.RUNNING:
            raise StateError(f"study {self._study.name!r} is {state} already; there is nothing to stop")
        self._store.set_state(self._study.id, StudyState.STOPPED, message)

    def resume(self) -> bool:
        """Let a stopped or failed study go on; return False when it is running already.

        Raises:
            StateError: it is completed.
        """
        state = self._state()
        if state is StudyState.COMPLETED:
            raise StateError(
                f"study {self._study.name!r} is completed: every member has spent its steps. Raise total_steps "
                "in the study file and run it with extend=True (on the command line: --extend)"
            )
        if state is StudyState.RUNNING:
            return False
        self._store.set_state(self._study.id, StudyState.RUNNING)
        return True

    def resize(self, population_size: int, *, newcomers: Literal["best", "fresh"] = "best") -> int:
        """Give the study another number of members; return how many it had.

        New members join where the one that has come least far is, and start from the best ones, with
        hyperparameters near theirs, or fresh. If it shrinks, the worst members are retired: their unfinished
        trials are cancelled. Workers that are running take part at once.

        Args:
            population_size: number of members from now on.
            newcomers: how new members start.

        Raises:
            ConfigurationError: the number makes no sense, or the strategy has a fixed number of members.
            StateError: the study is completed.
            StudyChanged: somebody else changed it at the same time.
            NotImportable: the strategy or the objective is of a class that is not registered; change its
                study file, and give the study the settings with `phyla change FILE`.
        """
        with self._store.reader(self._study.id) as reader:
            study = reader.study()
        strategy: Any = study.config["strategy"]
        if "population_size" not in strategy:
            raise ConfigurationError(
                f"the number of members of study {study.name!r} is fixed: its strategy {strategy['plugin']!r} has "
                "no population_size"
            )
        if study.state is StudyState.COMPLETED:
            raise StateError(
                f"study {study.name!r} is completed: no member has anything left to train. Raise total_steps and "
                "population_size in the study file and run it with extend=True (on the command line: --extend)"
            )
        if isinstance(population_size, bool) or not isinstance(population_size, int) or population_size < 1:
            raise ConfigurationError(f"population_size={population_size!r}: must be an integer of at least 1")
        before = int(strategy["population_size"])
        if before == population_size:
            return before
        try:
            config, rules = resized(study.config, population_size)
        except NotImportable as error:
            raise NotImportable(
                f"{error}: write population_size={population_size} into it, then run: phyla change FILE.py"
            ) from error
        controller = Controller(self._store, study.id, rules, config)
        changes = {"strategy.population_size": (before, population_size)}
        controller.change(config, changes, before=study.config, fresh=newcomers == "fresh")
        return before

    def _state(self) -> StudyState:
        with self._store.reader(self._study.id) as reader:
            return reader.study().state


def maintain(
    name: str,
    *,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> Maintenance:
    """Open a study to maintain it.

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
    store, study = find_study(name, places)
    return Maintenance(store, study, places)
