"""A controller and a store behind a service answer as those in this process do."""

import ast
import asyncio
import json
import logging
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial, wraps
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

import phyla
from effort import times
from facts import check_facts, raises
from phyla import queries
from phyla.client import Client
from phyla.configuration import to_config
from phyla.controller import Controller, Sightings, changes_of, controller_of, records_of
from phyla.errors import (
    AccessDenied,
    ConfigurationError,
    LeaseLost,
    NotImportable,
    StateError,
    StoreBusy,
    StoreUnavailable,
    StudyNotFound,
)
from phyla.machine import Claimed, Idle, Outdated
from phyla.records import JsonObject, Report, Role, StudyRecord, StudyState
from phyla.service.access import Doors
from phyla.service.app import Limits
from phyla.service.metrics import Figures
from phyla.service.reading import QUERIES
from phyla.service.tokens import create
from phyla.store import Reader, RemoteStore, Store, hold_on, open_store
from phyla.strategies import Divergence, ExploreWith, MedianStopping, ParetoTournament, StoppingRule
from phyla.study import load_study
from phyla.study.results.story import read_story
from phyla.study.results.tracker_rows import tracked_trials
from serving import served
from storing import FEASIBLE, LEASE_S, STEPS, Alike, VirtualClock, completion, everything_of, pbt, plain, rules

STOPPING = (MedianStopping(min_steps=2), Divergence())
Remote = tuple[Store, Store, VirtualClock]
"""A store, the same one through a service, and its clock."""


@pytest.fixture
def remote() -> Iterator[Remote]:
    clock = VirtualClock()
    behind = open_store("memory://", clock=clock)
    with served(behind) as url:
        there = open_store(url)
        yield behind, there, clock
        there.close()
    behind.close()


def made(store: Store, size: int = 3, name: str = "study", **how: Any) -> tuple[StudyRecord, Controller]:
    agreed = rules(pbt(size, **how))
    config = to_config(agreed, 7)
    record = store.create_study(name, config, 7, size)
    return record, claiming(controller_of(store, record.id, agreed, config))


class Claiming:
    """A controller with `claim`, which is `complete` in other words, and does not travel."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)

    def claim(self, worker: str, count: int = 1) -> Any:
        _, claimed, rest = self._controller.complete((), worker, count)
        return claimed, rest


def claiming(controller: Controller) -> Controller:
    return cast("Controller", Claiming(controller))


def a_study(store: Store, size: int = 3, **how: Any) -> Client:
    agreed = rules(pbt(size, **how))
    config = to_config(agreed, 7)
    return Client(store, store.create_study("study", config, 7, size), agreed)


class OverHttp(Alike):
    """Drives a store behind a service and one in this process."""

    def __init__(self, behind: Store, *there: Any) -> None:
        super().__init__(*there)
        self.behind = behind

    @initialize(
        size=st.integers(1, 4),
        pareto=st.booleans(),
        quorum=st.sampled_from((0.0, 1.0)),
        minimize=st.booleans(),
        stopping=st.sampled_from(((), STOPPING)),
    )
    def create(
        self, size: int, pareto: bool, quorum: float, minimize: bool, stopping: Sequence[StoppingRule]
    ) -> None:
        strategy = pbt(size, quorum=quorum)
        if pareto:
            strategy = replace(strategy, exploit=ParetoTournament())
        objective = FEASIBLE if pareto else None
        agreed = rules(strategy, minimize=minimize, stopping=stopping, objective=objective)
        config = to_config(agreed, 7)
        name = f"study-{len(self.oracle.studies())}"
        self.both(lambda store: store.create_study(name, config, 7, size))
        found = self.oracle.find_study(name)
        assert found is not None
        self.study = found.id
        self.here = claiming(controller_of(self.store, self.study, agreed, config))
        self.there = Controller(self.oracle, self.study, agreed, config)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), value=st.sampled_from((0.5, -0.5)), after=st.integers(0, STEPS))
    def report(self, data: st.DataObject, value: float, after: int) -> None:
        trial = data.draw(st.sampled_from(self.claims[-8:])).trial
        reports = [Report(trial.start_step + after, {"score": value, "a/b": 1.0})]
        self.asked(lambda controller: controller.report(trial.id, trial.token, reports))

    # What is no call of a service, or would ask it for everything after each step.
    resize = set_config = interrupt = same = None  # type: ignore[assignment]

    def teardown(self) -> None:
        if hasattr(self, "study"):
            with self.behind.reader(self.study) as here, self.oracle.reader(self.study) as there:
                assert everything_of(here) == everything_of(there)
            for query, arguments in asked_of(self.oracle, self.study):
                mine, right = (store.look(self.study, query, **arguments) for store in (self.store, self.oracle))
                assert plain(mine) == plain(right), query


def asked_of(store: Store, study: int) -> list[tuple[Any, dict[str, Any]]]:
    """Return queries about a population, with arguments."""
    trials = [trial.id for trial in store.look(study, queries.trials)]
    last = trials[-1] if trials else 99
    return [
        *((query, {}) for query in (queries.study, queries.summary, queries.members, queries.broken_trials)),
        *((query, {}) for query in (queries.checkpoints, queries.best, queries.running)),
        *((query, {"limit": 3}) for query in (queries.trials, queries.attempts)),
        *((query, {"trial": last}) for query in (queries.reports, queries.ancestry)),
        (queries.recent, {"newest": 5}),
        (queries.recent, {"ids": trials[:2], "after": 3, "limit": 2}),
        (queries.job, {"number": last}),
        (queries.trials, {"ids": [*trials[::-2], 99]}),
        (queries.attempts, {"jobs": trials}),
        (queries.checkpoints, {"names": ["1.1", "none"]}),
        *((read_story, {"trial_id": trial}) for trial in trials[-3:]),
        (tracked_trials, {"ids": trials[:1], "after": 1, "limit": 3, "newest": {0: 2}}),
    ]


def test_it_answers_as_a_store_in_this_process(remote: Remote) -> None:
    behind, there, clock = remote
    oracle = open_store("memory://", clock=clock)
    run_state_machine_as_test(
        cast("type[Alike]", partial(OverHttp, behind, there, oracle, clock)),
        settings=settings(
            max_examples=times(3, 12),
            stateful_step_count=40,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_work_whose_answer_was_lost_is_given_again(remote: Remote) -> None:
    behind, there, _ = remote
    _, controller = made(there, 2)
    (lost,), _ = controller.claim("w", 1)
    # The worker never learned of it, and asks again.
    _, (again,), _ = controller.complete((), "w", 1, held=frozenset())
    assert plain(again) == plain(lost)
    _, (other,), _ = controller.complete((), "w", 1, held=frozenset({lost.trial.id}))
    assert isinstance(other, Claimed)
    assert other.trial.member != lost.trial.member
    answers, work, rest = controller.complete([completion(lost)], "w", 2, held=frozenset({other.trial.id}))
    repeated, _, _ = controller.complete([completion(lost)])
    assert repeated == answers
    with behind.reader(lost.trial.study) as reader:
        assert len(reader.running("w")) == 1 + len(work)
    assert rest is not None


def test_settings_of_another_file_are_refused_and_finished_work_counts(remote: Remote) -> None:
    _, there, _ = remote
    record, controller = made(there, 2)
    (claimed,), _ = controller.claim("w", 1)
    other = rules(replace(pbt(2), total_steps=12 * STEPS))
    stranger = controller_of(there, record.id, other, to_config(other, 7))
    answers, work, rest = stranger.complete([completion(claimed)], "w", 1)
    assert [getattr(each, "fitness", None) for each in answers] == [0.5]
    assert work == []
    assert isinstance(rest, Outdated)
    # The service follows what is stored, and so does whoever has the same.
    before, after = to_config(rules(pbt(2)), 7), to_config(other, 7)
    changes_of(there, record.id, other).change(after, {"strategy.total_steps": (30, 60)}, before=before)
    _, work, _ = stranger.complete((), "w", 1)
    assert [isinstance(each, Claimed) and each.trial.end_step for each in work] == [STEPS]
    assert isinstance(controller.complete((), "w", 1)[2], Outdated)


def test_changed_operating_options_reach_a_running_service(remote: Remote) -> None:
    behind, there, _ = remote
    agreed = rules(pbt(2))
    config = to_config(agreed, 7)
    record, controller = made(there, 2)

    def lease_s() -> float:
        (claimed,), _ = controller.claim("w")
        with behind.reader(record.id) as reader:
            expires_at = {one.job: one.expires_at for one in reader.running()}[claimed.trial.id]
            return expires_at - reader.now()

    assert lease_s() == LEASE_S
    longer = to_config(replace(agreed, lease_s=5 * LEASE_S), 7)
    for _ in range(2):  # again after a lost answer
        records_of(there, record.id).store_config(longer, config)
    assert lease_s() == 5 * LEASE_S


def unchanged(params: JsonObject, rng: np.random.Generator) -> JsonObject:
    return params


def test_code_of_a_study_file_never_runs_at_the_service(remote: Remote) -> None:
    behind, there, _ = remote
    agreed = rules(replace(pbt(2), explore=ExploreWith(unchanged)))
    with raises(NotImportable, "test_over_http:unchanged"):
        there.create_study("study", to_config(agreed, 7), 7, 2)
    with pytest.raises(ConfigurationError):
        there.create_study("study", {"schema": 1, "options": {}}, 7, 2)
    assert not behind.studies()


def test_who_waits_is_woken_by_a_commit_of_another(remote: Remote) -> None:
    _, there, _ = remote
    worker, other = a_study(there, 2, quorum=1.0), a_study(there, 2, quorum=1.0)
    _, claimed, _ = other.exchange((), "v", 2)
    for first in claimed[:1]:
        assert isinstance(first, Claimed)
        other.exchange([completion(first)], "v", 0)
    _, _, rest = worker.exchange((), "w", 1)
    assert isinstance(rest, Idle)
    while worker.wait(0.05):
        """Changes until now."""
    assert isinstance(claimed[1], Claimed)
    other.exchange([completion(claimed[1])], "v", 0)
    assert worker.wait(30.0)
    _, work, _ = worker.exchange((), "w", 1)
    assert len(work) == 1


def test_errors_come_as_they_were_raised(remote: Remote) -> None:
    _, there, _ = remote
    with raises(StudyNotFound, "id 99"):
        there.look(99, queries.study)
    _, controller = made(there, 2)
    (claimed,), _ = controller.claim("w")
    with raises(StateError, "w"):
        records_of(there, 1).begin_deleting()
    with raises(LeaseLost, "job 99"):
        controller.release(99, claimed.trial.token)


def test_a_service_that_is_away(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.store.remote.LOOK_S", 0.3)
    _, there, _ = remote
    plain = there.url.removeprefix("http://")
    for url, remedy in (
        ("http://127.0.0.1:9", "phyla serve"),
        (f"https://{plain}", "http://"),
        ("http://nowhere.invalid:8470", "name of the host"),
    ):
        with raises(StoreUnavailable, url, remedy), closing(open_store(url)) as away:
            away.studies()


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Run a server that gives the same answer to every request."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever, 0.01)
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "body", [b"<html>Not Found</html>", b'{"detail": "Not Found"}', b'{"type": "about:blank"}']
)
@pytest.mark.parametrize("status", [200, 404])
def test_an_answer_of_another_server_names_the_address(status: int, body: bytes) -> None:
    with answering(status, body) as url, closing(open_store(url)) as there, raises(StoreUnavailable, url, status):
        there.studies()


def test_a_route_that_the_service_does_not_have_names_the_address(remote: Remote) -> None:
    _, there, _ = remote
    with closing(open_store(f"{there.url}/below")) as below, raises(StoreUnavailable, "/below/v1/", "404"):
        below.studies()


def test_a_proxy_of_the_environment_that_is_in_the_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.store.remote.LOOK_S", 0.3)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for status in (403, 503):
        with answering(status, b"denied") as proxy:
            monkeypatch.setenv("http_proxy", proxy)
            for url, named in (("http://service.invalid:8470", True), (proxy, False)):
                with closing(open_store(url)) as there, pytest.raises(StoreUnavailable) as caught:
                    there.studies()
                assert ("add service.invalid to NO_PROXY" in str(caught.value)) is named
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")
    with closing(open_store("http://service.invalid:8470")) as there, pytest.raises(StoreUnavailable) as caught:
        there.studies()
    check_facts(caught.value, "127.0.0.1:9", "NO_PROXY")
    assert "secret" not in str(caught.value)


def test_a_service_that_does_not_reach_its_database_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phyla.store.remote.LOOK_S", 0.3)
    behind = open_store(f"sqlite:///{tmp_path}/s.db")
    behind.close()
    for each in tmp_path.glob("s.db*"):
        each.unlink()
    (tmp_path / "s.db").write_text("no database" * 100)
    with served(behind) as url, closing(open_store(url)) as store, raises(StoreUnavailable, url, "log"):
        store.studies()


def test_a_wait_for_a_service_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("phyla.system.patience.PAUSE_S", (1.01, 1.01))
    file = tmp_path / "service.json"
    file.write_text(json.dumps({"url": "http://127.0.0.1:9"}))
    with served(open_store("memory://")) as url, closing(open_store(f"published:{file}")) as store:

        class Starts(logging.Handler):
            """Starts the service elsewhere once somebody says that it is away."""

            def emit(self, record: logging.LogRecord) -> None:
                file.write_text(json.dumps({"url": url}))

        starts = Starts()
        logging.getLogger("phyla").addHandler(starts)
        try:
            assert store.studies() == []
        finally:
            logging.getLogger("phyla").removeHandler(starts)
    away, back = caplog.messages
    assert away.startswith(f"the service {file} cannot be reached: ")
    assert away.endswith("; trying again")
    assert back == f"the service {file} answers again"


@pytest.mark.parametrize("where", ["PHYLA_TOKEN_FILE", "beside service.json"])
def test_a_client_reads_the_file_of_its_token_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr("phyla.service.access.TOKENS_S", 0.0)
    file, behind = tmp_path / "service.token", open_store("memory://")
    create(behind, "old", Role.WORKER, file=file)
    with served(behind, loopback=False) as url:
        (tmp_path / "service.json").write_text(json.dumps({"url": url}))
        if where == "PHYLA_TOKEN_FILE":
            monkeypatch.setenv("PHYLA_TOKEN_FILE", str(file))
        else:
            url = f"published:{tmp_path}/service.json"
        with closing(open_store(url)) as store:
            assert store.studies() == []
            create(behind, "new", Role.WORKER, file=tmp_path / "new.token")
            (tmp_path / "new.token").replace(file)
            behind.revoke_token("old")
            assert store.studies() == []
            behind.revoke_token("new")
            for content in (file.read_text(), ""):
                file.write_text(content)
                with raises(AccessDenied, "token"):
                    store.studies()


def test_a_worker_that_begins_while_the_service_is_away_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def train(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "w").touch()
        trial.report(score=1.0)

    def study(storage: str) -> phyla.Study:
        search = phyla.RandomSearch(members=1, total_steps=1)
        aim = phyla.Maximize("score")
        return phyla.Study("s", {"lr": phyla.Float(0.1, 1.0)}, aim, search, train, home=tmp_path, storage=storage)

    monkeypatch.setattr("phyla.store.remote.LOOK_S", 0.0)
    monkeypatch.setattr("phyla.system.patience.PAUSE_S", (1.01, 1.01))
    file, database = tmp_path / "service.json", f"sqlite:///{tmp_path}/phyla.db"
    study(database).run()
    with raises(StoreUnavailable, "service.json", "phyla serve --publish"):
        load_study("s", home=tmp_path, storage=f"published:{file}")
    with closing(open_store(database)) as store, served(store) as url:
        monkeypatch.setattr("phyla.store.remote.LOG.warning", lambda *_: file.write_text(json.dumps({"url": url})))
        done = study(f"published:{file}").work(0)
        assert done.state is StudyState.COMPLETED
        done._store.close()


def test_a_working_process_repeats_a_request_that_a_stop_or_a_proxy_interrupts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("phyla.system.patience.PAUSE_S", (0.01, 0.01))

    async def never(scope: object, receive: object, send: object) -> None:
        await asyncio.Event().wait()

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def interrupted() -> None:
        store = open_store("memory://")
        doors = Doors(store, open_without=True)
        task = asyncio.create_task(
            Limits(never, doors, Figures(store))(
                {"type": "http", "path": "/health", "headers": []}, cast("Any", None), send
            )
        )
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(interrupted())
    assert sent[0]["status"] == 503

    page = b"<html>Back at noon</html>"

    class Service(BaseHTTPRequestHandler):
        answers: ClassVar = [
            (500, b"Internal Server Error"),
            (503, sent[1]["body"]),
            *((status, page) for status in (200, 302, 403, 404, 408, 429, 520)),
            (404, b'{"message": "no route"}'),
            (200, b"[]"),
        ]

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = self.answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if body is page else "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Service) as service, ThreadPoolExecutor(1) as pool:
        pool.submit(service.serve_forever, 0.01)
        try:
            with closing(open_store(f"http://127.0.0.1:{service.server_port}")) as there:
                hold_on(there)
                assert there.studies() == []
        finally:
            service.shutdown()
    assert not Service.answers


def test_who_works_waits_longer_for_a_service_than_who_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.store.remote.LOOK_S", 0.2)
    with closing(open_store("memory://")) as behind, ThreadPoolExecutor(1) as pool:
        with served(behind) as url:
            there = open_store(url)
            assert there.studies() == []
        with pytest.raises(StoreUnavailable):
            there.studies()
        hold_on(there)
        waiting = pool.submit(there.studies)
        with served(behind, port=int(url.rpartition(":")[2])):
            assert waiting.result(60.0) == []
        waiting = pool.submit(there.studies)
        there.hold_on(0.0)
        with pytest.raises(StoreUnavailable):
            waiting.result(60.0)
        there.close()


@pytest.mark.parametrize("name", ["backfill", "retry", "observe"])
def test_a_watch_begins_at_a_service_that_is_busy_for_a_moment(
    name: str, remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, there, _ = remote
    call, refusals = getattr(Sightings, name), [StoreBusy("busy")]

    @wraps(call)
    def refuse_once(*found: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return call(*found, **options)

    @phyla.eval_task
    def value(evaluation: phyla.Evaluation) -> None:
        evaluation.record(value=1.0)

    monkeypatch.setattr(Sightings, name, refuse_once)
    folder = tmp_path / "written" / "step_1"
    folder.mkdir(parents=True)
    (folder / "weights").touch()
    (folder / "DONE").touch()
    watched = phyla.watch(
        folder.parent,
        phyla.Suite("all", [value]),
        format="marker",
        following=phyla.Following(once=True),
        home=tmp_path / "home",
        storage=there.url,
    )
    assert watched.counts == {"complete": 1}
    assert not refusals


def test_who_renews_leases_does_not_wait_long_for_a_service_that_vanished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.store.remote.PROMPT_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = open_store(f"http://127.0.0.1:{silent.getsockname()[1]}")
        controller = controller_of(there, 1, rules(pbt(2)))
        with pytest.raises(StoreUnavailable, match="timed out"):
            controller.renew("w")
        there.close()


def test_tokens() -> None:
    behind = open_store("memory://")
    secret = {role: create(behind, role, role) for role in Role}
    with served(behind) as url, ExitStack() as opened:
        anybody = opened.enter_context(closing(open_store(url)))
        with raises(AccessDenied, "token"):
            anybody.studies()
        with pytest.MonkeyPatch.context() as patch:

            def as_a(role: str) -> Store:
                patch.setenv("PHYLA_TOKEN", secret[Role(role)])
                store = opened.enter_context(closing(open_store(url)))
                store.studies()
                return store

            viewer, worker, operator = as_a("viewer"), as_a("worker"), as_a("operator")
            with raises(AccessDenied, "viewer"):
                made(viewer)
            with raises(AccessDenied, "worker"):
                made(worker)
            record, _ = made(operator)
            with pytest.raises(AccessDenied):
                claiming(controller_of(viewer, record.id, rules(pbt(3)))).claim("w")
            assert claiming(controller_of(worker, record.id, rules(pbt(3)))).claim("w")[0]
            patch.setenv("PHYLA_TOKEN", "x" * 43)
            stranger = opened.enter_context(closing(open_store(url)))
            with raises(AccessDenied, "phyla token create NAME --role ROLE"):
                stranger.studies()
            behind.revoke_token("viewer")
            assert [token.name for token in behind.tokens()] == ["operator", "worker"]
            assert secret[Role.VIEWER] not in repr(behind.tokens())
    assert isinstance(anybody, RemoteStore)


def test_what_is_recorded_is_recorded_whole(remote: Remote) -> None:
    _, there, _ = remote
    record, controller = made(there, 1)
    (claimed,), _ = controller.claim("w")
    done = completion(claimed, float("nan"))
    controller.complete([done])
    (trial,) = there.look(record.id, queries.trials, limit=1)
    (row,) = there.look(record.id, queries.checkpoints)
    assert row.name == f"{trial.id}.1"
    assert plain([trial.fitness, trial.order]) == ["nan", "-inf"]


class Interrupted:
    """A reader after whose first read something happens."""

    def __init__(self, reader: Reader, happens: Callable[[], object]) -> None:
        self._reader, self._happens = reader, [happens]

    def __getattr__(self, name: str) -> Any:
        def read(*args: Any, **named: Any) -> Any:
            answer = getattr(self._reader, name)(*args, **named)
            while self._happens:
                self._happens.pop()()
            return answer

        return read


def test_a_look_sees_nothing_of_a_commit_between_its_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/phyla.db"
    with closing(open_store(url)) as behind, closing(open_store(url)) as other, served(behind) as address:
        record, controller = made(other, 2)
        works, _ = controller.claim("w", 2)
        read, opened = behind.reader, list[int]()

        @contextmanager
        def reader(study: int) -> Iterator[Any]:
            opened.append(study)
            with read(study) as found:
                yield Interrupted(found, lambda: controller.complete([completion(work) for work in works]))

        with monkeypatch.context() as patch, closing(open_store(address)) as there:
            patch.setattr(behind, "reader", reader)
            before = there.look(record.id, queries.summary)
        assert opened == [record.id]
        assert (before.counts, before.newest) == ({"running": 2}, None)
        after = other.look(record.id, queries.summary)
    assert after.counts == {"completed": 2}
    assert after.newest is not None


ASKS = {"store.look": 1, "_store.look": 1, "self._query": 0, "results._query": 0, "every": 2}
"""What asks a query, which is the argument at this place."""
MAY_ASK = re.compile("|".join(rf"\b{name.rpartition('.')[2]}\(" for name in ASKS))


def asked_in(file: Path) -> Iterator[str]:
    """Yield the names of the queries that are asked in a file."""
    text = file.read_text()
    # Few files ask any, and to parse all of them takes a second.
    for node in ast.walk(ast.parse(text)) if MAY_ASK.search(text) else ():
        if isinstance(node, ast.Call):
            function = ".".join(ast.unparse(node.func).split(".")[-2:])
            place = ASKS.get(function, len(node.args))
            yield from (ast.unparse(each).rpartition(".")[2] for each in node.args[place : place + 1])


def test_a_service_knows_every_query_that_is_asked() -> None:
    asked = {name for file in Path(phyla.__file__).parent.rglob("*.py") for name in asked_in(file)}
    assert asked - {"query"} == QUERIES.keys()


def test_only_those_that_have_the_database_open_readers() -> None:
    root = Path(phyla.__file__).parent
    opening = {file.relative_to(root).parts[0] for file in root.rglob("*.py") if ".reader(" in file.read_text()}
    assert opening == {"controller", "dashboard", "service", "store", "testing"}
