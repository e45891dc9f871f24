"""Texts and names that JSON cannot hold, which travel to a service and back."""

from collections.abc import Iterator

import pytest

from evaluating import found
from evaluation_simulation import suite_of
from facts import raises
from phyla import queries
from phyla.configuration import to_config
from phyla.controller import EVALUATE_ONLY, Controller, controller_of, records_of, sightings_of
from phyla.errors import StateError
from phyla.machine import Claimed, ClaimedEvaluation, Failure, WatchRules
from phyla.plugins import encode
from phyla.records import Cause, JsonObject, StudyKind, StudyState, storable_text
from phyla.store import Store, open_store
from phyla.study import Evaluations
from phyla.study.places import Places
from serving import served
from storing import pbt, rules

Remote = tuple[Store, Store]


@pytest.fixture
def remote() -> Iterator[Remote]:
    behind = open_store("memory://")
    with served(behind) as url:
        there = open_store(url)
        yield behind, there
        there.close()
    behind.close()


@pytest.mark.parametrize("error", ["nul \0 inside", "half a character \udcff", "both \0 \udcff \\u0000"])
def test_any_error_text_travels(remote: Remote, error: str) -> None:
    _, there = remote
    agreed = rules(pbt(1))
    config = to_config(agreed, 7)
    record = there.create_study("study", config, 7, 1)
    controller = controller_of(there, record.id, agreed, config)
    _, (claimed,), _ = controller.complete((), "w", 1)
    assert isinstance(claimed, Claimed)
    cause = Cause(kind="ValueError", error=error)
    controller.fail(Failure(job=claimed.trial.id, token=1, error=error, cause=cause))
    (attempt,) = there.look(record.id, queries.attempts)
    assert attempt.error == storable_text(error)
    assert attempt.cause is not None
    assert attempt.cause.error == storable_text(error)


def test_any_name_of_a_file_travels(remote: Remote) -> None:
    behind, there = remote
    location = "/data\udcff/\\x"
    config: JsonObject = {"suites": [], "lease_s": 30.0}
    record = there.create_study("r", config, kind=StudyKind.DIRECTORY, location=location)
    names = ["caf\udce9_step_2.pt", "a\\xff", "back\\slash\\\\", "caf\u00e9", "nul\0"]
    sightings = sightings_of(there, record, ())
    for number, name in enumerate(names):
        sightings.observe([found(name, identity=f"id {number}", path=f"{location}/{name}", paths=(name,))])
    for store in (there, behind):
        study = store.find_study("r")
        assert study is not None
        assert study.location == location
        assert [(row.name, row.path, row.paths) for row in store.look(study.id, queries.seen)] == [
            (name, f"{location}/{name}", (name,)) for name in names
        ]


def test_any_directory_of_checkpoints_travels(remote: Remote) -> None:
    behind, there = remote
    record = there.create_study("study", to_config(rules(pbt(1)), 7), 7, 1)
    for before, directory in (("", "/data\udcff/\\x"), ("/data\udcff/\\x", "/caf\u00e9")):
        assert records_of(there, record.id).set_directory(directory, before) == directory
        assert behind.look(record.id, queries.study).location == directory


def test_what_failed_is_tried_again_through_a_service(remote: Remote) -> None:
    behind, there = remote
    given = (suite_of("a", "b"),)
    config: JsonObject = {"suites": [encode(suite) for suite in given], "lease_s": 30.0}
    record = there.create_study("r", config, kind=StudyKind.DIRECTORY, location="/data")
    sightings = sightings_of(there, record, given)
    sightings.observe([found("c")])
    here = Controller(behind, record.id, WatchRules(suites=given, lease_s=30.0))
    failed = 0
    while works := here.complete((), "w", 1, kinds=EVALUATE_ONLY)[1]:
        (work,) = works
        assert isinstance(work, ClaimedEvaluation)
        here.fail(Failure(job=work.job.id, token=work.job.token, error="no data", retryable=False))
        failed += 1
    assert failed == 2
    evaluations = Evaluations(there, record, Places.of(None, None, None))
    assert evaluations.summary() == {"failed": 2}
    assert evaluations.retry() == 1
    assert evaluations.summary() == {"queued": 2}
    there.set_state(record.id, StudyState.STOPPED)
    with raises(StateError, "r", "stopped"):
        evaluations.retry()
