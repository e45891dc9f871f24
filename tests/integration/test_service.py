"""The service as a stranger meets it: over plain HTTP, with bad requests, and through its own command line."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from effort import thorough
from facts import check_facts
from phyla.errors import StateError, StoreBusy, StoreUnavailable
from phyla.records import Role, StudyState, Token
from phyla.service.tokens import create
from phyla.store import Store, open_store
from phyla.store.remote import read_address
from serving import Service, app_of, interface, phyla, served
from waiting import until

PBT = {"population_size": 2, "steps_per_trial": 10, "total_steps": 20, "quorum": 1.0}
TABLE = {
    "name": "quadratic",
    "space": {"lr": {"low": 1e-4, "high": 1.0, "log": True}},
    "objective": "minimize loss",
    "pbt": PBT,
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/phyla.db")
    yield opened
    opened.close()


@pytest.fixture
def http(store: Store) -> Iterator[httpx.Client]:
    with served(store) as url, httpx.Client(base_url=f"{url}/v1", trust_env=False) as client:
        yield client


def test_a_study_of_another_language(http: httpx.Client) -> None:
    assert http.post("/studies", json=TABLE).json()["state"] == "running"
    assert http.post("/studies", json=TABLE).json()["trials"] == {}
    done: list[dict[str, Any]] = []
    while True:
        told = http.post("/studies/quadratic/suggestions", json={"worker": "me", "wait_s": 5}).json()
        if told["ended"]:
            break
        (trial,) = told["suggestions"]
        at = f"/studies/quadratic/trials/{trial['trial']}"
        lease = {"token": trial["token"]}
        standing = http.post(
            f"{at}/report", json={**lease, "step": trial["start_step"] + 5, "metrics": {"loss": 2}}
        )
        assert standing.json() == {"go_on": True, "why": None}
        beyond = http.post(f"{at}/report", json={**lease, "step": trial["end_step"] + 1, "metrics": {}})
        assert beyond.status_code == 422
        check_facts(beyond.text, f"trial {trial['trial']}", trial["start_step"])
        left = {
            **lease,
            "step": trial["end_step"],
            "metrics": {"loss": abs(trial["params"]["lr"] - 0.1)},
            "checkpoint": f"s3://mine/{trial['trial']}",
        }
        first = http.post(f"{at}/complete", json=left)
        assert first.json() == http.post(f"{at}/complete", json=left).json()
        assert first.json()["counts"]
        renamed = http.post(f"{at}/complete", json={**left, "checkpoint": "s3://mine/again"}).json()
        assert (renamed["counts"], renamed["fitness"]) == (False, None)
        check_facts(renamed["why"], f"checkpoint 's3://mine/{trial['trial']}'")
        changed = http.post(f"{at}/complete", json={**left, "metrics": {"loss": -1}}).json()
        assert (changed["counts"], changed["fitness"]) == (False, None)
        check_facts(changed["why"], left["metrics"])
        done.append(trial)
    assert told["why"] == "the study is completed"
    assert sorted(trial["member"] for trial in done) == [0, 0, 1, 1]
    older = [trial for trial in done if trial["start_step"]]
    assert all(trial["checkpoint"] in {f"s3://mine/{one['trial']}" for one in done} for trial in older)
    rows = http.get("/studies/quadratic/trials", params={"limit": 3}).json()
    assert [row["state"] for row in rows] == ["completed"] * 3
    assert len(http.get("/studies/quadratic/trials", params={"after": rows[-1]["trial"]}).json()) == 1
    unneeded = http.post("/studies/quadratic/collect", json={}).json()["checkpoints"]
    assert set(unneeded) < {f"s3://mine/{one['trial']}" for one in done}
    assert [study["name"] for study in http.get("/studies").json()] == ["quadratic"]


def test_waiting_for_a_suggestion_ends_though_the_clock_is_set_back(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    http.post("/studies", json=TABLE)
    assert (
        len(http.post("/studies/quadratic/suggestions", json={"worker": "a", "count": 2}).json()["suggestions"])
        == 2
    )
    times = iter(range(10**9, 0, -3600))
    monkeypatch.setattr("phyla.service.blackbox.system_clock", lambda: float(next(times)))
    told = http.post("/studies/quadratic/suggestions", json={"worker": "b", "wait_s": 0.2}).json()
    assert (told["suggestions"], told["ended"]) == ([], False)


def test_a_suggestion_whose_answer_was_lost_is_given_again_to_who_says_what_it_holds(http: httpx.Client) -> None:
    http.post("/studies", json=TABLE)

    def asked(**more: Any) -> list[int]:
        told = http.post("/studies/quadratic/suggestions", json={"worker": "me", **more}).json()
        return [one["trial"] for one in told["suggestions"]]

    (lost,) = asked(held=[])
    assert asked(held=[]) == [lost]
    (other,) = asked(held=[lost])
    assert asked() == [], "both members are leased, and nothing is given again"
    assert asked(held=[lost]) == [other]


DEEP: dict[str, Any] = {"lr": {"low": 1.0, "high": 2.0}}
for _ in range(900):
    DEEP = {"group": DEEP}
NO_TRIAL, LEFT = "study 'quadratic' has no trial 99", {"step": 1, "metrics": {"loss": 1.0}}
RUNS_CODE = {"name": "explore-with", "function": "os:system"}
BAD: Sequence[tuple[str, Any, int, str]] = (
    ("/studies", {**TABLE, "pbt": {}}, 422, "request, pbt"),
    ("/studies", {**TABLE, "spice": 1}, 422, "spice"),
    ("/studies", {**TABLE, "command": ["rm", "-r", "/"]}, 422, "command"),
    ("/studies", {**TABLE, "pbt": {**PBT, "explore": RUNS_CODE}}, 422, "os:system"),
    ("/studies", {**TABLE, "start_from": ["/etc"]}, 422, "start_from"),
    ("/studies", {**TABLE, "storage": "sqlite:////etc/x"}, 422, "unknown key 'storage'"),
    ("/studies", {**TABLE, "pbt": {**PBT, "population_size": 10**9}}, 422, "1,000,000"),
    ("/studies", {**TABLE, "space": DEEP}, 422, "nested too deeply"),
    ("/studies/quadratic/suggestions", {"worker": "a\0b"}, 422, "NUL"),
    ("/studies/nothing/suggestions", {"worker": "me"}, 404, "study 'nothing'"),
    ("/studies/quadratic/suggestions", {"worker": "me", "count": 0}, 422, "greater than or equal to 1"),
    ("/studies/quadratic/suggestions", {"worker": "me", "wait_s": "NaN"}, 422, "wait_s"),
    ("/studies/quadratic/trials/99/report", {"token": 1, "step": 1, "metrics": {}}, 404, NO_TRIAL),
    ("/studies/quadratic/trials/99/complete", {**LEFT, "token": 1, "checkpoint": "x"}, 404, NO_TRIAL),
    ("/studies/quadratic/trials/99/fail", {"token": 1, "error": "x"}, 404, NO_TRIAL),
    ("/studies/quadratic/trials/99/release", {"token": 1}, 404, NO_TRIAL),
    ("/studies/quadratic/trials/1/release", {"token": 10**30}, 422, "below 2**63"),
)


def test_bad_requests_are_told_what_is_wrong(http: httpx.Client) -> None:
    assert http.post("/studies", json=TABLE).status_code == 200
    for path, body, status, fact in BAD:
        answer = http.post(path, json=body)
        assert answer.status_code == status, answer.text
        check_facts(answer.json()["detail"], fact)
        assert answer.headers["content-type"] == "application/problem+json"
    assert http.get("/studies/quadratic").json()["trials"] == {}


def test_configurations_that_lead_elsewhere_are_refused(http: httpx.Client, store: Store) -> None:
    http.post("/studies", json=TABLE)
    with store.reader(1) as reader:
        config = dict(reader.study().config)
    starts = {"plugin": "phyla.trackers/tensorboard", "folder": "/etc"}
    for change, fact in (
        ({"name": "../../home"}, "study name '../../home'"),
        ({"population_size": 10**9}, "2 members"),
        ({"config": {**config, "strategy": {"plugin": "os:system", "command": "true"}}}, "os:system"),
        ({"config": {**config, "strategy": starts}}, "'phyla.trackers/tensorboard'"),
        ({"config": {**config, "suites": [starts]}}, "'phyla.trackers/tensorboard'"),
    ):
        given = {"name": "other", "config": config, "population_size": 2, **change}
        answer = http.post("/calls/0/store/create-study", json=given)
        assert answer.status_code == 422, answer.text
        check_facts(answer.json()["detail"], fact)
    partial = {"config": {"lease_s": 60.0}, "before": config}
    answer = http.post("/calls/1/records/store-config", json=partial)
    assert answer.status_code == 422, answer.text
    assert [study.name for study in store.studies()] == ["quadratic"]


def test_no_page_in_a_browser_changes_anything(http: httpx.Client, store: Store) -> None:
    http.post("/studies", json=TABLE)
    # What a page may send to another site without asking that site first.
    for path, methods in interface()["paths"].items():
        # One only says which version this is.
        if "post" in methods and path != "/v1/service":
            where = path.removeprefix("/v1").format(study=1, name="quadratic", trial=1)
            for simple in ({"Content-Type": "text/plain"}, {}):
                assert http.post(where, content=b"{}", headers=simple).status_code in (404, 422), path
            assert http.post(where).status_code == 422, path


def test_a_body_without_a_token_is_not_read(store: Store) -> None:
    create(store, "someone", Role.WORKER)
    with served(store) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            head = f"POST /v1/studies HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: 16000000\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 401 ")


def test_what_had_a_token_is_not_open_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.service.access.TOKENS_S", 0.0)
    with served(store) as url, httpx.Client(base_url=f"{url}/v1", trust_env=False) as client:
        assert client.get("/studies").status_code == 200
        create(store, "someone", Role.VIEWER)
        assert client.get("/studies").status_code == 401
        store.revoke_token("someone")
        assert client.get("/studies").status_code == 401


def test_a_new_token_opens_the_service_at_once(store: Store) -> None:
    create(store, "first", Role.VIEWER)
    with served(store) as url, httpx.Client(base_url=f"{url}/v1", trust_env=False) as client:
        assert client.get("/studies", headers={"Authorization": "Bearer nobody"}).status_code == 403
        for number in range(3):
            token = create(store, f"new-{number}", Role.VIEWER)
            assert client.get("/studies", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_a_final_of_another_language(http: httpx.Client) -> None:
    """A client that saves a checkpoint anyway, and one that names the measured one, both hold it."""
    http.post("/studies", json={**TABLE, "final": {"candidates": 2, "measurements": 6}})
    measured = 0
    while True:
        told = http.post("/studies/quadratic/suggestions", json={"worker": "me", "wait_s": 5}).json()
        if told["ended"]:
            break
        (trial,) = told["suggestions"]
        measures = trial["start_step"] == trial["end_step"]
        name = trial["checkpoint"] if measures and measured % 2 else f"s3://mine/{trial['trial']}"
        answer = http.post(
            f"/studies/quadratic/trials/{trial['trial']}/complete",
            json={
                "token": trial["token"],
                "step": trial["end_step"],
                "metrics": {"loss": trial["trial"]},
                "checkpoint": name,
            },
        ).json()
        assert answer["counts"], answer
        measured += measures
    assert (told["why"], measured) == ("the study is completed", 6)


@pytest.mark.parametrize("held_up", ["tokens", "studies"])
def test_a_request_that_a_stop_interrupts_is_answered(
    store: Store, monkeypatch: pytest.MonkeyPatch, held_up: str
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def wait(*_: object) -> tuple[()]:
        began.set()
        go_on.wait(60)
        return ()

    async def interrupted() -> httpx.Response:
        transport = httpx.ASGITransport(app_of(store))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asked = asyncio.create_task(client.get("/v1/studies"))
            assert await asyncio.to_thread(began.wait, 60)
            asked.cancel()
            try:
                return await asked
            finally:
                go_on.set()

    monkeypatch.setattr(store, held_up, wait)
    answer = asyncio.run(interrupted())
    assert answer.status_code == 503
    assert answer.json()["title"] == "StoreUnavailable"


def test_the_published_file_does_not_say_what_is_sent_as_a_token(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("a secret of somebody else")
    (tmp_path / "service.token").write_text("opens-it\n")
    told = {"url": "http://elsewhere", "token_file": str(tmp_path / "private")}
    (tmp_path / "service.json").write_text(json.dumps(told))
    assert read_address(f"published:{tmp_path}/service.json") == ("http://elsewhere", "opens-it")


def test_checkpoints_of_other_languages_are_not_sought_here(store: Store, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    with served(store) as url, httpx.Client(base_url=f"{url}/v1", trust_env=False) as client:
        client.post("/studies", json={**TABLE, "pbt": {**PBT, "total_steps": 40}})
        while told := client.post("/studies/quadratic/suggestions", json={"worker": "me"}).json()["suggestions"]:
            trial = told[0]["trial"]
            left = {"token": told[0]["token"], "step": told[0]["end_step"], "metrics": {"loss": 1.0}}
            left["checkpoint"] = f"../../../kept{'/.' * trial}"
            client.post(f"/studies/quadratic/trials/{trial}/complete", json=left).raise_for_status()
        there = ("--home", tmp_path / "home", "--server", url)
        (tmp_path / "home/checkpoints/quadratic").mkdir(parents=True)
        assert (
            "whose files are with the clients that made them"
            in phyla(*there, "doctor", "quadratic", "--adopt").stdout
        )
        assert phyla(*there, "gc", "quadratic").returncode == 0
        collect = partial(client.post, "/studies/quadratic/collect")
        first, *others = collect(json={}).json()["checkpoints"]
        # An answer that was lost is given again, until the client has deleted what it names.
        assert collect(json={}).json()["checkpoints"] == [first, *others]
        assert collect(json={"deleted": [first, "another"]}).json()["checkpoints"] == others
        assert phyla(*there, "delete", "quadratic", "--yes", "quadratic").returncode == 0
    assert kept.is_dir()


def test_a_checkpoint_has_one_trial(http: httpx.Client) -> None:
    http.post("/studies", json=TABLE)
    told = http.post("/studies/quadratic/suggestions", json={"worker": "me", "count": 2}).json()
    answers = [
        http.post(
            f"/studies/quadratic/trials/{each['trial']}/complete",
            json={"token": each["token"], "step": 10, "metrics": {"loss": 1.0}, "checkpoint": "same"},
        )
        for each in told["suggestions"]
    ]
    assert [answer.status_code for answer in answers] == [200, 409]
    for step in (0, 11, 2**62):
        beyond = http.post(
            f"/studies/quadratic/trials/{told['suggestions'][1]['trial']}/complete",
            json={"token": 1, "step": step, "metrics": {"loss": 1.0}, "checkpoint": "other"},
        )
        assert beyond.status_code == 422
        check_facts(beyond.text, "trial 2", "0", "10")
    check_facts(answers[1].text, "trial 1")


def test_limits_and_hosts(store: Store) -> None:
    with served(store) as url, httpx.Client(base_url=url, trust_env=False) as client:
        large = client.post("/v1/studies", content=b"[" + b" " * (17 * 2**20) + b"]")
        assert large.status_code == 413
        for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80", "[::2]:80", ""):
            refused = client.get("/health", headers={"Host": host})
            assert refused.status_code == 400, host
            assert "--allow-host" in refused.json()["detail"]
        for host in ("LocalHost:80", "[::1]:80"):
            assert client.get("/health", headers={"Host": host}).status_code == 200, host
        assert client.get("/health").json()["status"] == "alive"
        assert client.get("/ready").json()["status"] == "ready"
        assert client.post("/v1/studies", content=b"{").status_code == 422
        assert client.post("/v1/calls/0/store/find-study", content=b'{"name": "\\ud800"}').status_code == 422


def test_figures(store: Store, http: httpx.Client) -> None:
    http.post("/studies", json=TABLE)
    http.post("/studies/quadratic/suggestions", json={"worker": "me"})
    told = http.get(f"{http.base_url}".removesuffix("v1/") + "metrics").text
    assert 'phyla_trials{state="running",study="quadratic"} 1.0' in told
    assert 'phyla_leases{study="quadratic"} 1.0' in told
    assert 'route="/v1/studies/{name}/suggestions",status="200"' in told


def test_figures_count_the_studies_in_each_state(store: Store, http: httpx.Client) -> None:
    def counts() -> dict[str, float]:
        told = http.get(f"{http.base_url}".removesuffix("v1/") + "metrics").text
        return {state: float(n) for state, n in re.findall(r'^phyla_studies{state="(\w+)"} (.+)$', told, re.M)}

    assert counts() == dict.fromkeys(StudyState, 0)
    http.post("/studies", json=TABLE)
    study = store.find_study("quadratic")
    assert study is not None
    for state in StudyState:
        store.set_state(study.id, state, "a reason")
        assert counts() == {**dict.fromkeys(StudyState, 0), state: 1}


def test_only_health_is_open_where_there_are_tokens(store: Store) -> None:
    create(store, "someone", Role.WORKER)
    with served(store) as url, httpx.Client(base_url=url, trust_env=False) as client:
        assert client.get("/v1/openapi.json").status_code == 401
        for path, methods in interface()["paths"].items():
            for method in methods:
                answer = client.request(method, path.format(study=1, name="a", trial=1), json={})
                closed = path not in ("/health", "/ready")
                assert (answer.status_code == 401) == closed, (path, answer.text)


@pytest.mark.parametrize("error", [StateError, StoreBusy, StoreUnavailable, KeyboardInterrupt])
def test_a_token_that_is_not_stored_leaves_no_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fails(self: Store, token: Token) -> None:
        raise error("broken")

    file = tmp_path / "secret"
    with monkeypatch.context() as broken:
        broken.setattr(type(store), "add_token", fails)
        with pytest.raises(error):
            create(store, "someone", Role.WORKER, file=file)
    assert not file.exists()
    assert create(store, "someone", Role.WORKER, file=file) == file.read_text().strip()


def test_the_command_line(tmp_path: Path) -> None:
    home = tmp_path / "home"
    refused = phyla("--home", home, "serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    check_facts(refused.stderr, "--host 0.0.0.0", "token create NAME --out FILE")
    # Behind a proxy it is open to others, too.
    refused = phyla("--home", home, "serve", "--allow-host", "phyla.example.org", "--port", "0")
    check_facts(refused.stderr, "--allow-host", "phyla.example.org")
    made = phyla("--home", home, "token", "create", "me", "--role", "operator", "--out", tmp_path / "secret")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert "me" in phyla("--home", home, "token", "list").stdout
    assert phyla("--home", home, "token", "create", "you", "--json").returncode == 2
    assert [row["name"] for row in json.loads(phyla("--home", home, "token", "list", "--json").stdout)] == ["me"]
    reserved = phyla("--home", home, "token", "create", "published")
    assert reserved.returncode == 2
    check_facts(reserved.stderr, "published", "serve --publish")
    with Service("--home", str(home), extra=("--publish",)) as service:
        check_facts(service.process.printed(), home / "phyla.db")
        with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
            connection.sendall(b"no request\r\n\r\n")
            logged = service.process.read_until("HTTP request received").splitlines()[-1]
        assert json.loads(logged)["from"] == "uvicorn.error"
        there = ("--home", tmp_path / "w", "--server", service.url)
        denied = phyla(*there, "status")
        assert denied.returncode == 1
        check_facts(denied.stderr, "create NAME --role ROLE", "phyla token")
        there = ("--home", tmp_path / "w", "--server", f"{service.url}/v1")  # what a browser shows
        allowed = phyla(*there, "status", PHYLA_TOKEN_FILE=str(tmp_path / "secret"))
        assert (allowed.returncode, allowed.stderr) == (0, "")
        assert "no studies yet" in allowed.stdout
        # Who can read the home needs nothing else.
        assert phyla("--home", tmp_path / "w", "--server", home / "service.json", "status").returncode == 0
        assert (home / "service.token").stat().st_mode & 0o777 == 0o600
        taken = phyla("--home", tmp_path / "new", "serve", "--port", str(service.port))
        assert taken.returncode == 2
        check_facts(taken.stderr, "127.0.0.1", f"port {service.port}")
        assert not (tmp_path / "new").exists()
    away = phyla(*there, "status")
    assert away.returncode == 1
    check_facts(away.stderr, service.url, "phyla serve")
    assert "Traceback" not in away.stderr


def test_a_home_whose_store_is_elsewhere_leads_to_the_service(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "home" / "service.json"
    places, extra = ("--home", str(home), "--storage", f"sqlite:///{tmp_path}/elsewhere.db"), ("--publish",)

    def address() -> str | None:
        return str(json.loads(file.read_text())["url"]) if file.exists() else None

    with Service(*places, extra=extra) as service:
        found = phyla("--home", home, "status")
        assert (found.returncode, found.stderr) == (0, "")
        # What was killed could not clean up.
        service.stop(signal.SIGKILL)
        gone = phyla("--home", home, "status")
        assert gone.returncode == 1
        check_facts(gone.stderr.replace("/,", ","), file, service.url)
        service.start()
        assert address() == service.url
        # What was there first publishes itself again when a newer one has ended.
        with Service(*places, extra=extra) as newer:
            assert address() == newer.url
            newer.stop()
        until(lambda: address() == service.url, "the older one has published itself again")
        assert phyla("--home", home, "status").returncode == 0
        service.stop()
        assert not file.exists()
    assert phyla("--home", home, "status").returncode == 0
    assert not (home / "phyla.db").exists()


def test_the_program_of_the_page_in_another_language(store: Store, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs/how-to/own-loop.md"
    (block,) = re.findall(r"```sh\n(# black_box.sh\n.*?)```", page.read_text(), re.DOTALL)
    with served(store) as url:
        done = subprocess.run(
            ["sh", "-e", "-c", block],
            env={**os.environ, "PHYLA_SERVER": url, "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told = {word: phyla("--server", url, word, "hill") for word in ("best", "gc", "doctor")}
    assert {call.returncode for call in told.values()} == {0}, told
    assert re.search(
        r"checkpoint  weights-\S+ \(its files are with the client that made it\)\n", told["best"].stdout
    )
    check_facts(told["gc"].stdout, "clients", "kept 4 checkpoints")
    assert "checkpoints, whose files are with the clients that made them" in told["doctor"].stdout
    *_, unneeded, study = re.findall(r"\{.*?\}(?=\{|$)", done.stdout.replace("\n", ""))
    assert '"state":"completed"' in study
    assert "weights-" in unneeded


@pytest.mark.timeout(900)  # before a release it covers every parameter of every request
def test_no_request_is_a_server_error(store: Store, tmp_path: Path) -> None:
    # What deletes the study would leave the others nothing to look at.
    settings = tmp_path / "schemathesis.toml"
    settings.write_text('[parameters]\nstudy = 1\nname = "quadratic"\ntrial = 1\n')
    paths = interface()["paths"]
    tested = sum(len(methods) for path, methods in paths.items() if "delet" not in path)
    with served(store) as url:
        httpx.post(f"{url}/v1/studies", json=TABLE, trust_env=False).raise_for_status()
        httpx.post(f"{url}/v1/studies/quadratic/suggestions", json={"worker": "w"}, trust_env=False)
        document = f"{url}/v1/openapi.json"
        phases = "coverage,fuzzing" if thorough() else "fuzzing"
        how = ("--checks", "not_a_server_error", "--phases", phases, "--exclude-path-regex", "delet")
        same = ("--seed", "1", "--generation-deterministic", "--suppress-health-check", "all")
        words = ("--config-file", settings, "run", document, *how, "--max-examples", "1", *same)
        command = [
            sys.executable,
            "-c",
            "import gc; gc.disable(); from schemathesis.cli import schemathesis; schemathesis()",
        ]
        done = subprocess.run(
            [*command, *map(str, words)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert f"Tested: {tested}" in done.stdout, done.stdout[-2000:]
