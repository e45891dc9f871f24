"""What the service answers when something is wrong, and to whom."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from facts import check_facts
from phyla.dashboard import dashboard_of
from phyla.records import Role
from phyla.service.tokens import create
from phyla.store import open_store
from phyla.study.places import Places
from serving import served


def test_a_stranger_learns_nothing_of_a_store_that_cannot_be_reached(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "private.db"
    places = Places.of(tmp_path, f"sqlite:///{file}")
    store = open_store(places.storage)
    create(store, "me", Role.VIEWER)
    store.close()
    for each in tmp_path.glob("private.db?*"):
        each.unlink()
    file.write_text("no database" * 100)
    pages = dashboard_of(places)
    with served(store, loopback=False, pages=pages) as url, httpx.Client(base_url=url, trust_env=False) as client:
        for path in ("/ready", "/v1/studies", "/metrics", "/", "/studies/a", "/events"):
            answer = client.get(path)
            assert answer.status_code == 503, (path, answer.text)
            assert "private" not in answer.text, (path, answer.text)
        assert client.get("/health").status_code == 200
    check_facts(caplog.text, "private.db")


def test_json_that_does_not_say_so_is_told_the_header() -> None:
    store = open_store("memory://")
    with served(store) as url, httpx.Client(base_url=url, trust_env=False) as client:
        for kind in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
            answer = client.post("/v1/studies/hill/suggestions", content=b'{"worker": "me"}', headers=kind)
            assert answer.status_code == 422
            assert "Content-Type: application/json" in answer.json()["detail"]
        said = client.post("/v1/studies/hill/suggestions", json=["me"]).json()["detail"]
        assert "Content-Type" not in said
    store.close()


@pytest.fixture
def hill() -> Iterator[httpx.Client]:
    """A study of two members, one of whose two trials is leased under token 1, and the other completed."""
    store = open_store("memory://")
    table = {
        "name": "hill",
        "space": {"x": {"low": 0.0, "high": 1.0}},
        "objective": "maximize score",
        "pbt": {"population_size": 2, "steps_per_trial": 10, "total_steps": 20},
        "stopping": [{"name": "divergence", "below": 0.0}],
    }
    with served(store) as url, httpx.Client(base_url=f"{url}/v1", trust_env=False) as client:
        client.post("/studies", json=table).raise_for_status()
        client.post("/studies/hill/suggestions", json={"worker": "me", "count": 2}).raise_for_status()
        done = {"token": 1, "step": 10, "metrics": {"score": 1.0}, "checkpoint": "weights"}
        client.post("/studies/hill/trials/2/complete", json=done).raise_for_status()
        yield client
    store.close()


def test_a_failure_of_what_is_over_says_that_it_does_not_count(hill: httpx.Client) -> None:
    for what, sent in (("fail", {"token": 1, "error": "x"}), ("release", {"token": 1})):
        told = hill.post(f"/studies/hill/trials/2/{what}", json=sent).json()
        assert told["go_on"] is False
        check_facts(told["why"], "completed")
    for _ in range(2):  # The answer may have been lost.
        told = hill.post("/studies/hill/trials/1/fail", json={"token": 1, "error": "x"}).json()
        assert told == {"go_on": False, "why": None}
    told = hill.post("/studies/hill/trials/1/release", json={"token": 1}).json()
    check_facts(told["why"], "failed")


def test_a_trial_that_a_rule_stopped_is_told_so(hill: httpx.Client) -> None:
    reported = {"token": 1, "step": 5, "metrics": {"score": -1.0}}
    for _ in range(2):
        told = hill.post("/studies/hill/trials/1/report", json=reported).json()
        assert told["go_on"] is False
        check_facts(told["why"], "divergence")
