"""Maintain a study from outside: collect its checkpoints, stop it, let it go on. Needs no training code."""

from typing import TYPE_CHECKING, Any, Literal, final

from phyla import machine
from phyla.client import CollectResult
from phyla.controller import Controller, keeping_of, resized
from phyla.errors import CheckpointsAbsent, ConfigurationError, NotImportable, StateError
from phyla.machine import Retention
from phyla.records import StudyRecord, StudyState
from phyla.study.places import Places, find_study

if TYPE_CHECKING:
    from phyla.store import Store


@final
class Maintenance:
    """What a person may do to a study besides running it."""

    def __init__(self, store: "Store", study: StudyRecord, places: Places) -> None:
        from phyla.client import open_checkpoints

        self.places = places
        self._store = store
        self._study = study
        self._repository = open_checkpoints(store, study.name, places.checkpoints(study.name))

    def retention(self) -> Retention:
        """Return which checkpoints are kept and why, and which may go; changes nothing."""
        with self._store.reader(self._study.id) as reader:
            return machine.retention(reader, keeping_of(reader.study().config))

    def explain_retention(self) -> str:
        """Return the formula of what is kept, and its bound, in words."""
        return machine.explain(keeping_of(self._study.config))

    def collect(self) -> CollectResult:
        """Delete the checkpoints that nobody needs any more.

        Raises:
            CheckpointsAbsent: the directory of the checkpoints is not there, or is not the study's.
        """
        from phyla.client import collect

        found = self.retention()
        if found.kept or found.collectable:
            self._repository.check_owner()
        return collect(self._store, self._study.id, self._repository, found.collectable)

    def adopt(self) -> str:
        """Make the checkpoint directory this study's, after its store was copied or restored; deletes nothing.

        Only for a directory that no other store works on: one that belongs to a study of the same name in another
        store, one that lost its marker and holds nothing but checkpoints, or an empty one. What was adopted is
        returned in a sentence.

        Raises:
            CheckpointsAbsent: there is no such directory.
            CheckpointsNotOurs: it belongs to a study of another name, or holds what phyla did not make.
            CheckpointStorageFailed: its marker cannot be written.
        """
        from phyla.client import claim_checkpoints, open_checkpoints, sort_out

        name, root = self._study.name, self.places.checkpoints(self._study.name)
        try:
            claim_checkpoints(self._store, self._study, self._repository)
        except CheckpointsAbsent:
            pass
        else:
            return f"{root} belongs to study {name!r} of this store already"
        names = {*self._repository.names(), *self._repository.staged()}
        with self._store.reader(self._study.id) as reader:
            restored = bool(sort_out(reader, names, self._repository.prefix).forgotten)
        assert self._repository.ownership is not None
        was = self._repository.ownership.adopt()
        if restored:
            # What the store has forgotten keeps the old id in its names; what it makes from now on gets a new one.
            self._store.renew_identity()
            self._repository = open_checkpoints(self._store, name, root)
            assert self._repository.ownership is not None
            was = self._repository.ownership.adopt()
        names = {*self._repository.names(), *self._repository.staged(), *self._repository.deleting()}
        with self._store.reader(self._study.id) as reader:
            found = sort_out(reader, names, self._repository.prefix)
            missing = sum(row.name not in found.rows for row in reader.live_checkpoints())
        return (
            f"{root} belongs to study {name!r} of this store now; {was}. The store knows {len(found.rows)} of the "
            f"checkpoints there; {len(found.unknown)} it does not know, and leaves alone; {missing} that it knows "
            "are not there"
        )

    def stop(self, message: str) -> None:
        """Stop the study: running workers finish their trial and end.

        Raises:
            StateError: it is not running.
        """
        state = self._now().state
        if state is not StudyState.RUNNING:
            raise StateError(f"study {self._study.name!r} is {state} already; there is nothing to stop")
        self._store.set_state(self._study.id, StudyState.STOPPED, message)

    def resume(self) -> bool:
        """Let a stopped or failed study go on; return False when it is running already.

        Raises:
            StateError: it is completed.
        """
        state = self._now().state
        if state is StudyState.COMPLETED:
            raise StateError(
                f"study {self._study.name!r} is completed: every member has spent its steps. Raise total_steps "
                "in the study file, then: phyla change FILE.py"
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

        Raises:
            ConfigurationError: the number makes no sense, or the strategy has a fixed number of members.
            StateError: the study is completed.
            StudyChanged: somebody else changed it at the same time.
            NotImportable: the strategy or the objective is of a class that is not registered; change its
                study file, and give the study the settings with `phyla change FILE`.
        """
        study = self._now()
        strategy: Any = study.config["strategy"]
        if "population_size" not in strategy:
            raise ConfigurationError(
                f"the number of members of study {study.name!r} is fixed: its strategy {strategy['plugin']!r} has "
                "no population_size"
            )
        if study.state is StudyState.COMPLETED:
            raise StateError(
                f"study {study.name!r} is completed: no member has anything left to train. Raise total_steps and "
                "population_size in the study file, then: phyla change FILE.py"
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

    def _now(self) -> StudyRecord:
        with self._store.reader(self._study.id) as reader:
            return reader.study()


def maintain(name: str, **where: Any) -> Maintenance:
    """Open a study to maintain it; where it is, is said as for `load_study`."""
    places = Places.of(**where)
    return Maintenance(*find_study(name, places), places)
