"""What only PostgreSQL has: writers at the same time. The bad interleavings are forced, not hoped for."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from facts import raises
from phyla import machine
from phyla.configuration import to_config
from phyla.controller import Controller, StudyChanges, StudyRecords
from phyla.errors import ConfigurationError, StoreBusy, StoreError, StoreUnavailable
from phyla.machine import Claimed, Completion, Failure, Outdated, TrainRules
from phyla.records import CheckpointState, JobState, MemberState, StudyState
from phyla.space import Params
from phyla.store import open_store
from phyla.store.sql import postgres
from phyla.store.sql.postgres import PostgresBackend
from phyla.store.sql.store import SqlStore
from phyla.strategies import ExploreWith
from storing import STEPS, VirtualClock, completion, pbt, rules

WAIT_S = 120.0


@dataclass(frozen=True)
class Server:
    store: SqlStore
    backend: PostgresBackend
    clock: VirtualClock
    pool: ThreadPoolExecutor

    def controller(self, size: int, *, quorum: float = 0.0) -> Controller:
        study = self.store.create_study("s", {}, 1, size)
        return Controller(self.store, study.id, rules(pbt(size, quorum=quorum)))

    def start(self, call: Callable[[], Any]) -> "Future[Any]":
        return self.pool.submit(call)

    def until_somebody_waits(self, started: "Future[Any]") -> None:
        """Return once a connection waits for a lock that another one holds."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        end = time.monotonic() + WAIT_S
        with self.backend.engine.connect() as connection:
            while not connection.exec_driver_sql(query).scalar_one():
                connection.rollback()
                assert not started.done(), f"it did not wait: {started.result()}"
                assert time.monotonic() < end


@pytest.fixture
def server(postgres_url: str) -> Iterator[Server]:
    clock = VirtualClock()
    backend = PostgresBackend(postgres_url, clock)
    store = SqlStore(backend)
    with ThreadPoolExecutor(4) as pool:
        yield Server(store, backend, clock, pool)
    store.close()


def halved(params: Params, rng: np.random.Generator) -> Any:
    return {**params, "lr": params["lr"] / 2}


def _finish(controller: Controller, claimed: Claimed) -> None:
    controller.complete([completion(claimed)])


def test_a_decision_does_not_wait_for_a_completion_that_is_not_committed(server: Server) -> None:
    controller = server.controller(2, quorum=1.0)
    first, second = controller.claim("a", 2)[0]
    controller.complete([completion(first, 0.1)])
    with server.store.transaction(1, exclusive=False) as tx:
        _, commands = machine.complete(tx, controller.population, completion(second, 0.9))
        tx.apply(commands)
        # Nobody else sees it yet: the quorum is missing, and that is no defect of the strategy.
        claimed, rest = server.start(lambda: controller.claim("b")).result(WAIT_S)
        assert (claimed, isinstance(rest, machine.Idle)) == ([], True)
    both = controller.claim("b", 2)[0]
    assert sorted(work.trial.generation for work in both) == [1, 1]
    with server.store.reader(1) as reader:
        assert [member.published.fitness for member in reader.members() if member.published] == [0.1, 0.9]


def test_a_checkpoint_that_is_being_taken_is_not_collected(server: Server) -> None:
    controller = server.controller(1)
    claimed = controller.claim("a")[0][0]
    _finish(controller, claimed)
    name = f"{claimed.trial.id}.1"
    with server.store.reader(1) as reader:
        looked_at = reader.checkpoints(CheckpointState.LIVE)
    with server.store.transaction(1, exclusive=False) as tx:
        tx.apply([machine.TakeCheckpoint(name)])
        # It neither waits for the row, which could be a deadlock, nor marks it.
        assert server.start(lambda: StudyRecords(server.store, 1).mark_deleting(looked_at)).result(WAIT_S) == []
    assert StudyRecords(server.store, 1).mark_deleting(looked_at) == []
    with server.store.reader(1) as reader:
        row = reader.checkpoint(name)
    assert row is not None
    assert (row.state, row.taken) == (CheckpointState.LIVE, 1)


def test_a_claim_does_not_start_from_a_checkpoint_that_is_being_collected(server: Server) -> None:
    controller = server.controller(1)
    claimed = controller.claim("a")[0][0]
    _finish(controller, claimed)
    name = f"{claimed.trial.id}.1"
    with server.store.transaction(1, exclusive=True) as tx:
        assert tx.apply([machine.MarkDeleting(name, 0)]) == [name]
        claim = server.start(lambda: controller.claim("b"))
        server.until_somebody_waits(claim)
    (again,), _ = claim.result(WAIT_S)
    assert again.trial.parent_checkpoint is None
    assert again.trial.reason == {"decision": "recover", "lost": name}


def test_claimers_at_the_same_time_get_different_members(server: Server) -> None:
    controller = server.controller(3)
    with server.store.transaction(1, exclusive=False) as tx:
        mine, commands = machine.claim(tx, controller.population, "a")
        tx.apply(commands)
        theirs = server.start(lambda: controller.claim("b", 3)).result(WAIT_S)
    assert isinstance(mine, Claimed)
    assert mine.trial.member == 0
    assert [claimed.trial.member for claimed in theirs[0]] == [1, 2]
    ids = [mine.trial.id, *(claimed.trial.id for claimed in theirs[0])]
    assert len(set(ids)) == 3


def test_claimers_at_the_same_time_get_different_retries(server: Server) -> None:
    controller = server.controller(2)
    for claimed in controller.claim("a", 2)[0]:
        controller.fail(Failure(job=claimed.trial.id, token=1, error="again"))
    with server.store.transaction(1, exclusive=False) as tx:
        mine, commands = machine.claim(tx, controller.population, "a")
        tx.apply(commands)
        theirs = server.start(lambda: controller.claim("b")).result(WAIT_S)[0][0]
    assert isinstance(mine, Claimed)
    assert (mine.trial.id, theirs.trial.id) == (1, 2)


def test_who_moves_on_while_being_retired_leaves_nothing_running(server: Server) -> None:
    controller = server.controller(2)
    first, second = controller.claim("a", 2)[0]
    controller.complete([completion(first, 0.9)], "a", 1)
    smaller = StudyChanges(server.store, 1, rules(pbt(1)))
    with server.store.transaction(1, exclusive=False) as tx:
        _, commands = machine.complete(tx, controller.population, completion(second, 0.1))
        tx.apply(commands)
        following, commands = machine.claim(tx, controller.population, "b")
        tx.apply(commands)
        resized = server.start(lambda: smaller.change({"schema": 1}, {}))
        server.until_somebody_waits(resized)
    resized.result(WAIT_S)
    assert isinstance(following, Claimed)
    with server.store.reader(1) as reader:
        member = reader.member(1)
        assert following.trial.member == 1
        assert (member.state, member.retired, member.current_trial) == (MemberState.DONE, True, None)
        assert reader.trial(following.trial.id).state is JobState.CANCELLED
        assert [attempt.job for attempt in reader.running()] == [3]


def test_a_change_of_settings_comes_after_the_decisions_that_are_being_taken(server: Server) -> None:
    controller, changed = _changing(server)
    with server.store.transaction(1, exclusive=False) as tx:
        mine, commands = machine.claim(tx, controller.population, "a")
        tx.apply(commands)
        change = server.start(changed)
        server.until_somebody_waits(change)
    change.result(WAIT_S)
    assert isinstance(mine, Claimed)
    assert mine.trial.end_step == STEPS
    claimed, rest = controller.claim("b")
    assert (claimed, type(rest)) == ([], Outdated), "nothing is decided by the old settings any more"
    assert _changed_controller(server).claim("b")[0][0].trial.end_step == 1


def test_who_decides_while_settings_change_waits_and_decides_nothing_by_the_old_ones(server: Server) -> None:
    controller, _ = _changing(server)
    assert controller.claim("a")[0][0].trial.end_step == STEPS
    with server.store.transaction(1, exclusive=True, alone=True) as tx:
        tx.apply([machine.SetConfig(_config(1))])
        claim = server.start(lambda: controller.claim("b"))
        server.until_somebody_waits(claim)
    claimed, rest = claim.result(WAIT_S)
    assert (claimed, type(rest)) == ([], Outdated)
    assert _changed_controller(server).claim("b")[0][0].trial.end_step == 1


def test_what_is_handed_in_by_old_settings_is_counted_by_who_goes_by_the_new_ones(server: Server) -> None:
    study = server.store.create_study("s", _config(STEPS), 1, 3)
    old = Controller(server.store, study.id, rules(pbt(3)), study.config)
    (claimed,), _ = old.claim("a")
    unknown = to_config(rules(replace(pbt(3), explore=ExploreWith(halved))), 1)
    unknown = json.loads(json.dumps(unknown).replace(":halved", ":missing"))
    with server.store.transaction(study.id, exclusive=True, alone=True) as tx:
        tx.apply([machine.SetConfig(unknown)])
    with server.store.transaction(study.id, exclusive=True) as tx:
        assert not tx.results(0)
        handed_in = server.start(lambda: old.complete([completion(claimed)], "a", 1))
        server.until_somebody_waits(handed_in)
    assert isinstance(handed_in.result(WAIT_S)[2], machine.Outdated)
    with server.store.reader(study.id) as reader:
        assert len(reader.results(0)) == 1


def test_claims_and_collections_do_not_wait_for_each_other_because_of_changes(server: Server) -> None:
    controller, _ = _changing(server)
    with server.store.transaction(1, exclusive=False), server.store.transaction(1, exclusive=True) as tx:
        tx.apply([machine.SetStudyState(StudyState.RUNNING, "by both")])
        assert server.start(lambda: controller.claim("b")).result(WAIT_S)[0]


def test_among_many_that_decide_without_a_pause_each_change_has_its_turn(server: Server) -> None:
    def made(steps: int) -> TrainRules:
        return rules(replace(pbt(12), total_steps=10**9, steps_per_trial=steps))

    def work(name: str) -> None:
        mine = Controller(server.store, study, made(STEPS), to_config(made(STEPS), 1))
        done: list[Completion] = []
        while not ended.is_set():
            _, claimed, _ = mine.complete(done, name, 1)
            done = [completion(given) for given in claimed if isinstance(given, Claimed)]

    study = server.store.create_study("s", to_config(made(STEPS), 1), 1, 12).id
    ended = threading.Event()
    workers = [server.start(partial(work, f"host:{number}:1:1")) for number in range(4)]
    newest: dict[int, int] = {}
    try:
        for steps in range(STEPS + 1, STEPS + 6):
            StudyChanges(server.store, study, made(steps)).change(to_config(made(steps), 1), {})
            with server.store.reader(study) as reader:
                newest[steps] = max((trial.id for trial in reader.trials()), default=0)
    finally:
        ended.set()
    for worker in workers:
        worker.result(WAIT_S)
    with server.store.reader(study) as reader:
        trials = reader.trials()
    for steps, before in newest.items():
        later = [trial.end_step for trial in trials if trial.id > before]
        in_force = [one for one in newest if one >= steps]
        assert all(any(end % one == 0 for one in in_force) for end in later)


def _config(steps: int) -> Any:
    return to_config(rules(replace(pbt(3), steps_per_trial=steps)), 1)


def _changing(server: Server) -> tuple[Controller, Callable[[], object]]:
    """Return a controller of a study, and what gives this study trials of one step."""
    study = server.store.create_study("s", _config(STEPS), 1, 3)
    new = StudyChanges(server.store, 1, rules(replace(pbt(3), steps_per_trial=1)))
    changes = {"strategy.steps_per_trial": (STEPS, 1)}
    controller = Controller(server.store, study.id, rules(pbt(3)), study.config)
    return controller, lambda: new.change(_config(1), changes, before=study.config)


def _changed_controller(server: Server) -> Controller:
    """Return a controller of that study that knows the new settings."""
    return Controller(server.store, 1, rules(replace(pbt(3), steps_per_trial=1)), _config(1))


def test_a_completion_and_the_end_of_its_lease_do_not_both_count(server: Server) -> None:
    controller = server.controller(1)
    claimed = controller.claim("a")[0][0]
    server.clock.now += 1000
    with server.store.transaction(1, exclusive=False) as tx:
        _, commands = machine.complete(tx, controller.population, completion(claimed))
        tx.apply(commands)
        # The lease ran out, but its trial is locked: whoever locked it is ending it.
        claims, _ = server.start(lambda: Controller(server.store, 1, controller.rules).claim("b")).result(WAIT_S)
        assert claims == []
    with server.store.reader(1) as reader:
        assert [attempt.state for attempt in reader.attempts(claimed.trial.id)] == ["completed"]


def test_two_late_completers_that_also_claim_do_not_wait_for_each_other(server: Server) -> None:
    controllers = [server.controller(2) for _ in range(2)]
    claims = controllers[0].claim("a", 2)[0]
    server.clock.now += 1000
    both = threading.Barrier(2)

    def complete(controller: Controller, claimed: Claimed) -> int:
        with server.store.transaction(1, exclusive=False) as tx:
            _, commands = machine.complete(tx, controller.population, completion(claimed))
            tx.apply(commands)
            both.wait(WAIT_S)
            # Each holds its own trial now and looks at the other's, whose lease ran out as well.
            found = len(tx.expired(10))
            both.wait(WAIT_S)
        return found

    running = [server.start(partial(complete, *pair)) for pair in zip(controllers, claims, strict=True)]
    assert [future.result(WAIT_S) for future in running] == [0, 0]


def test_ending_the_study_does_not_wait_for_those_who_work(server: Server) -> None:
    controller = server.controller(2)
    claimed = controller.claim("a")[0][0]
    with server.store.transaction(1, exclusive=False) as tx:
        _, commands = machine.complete(tx, controller.population, completion(claimed))
        tx.apply(commands)
        server.start(lambda: server.store.set_state(1, StudyState.STOPPED, "enough")).result(WAIT_S)
    with server.store.reader(1) as reader:
        assert reader.study().state is StudyState.STOPPED
        assert reader.counts() == {"completed": 1}


def test_writers_that_wait_for_each_other_are_told_to_try_again(server: Server) -> None:
    server.controller(2)
    both = threading.Barrier(2)

    def lock(order: tuple[int, int]) -> str:
        try:
            with server.store.transaction(1, exclusive=False) as tx:
                tx.locked_member(order[0])
                both.wait(WAIT_S)
                tx.locked_member(order[1])
        except StoreBusy as error:
            return str(error)
        return ""

    first, second = server.start(lambda: lock((0, 1))), server.start(lambda: lock((1, 0)))
    messages = sorted((first.result(WAIT_S), second.result(WAIT_S)))
    assert messages[0] == ""
    assert "two transactions waited for each other; nothing was changed, try again" in messages[1]


def test_many_workers_finish_a_study(server: Server) -> None:
    controller = server.controller(6)

    def work(worker: str) -> list[int]:
        done = []
        claims, rest = controller.claim(worker)
        while not isinstance(rest, machine.Ended):
            for claimed in claims:
                _finish(controller, claimed)
                done.append(claimed.trial.id)
            claims, rest = controller.claim(worker)
        return done

    running = [server.start(partial(work, f"w{number}")) for number in range(4)]
    done = [trial for future in running for trial in future.result(WAIT_S)]
    assert len(done) == len(set(done)) == 36
    with server.store.reader(1) as reader:
        assert reader.counts() == {"completed": 36}
        assert [member.progress for member in reader.members()] == [30] * 6


def test_a_look_sees_one_state_while_others_write(server: Server) -> None:
    controller = server.controller(2)
    with server.store.reader(1) as reader:
        assert not reader.unfinished()
        controller.claim("w")
        assert not reader.unfinished()


def test_the_server_tells_the_time(postgres_url: str) -> None:
    store = open_store(postgres_url, clock=VirtualClock())
    study = store.create_study("s", {}, 1, 1)
    with store.transaction(study.id, exclusive=True) as tx:
        first = tx.now()
    with store.transaction(study.id, exclusive=False) as tx:
        second = tx.now()
    assert abs(first - time.time()) < 60
    assert study.created_at < first < second
    store.close()


def test_the_time_is_read_after_the_lock_was_waited_for(postgres_url: str) -> None:
    backend = PostgresBackend(postgres_url)
    store = SqlStore(backend)
    store.create_study("s", {}, 1, 1)
    with ThreadPoolExecutor(1) as pool:
        helper = Server(store, backend, VirtualClock(), pool)

        def later() -> float:
            with store.transaction(1, exclusive=True) as tx:
                return tx.now()

        with store.transaction(1, exclusive=True):
            waiting = helper.start(later)
            helper.until_somebody_waits(waiting)
            with backend.engine.connect() as connection:
                end = connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one()
        assert waiting.result(WAIT_S) > end
    store.close()


def test_a_writer_that_is_cut_off_holds_up_nobody_for_long(
    server: Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert postgres.IDLE_TIMEOUT_S < postgres.LOCK_TIMEOUT_S
    study = server.store.create_study("s", {}, 1, 1)
    monkeypatch.setattr(postgres, "IDLE_TIMEOUT_S", 1)
    cut_off = SqlStore(PostgresBackend(postgres_url))

    def stand_still() -> None:
        with cut_off.transaction(study.id, exclusive=True) as tx:
            others = server.start(partial(server.store.set_state, study.id, StudyState.STOPPED))
            server.until_somebody_waits(others)
            others.result(WAIT_S)
            tx.apply([machine.SetStudyState(StudyState.COMPLETED)])

    with pytest.raises(StoreBusy, match="idle"):
        stand_still()
    with server.store.reader(study.id) as reader:
        assert reader.study().state is StudyState.STOPPED
    cut_off.close()


def test_a_connection_that_the_server_ended_is_replaced(server: Server, postgres_url: str) -> None:
    server.controller(1)
    with server.backend.engine.connect() as connection:
        idle = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    other = PostgresBackend(postgres_url)
    with other.engine.connect() as connection:
        connection.execute(sa.text("SELECT pg_terminate_backend(:idle)"), {"idle": idle})
    other.engine.dispose()
    assert server.store.find_study("s") is not None


def test_an_empty_database_in_the_place_of_another_one_is_named(server: Server) -> None:
    server.controller(1)
    with server.backend.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE studies CASCADE")
    with raises(StoreError, "another database", "Restore"):
        server.store.studies()


def test_a_server_that_vanished_is_noticed_though_it_says_nothing(server: Server, postgres_url: str) -> None:
    def parameters(backend: PostgresBackend) -> dict[str, str]:
        with backend.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            found: dict[str, str] = driver.info.get_parameters()
        return found

    usual = parameters(server.backend)
    assert (usual["keepalives_idle"], usual["tcp_user_timeout"]) == ("10", "30000")
    other = PostgresBackend(f"{postgres_url}&keepalives_idle=99")
    assert parameters(other)["keepalives_idle"] == "99"
    other.engine.dispose()


def test_a_password_is_never_shown() -> None:
    backend = PostgresBackend(
        "postgresql://me:secret@host:5/db?password=secret&sslpassword=secret&sslmode=require"
    )
    assert backend.url == "postgresql://me@host:5/db?sslmode=require"


def test_a_server_that_cannot_be_reached_is_explained() -> None:
    with raises(StoreUnavailable, "127.0.0.1"):
        open_store("postgresql://me:secret@127.0.0.1:1/db")


def test_several_hosts_are_parameters() -> None:
    with raises(ConfigurationError, "?host=one:5432&host=two:5432"):
        PostgresBackend("postgresql://me@one:5432,two:5432/db")
    url = "postgresql://me@/db?host=127.0.0.1:1&host=127.0.0.2:2"
    with raises(StoreUnavailable, "127.0.0.1", "127.0.0.2"):
        open_store(url)


@pytest.mark.parametrize("url", ["postgresql+asyncpg://host/db", "postgres+x://host/db"])
def test_another_driver_is_refused(url: str) -> None:
    with raises(ConfigurationError, "postgresql://user@host/database"):
        PostgresBackend(url)


def test_a_missing_driver_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "psycopg", None)
    with raises(ConfigurationError, 'pip install "phyla'):
        open_store("postgresql://host/db")


def test_a_database_that_was_restored_from_a_dump_is_another_store(server: Server) -> None:
    first = server.store.identity()
    with server.backend.engine.begin() as connection:
        for statement in (
            "ALTER TABLE store_identity RENAME TO dumped",
            "CREATE TABLE store_identity (LIKE dumped INCLUDING ALL)",
            "INSERT INTO store_identity SELECT * FROM dumped",
        ):
            connection.exec_driver_sql(statement)
    restored = server.store.identity()
    assert (restored.id != first.id, restored.copied_from) == (True, first.id)
    assert server.store.identity() == restored


def test_an_ordinary_role_may_ask_which_store_it_is(
    make_postgres_url: Callable[[], str], postgres_server: str
) -> None:
    url = make_postgres_url()
    schema = url.rpartition("%3D")[2]
    engine = sa.create_engine(postgres_server.replace("postgresql:", "postgresql+psycopg:", 1))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE ordinary")
        connection.exec_driver_sql(f"GRANT ALL ON SCHEMA {schema} TO ordinary")
    engine.dispose()
    store = open_store(f"{url}%20-crole%3Dordinary")
    assert store.identity() == store.identity()
    store.close()
