"""The studies of a service: their controllers, made from the stored settings and cached until those change."""

import json
from functools import lru_cache
from typing import Any, final

from phyla import plugins, queries
from phyla.configuration import differences, from_config, keeping_of, settings_digest, suites_from
from phyla.controller import Controller, Sightings, StudyChanges, StudyRecords
from phyla.controller.connect import CHANGES, RECORDS, WORK
from phyla.errors import ConfigurationError, NotImportable, PhylaError, StudyChanged, UsageError
from phyla.machine import Outdated, Rules, TrainRules, WatchRules
from phyla.records import JsonObject, StudyKind, StudyRecord
from phyla.store import STORE, Part, Query, Store
from phyla.validation import check_name

CONTROLLERS_KEPT = 1000
OTHER_SETTINGS = (
    "the stored settings of the study differ from this worker's study file: they were changed, or it is another "
    "file. The worker has submitted its results and accepts no more work; restart it with the file of the study"
)


@final
class Studies:
    """Calls the methods of a study's parts by name."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._made = lru_cache(CONTROLLERS_KEPT)(self._make)

    def look(self, query: Query[..., Any], study: int, arguments: dict[str, Any], _: str | None) -> Any:
        """Answer a query about a study; the caller's settings do not matter."""
        try:
            return self.store.look(study, query, **arguments)
        except KeyError as error:
            raise UsageError(*error.args) from error

    def call(self, part: Part[Any], name: str, study: int, arguments: dict[str, Any], digest: str | None) -> Any:
        """Call a method of a part of a study, or of the store; `digest` is that of the caller's settings."""
        if part is WORK:
            return self._controlled(study, name, arguments, digest)
        return getattr(self._part(part, name, study, arguments), name)(**arguments)

    def _part(self, part: Part[Any], name: str, study: int, arguments: dict[str, Any]) -> Any:
        """Return the part with a method that needs no controller, after checking the arguments."""
        if part is STORE:
            if name == "create_study":
                rules = check_config(arguments["config"], arguments["kind"])
                _check_study(arguments["name"], arguments["population_size"], rules)
            return self.store
        if part is CHANGES:
            rules = check_config(arguments["config"], StudyKind.POPULATION)
            assert isinstance(rules, TrainRules)
            return StudyChanges(self.store, study, rules)
        if part is RECORDS:
            if name == "store_config":
                check_config(arguments["config"], self._record(study).kind)
            return StudyRecords(self.store, study)
        record = self._record(study)
        return Sightings(self.store, record, suites_from(record.config, plugins.absent))

    def _controlled(self, study: int, name: str, arguments: dict[str, Any], digest: str | None) -> Any:
        controller, stored = self._now(study)
        if name == "complete" and digest not in (None, stored):
            answers, _, _ = controller.complete(arguments["completions"])
            return answers, [], Outdated(why=OTHER_SETTINGS) if arguments.get("count") else None
        return getattr(controller, name)(**arguments)

    def controller(self, study: int) -> Controller:
        """Return the controller of a study with its stored settings."""
        return self._now(study)[0]

    def _now(self, study: int) -> tuple[Controller, str]:
        """Return a controller with the current settings, and their digest."""
        record = self._record(study)
        return self._made(study, record.kind, record.source, json.dumps(record.config))

    def _make(self, study: int, kind: StudyKind, source: int | None, text: str) -> tuple[Controller, str]:
        config = json.loads(text)
        rules = check_config(config, kind)
        return Controller(self.store, study, rules, config, source=source), settings_digest(config)

    def create(self, name: str, config: JsonObject, seed: int, members: int) -> StudyRecord:
        """Create a study with a population; `StudyChanged` if there is one with other settings."""
        check_config(config, StudyKind.POPULATION)
        record = self.store.create_study(name, config, seed, members)
        changed = differences(record.config, config)
        if changed:
            raise StudyChanged(f"study {name!r} exists with other settings: {', '.join(changed)}")
        return record

    def _record(self, study: int) -> StudyRecord:
        return self.store.look(study, queries.study)


def _check_study(name: str, members: int, rules: Rules) -> None:
    """Reject a name that is unsafe in paths, and a number of members that differs from the settings."""
    check_name(f"study name {name!r}", name)
    meant = rules.strategy.population_size if isinstance(rules, TrainRules) else 0
    if members != meant:
        raise ConfigurationError(f"population_size={members}: the settings of the study have {meant} members")


def check_config(config: JsonObject, kind: StudyKind) -> Rules:
    """Return the rules of a configuration for a service, which runs no code of study files.

    Only workers run the functions of suites; placeholders replace them here.

    Raises:
        ConfigurationError: the configuration is invalid, or needs a package that is not installed here.
        NotImportable: a rule uses a function or class that is not a registered plug-in.
    """
    try:
        if kind is StudyKind.POPULATION:
            keeping_of(config)  # raises if it is missing
            return from_config(config, find_in_suites=plugins.absent)
        lease_s: Any = config["lease_s"]
        return WatchRules(suites=suites_from(config, plugins.absent), lease_s=float(lease_s))
    except NotImportable as error:
        raise NotImportable(
            f"a service uses registered plug-ins only, and runs no code of study files ({error}). "
            "Register the plug-in as an entry point, and install its package on the machine of the service"
        ) from error
    except PhylaError:
        raise
    except Exception as error:
        raise ConfigurationError(f"this is not the configuration of a study: {error!r}") from error
