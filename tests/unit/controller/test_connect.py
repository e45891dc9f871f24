"""Which controller serves a store: one in this process, or one at a service."""

from typing import Any

import pytest

from phyla.configuration import settings_digest, to_config
from phyla.controller import Controller, Housekeeping, Sightings, controller_of, housekeeping_of, sightings_of
from phyla.machine import TrainRules
from phyla.records import Maximize
from phyla.space import Float, Space
from phyla.store import RemoteStore, open_store
from phyla.strategies import RandomSearch

RULES = TrainRules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=RandomSearch(2, 5))
CONFIG = to_config(RULES, 0)


def test_a_store_behind_a_service_has_its_controller_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def part(store: RemoteStore, kind: type, number: int, *, settings: str | None = None) -> Any:
        return kind, number, settings

    monkeypatch.setattr(RemoteStore, "part", part)
    store: Any = RemoteStore("http://localhost:1")
    study = open_store("memory://").create_study("s", CONFIG, 0, 2)
    expected: Any = (Controller, 7, settings_digest(CONFIG))
    assert controller_of(store, 7, RULES, CONFIG) == expected
    expected = Controller, 7, None
    assert controller_of(store, 7, RULES) == expected
    expected = Housekeeping, 7, None
    assert housekeeping_of(store, 7) == expected
    expected = Sightings, study.id, None
    assert sightings_of(store, study, ()) == expected


def test_any_other_store_has_it_in_this_process() -> None:
    store = open_store("memory://")
    study = store.create_study("s", CONFIG, 0, 2)
    controller = controller_of(store, study.id, RULES, CONFIG)
    assert len(controller.claim("w", 9)[0]) == 2
    other = controller_of(store, study.id, RULES, to_config(RULES, 1))
    other.renew("w")
    assert other.outdated
    housekeeping_of(store, study.id).fail_study("a person said so")
    with store.reader(study.id) as reader:
        assert reader.study().message == "a person said so"
    sightings_of(store, study, ()).note("kind", "message")
    with store.reader(study.id) as reader:
        assert [event.message for event in reader.events()] == ["message"]
