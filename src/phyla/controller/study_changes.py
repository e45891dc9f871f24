"""Changes of a study's settings, and their effects on its population."""

from collections.abc import Mapping
from typing import Any, final

from phyla import machine
from phyla.configuration import check_unchanged
from phyla.errors import ConfigurationError, StoreBusy
from phyla.machine import SetConfig, SetStudyState, TrainRules
from phyla.records import Json, JsonObject, StudyRecord, StudyState
from phyla.store import Store
from phyla.store.retry import retry_on
from phyla.system.failpoints import failpoint


@final
class StudyChanges:
    """Changes the settings of one study with a population; every call is one transaction.

    Args:
        store: the store of the study.
        study: its id.
        rules: the new rules.
    """

    def __init__(self, store: Store, study: int, rules: TrainRules) -> None:
        self._store = store
        self._study = study
        self._rules = rules

    @retry_on(StoreBusy)
    def change(
        self,
        config: JsonObject,
        changes: Mapping[str, tuple[Json, Json]],
        *,
        before: JsonObject | None = None,
        fresh: bool = False,
    ) -> StudyRecord:
        """Store the configuration of the new rules, and adapt the population.

        Running trials continue unchanged, except those of retired members. Decisions in progress finish first; all
        later decisions use this configuration, in any process.

        Returns:
            The changed study.

        Raises:
            ConfigurationError: new members would have nothing to train.
            StudyChanged: another change came first.
        """
        rules = self._rules
        strategy = rules.strategy
        with self._store.transaction(self._study, exclusive=True, alone=True) as tx:
            stored = tx.study().config
            if before is not None:
                check_unchanged(tx.study(), before)
            earlier: Any = stored.get("changes", [])
            pairs: dict[str, Json] = {name: list(values) for name, values in changes.items()}
            entry: Json = {"at": tx.now(), "changes": pairs}
            tx.apply([SetConfig({**config, "changes": [*earlier, entry]})])
            active = sum(not tx.member(index).retired for index in range(tx.study().population_size))
            beside = machine.youngest(tx)
            if strategy.population_size > active and strategy.finished(beside):
                raise ConfigurationError(
                    f"the study cannot grow to {strategy.population_size} members: all {active} have trained "
                    f"{beside.progress} steps, and new members start at the progress of the others, so "
                    f"they would have nothing to train; raise total_steps above {beside.progress}, too"
                )
            for number in range(strategy.population_size - active):
                tx.apply(machine.join(tx, rules, beside, number, fresh=fresh))
            gone = machine.to_retire(tx, max(0, active - strategy.population_size))
            for index in gone:
                tx.apply(machine.retire(tx, index))
            study = tx.study()
            if study.state is StudyState.COMPLETED:
                tx.apply(machine.reopen_study(tx, rules))
                tx.apply(machine.begin_final(tx, stored))
            elif study.state is StudyState.RUNNING and study.message is not None:
                # It had trained, and may have more to train now.
                tx.apply([SetStudyState(StudyState.RUNNING)])
            failpoint("change.before_commit")
            study = tx.study()
        failpoint("change.after_commit")
        return study
