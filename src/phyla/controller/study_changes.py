"""Other settings for a study, and what follows from them for its population."""

from collections.abc import Mapping
from typing import Any, final

from phyla import machine
from phyla.configuration import check_unchanged
from phyla.errors import ConfigurationError, StoreBusy
from phyla.machine import SetConfig, TrainRules
from phyla.records import Json, JsonObject, StudyRecord, StudyState
from phyla.store import Store
from phyla.store.retry import again
from phyla.system.failpoints import failpoint


@final
class StudyChanges:
    """Changes the settings of one study with a population; every call is one transaction.

    Args:
        store: where the study is remembered.
        study: its id.
        rules: what its decisions go by from then on.
    """

    def __init__(self, store: Store, study: int, rules: TrainRules) -> None:
        self._store = store
        self._study = study
        self._rules = rules

    @again(StoreBusy)
    def change(
        self,
        config: JsonObject,
        changes: Mapping[str, tuple[Json, Json]],
        *,
        before: JsonObject | None = None,
        fresh: bool = False,
    ) -> StudyRecord:
        """Store another configuration, that of these rules, and let the population follow it.

        Trials that are running go on as they were decided, except those of members that are retired. Decisions
        that others are taking now come first; those that follow go by this configuration, wherever they are taken.

        Returns:
            The study as it is then.

        Raises:
            ConfigurationError: new members would have nothing to train.
            StudyChanged: another change came between.
        """
        rules = self._rules
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
