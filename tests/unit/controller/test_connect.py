"""Which controller serves a store: one in this process, or one at a service."""

from typing import Any, cast

import pytest

from facts import raises
from phyla.configuration import settings_digest, to_config
from phyla.controller import (
    PARTS,
    Controller,
    Sightings,
    StudyChanges,
    StudyRecords,
    changes_of,
    controller_of,
    records_of,
    sightings_of,
)
from phyla.machine import TrainRules
from phyla.records import Maximize
from phyla.space import Float, Space
from phyla.store import STORE, Part, RemoteStore, open_store
from phyla.strategies import RandomSearch

RULES = TrainRules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=RandomSearch(2, 5))
CONFIG = to_config(RULES, 0)


def test_a_store_behind_a_service_has_its_parts_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def part(store: RemoteStore, part: Part[Any], number: int, *, settings: str | None = None) -> Any:
        return part.kind, number, settings

    monkeypatch.setattr(RemoteStore, "part", part)
    store: Any = RemoteStore("http://localhost:1")
    study = open_store("memory://").create_study("s", CONFIG, 0, 2)
    made: list[Any] = [
        controller_of(store, 7, RULES, CONFIG),
        controller_of(store, 7, RULES),
        changes_of(store, 7, RULES),
        records_of(store, 7),
        sightings_of(store, study, ()),
    ]
    assert made == [
        (Controller, 7, settings_digest(CONFIG)),
        (Controller, 7, None),
        (StudyChanges, 7, None),
        (StudyRecords, 7, None),
        (Sightings, study.id, None),
    ]


def test_only_what_is_listed_travels() -> None:
    records = records_of(cast("Any", RemoteStore("http://localhost:1")), 7)
    assert callable(records.fail_study)
    with raises(AttributeError, "StudyRecords.other"):
        cast("Any", records).other()
    for part in (STORE, *PARTS):
        for name in (name for names in part.methods.values() for name in names):
            assert callable(getattr(part.kind, name))


def test_any_other_store_has_it_in_this_process() -> None:
    store = open_store("memory://")
    study = store.create_study("s", CONFIG, 0, 2)
    controller = controller_of(store, study.id, RULES, CONFIG)
    assert len(controller.claim("w", 9)[0]) == 2
    other = controller_of(store, study.id, RULES, to_config(RULES, 1))
    other.renew("w")
    assert other.outdated
    records_of(store, study.id).fail_study("a person said so")
    with store.reader(study.id) as reader:
        assert reader.study().message == "a person said so"
    sightings_of(store, study, ()).note("kind", "message")
    with store.reader(study.id) as reader:
        assert [event.message for event in reader.events()] == ["message"]
