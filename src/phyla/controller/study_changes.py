"""What a controller does besides answering workers: it changes the study, imports, and looks after checkpoints."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from phyla import machine
from phyla.configuration import check_unchanged, differences
from phyla.controller.study_records import Housekeeping
from phyla.errors import ConfigurationError, StoreBusy
from phyla.machine import Imported, KeptCheckpoints, Rules, SetConfig, TrainRules
from phyla.records import Json, JsonObject, StudyRecord, StudyState
from phyla.store import Store, Transaction
from phyla.store.retry import again, repeatable
from phyla.system.failpoints import failpoint


class Upkeep(Housekeeping):
    """Changes a study and looks after it; every call is one transaction, and may raise `StoreError`.

    Args:
        store: where the study is remembered.
        study: its id.
        rules: what its decisions go by.
        config: the stored configuration that the rules were made from; None for the one that is found first.
        source: id of the study that it watches; None for one that watches no other.
    """

    def __init__(
        self,
        store: Store,
        study: int,
        rules: Rules,
        config: JsonObject | None = None,
        *,
        source: int | None = None,
    ) -> None:
        super().__init__(store, study)
        self._source = source
        self.rules = rules
        self._config = config
        self._seen: JsonObject | None = None
        self._outdated: str | None = None

    @property
    def population(self) -> TrainRules:
        """The rules of a study with a population."""
        assert isinstance(self.rules, TrainRules)
        return self.rules

    @property
    def outdated(self) -> bool:
        """Whether the last transaction met settings that are not those of the rules."""
        return self._outdated is not None

    @again(StoreBusy)
    def change(
        self,
        config: JsonObject,
        changes: Mapping[str, tuple[Json, Json]],
        *,
        before: JsonObject | None = None,
        fresh: bool = False,
    ) -> StudyRecord:
        """Store another configuration, that of this controller's rules, and let the population follow it.

        Trials that are running go on as they were decided, except those of members that are retired. Decisions
        that others are taking now come first; those that follow go by this configuration, wherever they are taken.

        Returns:
            The study as it is then.

        Raises:
            ConfigurationError: new members would have nothing to train.
            StudyChanged: another change came between.
        """
        rules = self.population
        strategy = rules.strategy
        with self._store.transaction(self._study, exclusive=True, alone=True) as tx:
            stored = tx.study().config
            if before is not None:
                check_unchanged(tx.study(), before)
            earlier: Any = stored.get("changes", [])
            told: dict[str, Json] = {name: list(values) for name, values in changes.items()}
            entry: Json = {"at": tx.now(), "changes": told}
            tx.apply([SetConfig({**config, "changes": [*earlier, entry]})])
            active = sum(not tx.member(index).retired for index in range(tx.study().population_size))
            beside = machine.youngest(tx)
            if strategy.population_size > active and strategy.finished(beside):
                raise ConfigurationError(
                    f"the study cannot grow to {strategy.population_size} members: all {active} have spent their "
                    f"{beside.progress} steps, and new ones join where the others are, so they would have "
                    f"nothing to train; raise total_steps above {beside.progress} as well"
                )
            for number in range(strategy.population_size - active):
                tx.apply(machine.join(tx, rules, beside, number, fresh=fresh))
            gone = machine.to_retire(tx, max(0, active - strategy.population_size))
            for index in gone:
                tx.apply(machine.retire(tx, index))
            if tx.study().state is StudyState.COMPLETED:
                tx.apply(machine.reopen_study(tx, rules))
            failpoint("change.before_commit")
            study = tx.study()
        failpoint("change.after_commit")
        return study

    @repeatable
    def awaits_imports(self) -> bool:
        """Return whether no member has got its import yet."""
        with self._store.reader(self._study) as reader:
            return machine.awaits_imports(reader)

    @repeatable
    def import_checkpoints(self, imports: Sequence[Imported]) -> bool:
        """Let every member start from a checkpoint that was brought here; all at once.

        Returns:
            Whether they do; False if somebody else was quicker.
        """
        with self._store.transaction(self._study, exclusive=True) as tx:
            if not machine.awaits_imports(tx):
                return False
            for index in range(tx.study().population_size):
                tx.apply(machine.import_start(tx, index, imports))
            failpoint("import.before_commit")
        failpoint("import.after_commit")
        return True

    @repeatable
    def retention(self) -> KeptCheckpoints:
        """Return which checkpoints are kept and which may go; changes nothing.

        Where the settings were changed, none may.
        """
        with self._store.reader(self._study) as reader:
            self._compare(reader.study().config)
            found = machine.retention(reader, self.population.keeping)
        if self._outdated is None:
            return found
        kept = [(row, "the study has settings that this process does not have") for row in found.collectable]
        return replace(found, kept=(*found.kept, *kept), collectable=())

    @repeatable
    def set_unusable(self, name: str, damage: str | None) -> None:
        """Mark a checkpoint as lost or damaged, so that it is no donor, no parent and not the best any more."""
        with self._store.transaction(self._study, exclusive=True) as tx:
            tx.apply(machine.set_unusable(tx, name, damage))

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Open a transaction, and compare the settings of the study with those of this process."""
        while True:
            known = self._outdated
            # Settings that this process does not have may be those of a strategy that is exclusive.
            exclusive = isinstance(self.rules, TrainRules) and (known is not None or self.rules.exclusive)
            with self._store.transaction(self._study, exclusive=exclusive, source=self._source) as tx:
                if isinstance(self.rules, TrainRules):
                    self._compare(tx.study().config)
                if self._outdated == known:
                    yield tx
                    return

    def _compare(self, stored: JsonObject) -> None:
        """Find out whether the stored configuration decides differently from that of the rules."""
        if self._config is None:
            self._config = stored
        if stored == self._seen:
            return
        changed = differences(self._config, stored)
        self._seen = stored
        why = (
            f"the settings of the study were changed ({', '.join(changed)}). This process has handed in its work "
            "and takes no more; start it again with the changed study file"
        )
        self._outdated = why if changed else None
