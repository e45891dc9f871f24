"""A PostgreSQL server that is restarted, or out of reach for a while, as a process that works sees it."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TypeVar

import psycopg
import pytest
import sqlalchemy as sa

import phyla
from facts import raises
from phyla.client import Client
from phyla.configuration import to_config
from phyla.controller import Controller, sightings_of
from phyla.errors import ConnectionLost, LeaseLost, StoreUnavailable
from phyla.machine import Accepted, Claimed, Completion, Failure, NoWork, Work
from phyla.records import AttemptState, CheckpointState, JobState, StudyState
from phyla.space import Float, Params, Space
from phyla.store import Store, open_store
from phyla.store.sql.postgres import PostgresBackend, PostgresSession
from phyla.study import Change
from phyla.system.patience import no_waiting
from phyla.worker.training.trainer import Trainer
from serving import served
from storing import completion, pbt, rules
from waiting import until

LATER_S = 0.5
WORKER = "host:0:1:1"

R = TypeVar("R")


class Door:
    """A port that leads to a server's socket, and can be shut: who is inside is thrown out."""

    def __init__(self, there: str) -> None:
        self._there = there
        self._inside: list[socket.socket] = []
        self._listening: socket.socket | None = None
        self.port = 0
        self.open()

    def open(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._let_in, args=(self._listening,), daemon=True).start()

    def shut(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            # Closing alone would not wake the thread.
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        while self._inside:
            with suppress(OSError):
                self._inside.pop().shutdown(socket.SHUT_RDWR)

    def _let_in(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                here, _ = listening.accept()
                there = socket.socket(socket.AF_UNIX)
                there.connect(self._there)
                self._inside += [here, there]
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)
        one.close()


class Pooler:
    """A port that leads to two sessions of a server, in turn for each transaction, as in PgBouncer.

    The answer to the log-in comes from a third one: its number is that of no session that is used.
    """

    def __init__(self, there: str) -> None:
        self._there = there
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._let_in, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _let_in(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(here,), daemon=True).start()

    def _serve(self, here: socket.socket) -> None:
        with ExitStack() as open_, suppress(OSError, EOFError):
            asked = open_.enter_context(open_.enter_context(here).makefile("rb"))
            sessions = [open_.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)]
            answers = [open_.enter_context(session.makefile("rb")) for session in sessions]
            start = self._message(asked, kind=0)
            for session, stream in zip(sessions, answers, strict=True):
                session.connect(self._there)
                session.sendall(start)
                welcome = self._answer(stream)
            here.sendall(welcome)
            turn = 0
            while True:
                sessions[turn].sendall(message := self._message(asked))
                if message[:1] in (b"Q", b"S"):
                    here.sendall(answer := self._answer(answers[turn]))
                    turn = 1 - turn if answer.endswith(b"I") else turn

    def _answer(self, stream: BinaryIO) -> bytes:
        """Read up to the message that tells whether a transaction is open."""
        answer = b""
        while True:
            answer += (message := self._message(stream))
            if message[:1] == b"Z":
                return answer

    def _message(self, stream: BinaryIO, kind: int = 1) -> bytes:
        if len(head := stream.read(kind + 4)) < kind + 4:
            raise EOFError
        return head + stream.read(int.from_bytes(head[kind:], "big") - 4)


@pytest.fixture
def door(postgres_url: str) -> Iterator[tuple[Door, str]]:
    url = sa.make_url(postgres_url)
    made = Door(f"{url.query['host']}/.s.PGSQL.5432")
    query = {name: value for name, value in url.query.items() if name != "host"}
    through = url.set(host="127.0.0.1", port=made.port, query=query)
    yield made, through.render_as_string(hide_password=False)
    made.shut()


@pytest.fixture
def store(door: tuple[Door, str]) -> Iterator[Store]:
    store = open_store(door[1])
    yield store
    store.close()


def test_a_pooler_may_change_the_session_with_each_transaction(postgres_url: str) -> None:
    there = sa.make_url(postgres_url)
    pooler = Pooler(f"{there.query['host']}/.s.PGSQL.5432")
    query = {"sslmode": "disable", "gssencmode": "disable"}
    url = there.set(host="127.0.0.1", port=pooler.port, query=query).render_as_string(hide_password=False)
    with closing(pooler), closing(open_store(url)) as store, closing(PostgresBackend(url)) as backend:
        for index in range(8):  # psycopg prepares a statement that is used often
            store.create_study(f"s{index}", {}, 1, 2)
        assert len(store.studies()) == 8
        for _ in range(2):
            session = backend.begin(write=True)
            for name, seconds in (("lock_timeout", 30), ("idle_in_transaction_session_timeout", 20)):
                session.cursor.execute(f"SHOW {name}")
                assert session.cursor.fetchone() == (f"{seconds}s",)
            session.commit()


def test_a_timeout_that_the_server_sets_is_named(postgres_url: str) -> None:
    with closing(PostgresBackend(postgres_url)) as backend:
        session = backend.begin(write=True)
        session.cursor.execute("SET LOCAL statement_timeout = 1")
        with pytest.raises(psycopg.errors.QueryCanceled) as caught:
            session.cursor.execute("SELECT pg_sleep(60)")
        session.rollback()
        with raises(StoreUnavailable, "statement_timeout"):
            raise backend.translate_error(caught.value)


def away(door: Door) -> None:
    """Shut a door, and open it again later."""
    door.shut()
    threading.Timer(LATER_S, door.open).start()


def test_who_works_waits_for_the_server_and_who_looks_does_not(door: tuple[Door, str], store: Store) -> None:
    study = store.create_study("s", {}, 1, 2)
    away(door[0])
    with pytest.raises(StoreUnavailable, match="check that the server runs"):
        store.studies()
    store.hold_on(60.0)
    assert store.studies() == [study]
    store.hold_on(0.0)
    door[0].shut()
    with pytest.raises(StoreUnavailable):
        store.studies()


def test_who_waits_already_can_be_told_to_wait_no_longer(door: tuple[Door, str], store: Store) -> None:
    store.hold_on(600.0)
    door[0].shut()
    threading.Timer(LATER_S, store.hold_on, [0.0]).start()
    with pytest.raises(StoreUnavailable):
        store.studies()


def test_a_thread_with_more_to_do_does_not_wait_for_the_server(door: tuple[Door, str], store: Store) -> None:
    study = store.create_study("s", {}, 1, 2)
    store.hold_on(60.0)
    away(door[0])
    with no_waiting(), pytest.raises(StoreUnavailable):
        store.studies()
    assert store.studies() == [study]


def test_who_waits_for_commits_looks_again_when_the_connection_is_lost(
    door: tuple[Door, str], store: Store
) -> None:
    changes = store.changes()
    changes.wait(0.0)
    assert not changes.wait(0.01)
    door[0].shut()
    assert changes.wait(0.01)
    assert changes.wait(0.01)
    door[0].open()
    assert changes.wait(0.01)  # it listens again
    assert not changes.wait(0.01)
    study = store.create_study("s", {}, 1, 2)
    store.set_state(study.id, StudyState.RUNNING)
    assert changes.wait(10.0)


def test_a_claim_whose_connection_is_lost_is_made_again(door: tuple[Door, str], store: Store) -> None:
    shut: list[float] = []

    def allowed(params: Params) -> bool:
        if not shut:
            shut.append(time.monotonic())
            away(door[0])
        return True

    store.hold_on(60.0)
    study = store.create_study("s", {}, 1, 2)
    space = Space(rate=Float(0.0, 1.0), constraints=[allowed])
    controller = Controller(store, study.id, replace(rules(pbt(2)), space=space))
    (claimed,), rest = controller.claim("w:0:1:1")
    assert shut
    assert (claimed.trial.token, rest) == (1, None)
    with store.reader(study.id) as reader:
        assert len(list(reader.trials())) == 1


def test_a_process_waits_for_a_connection_and_is_told_what_to_raise(postgres_url: str) -> None:
    superuser = sa.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:", 1))
    with superuser.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE lonely LOGIN IN ROLE postgres")
        url = sa.make_url(postgres_url).set(username="lonely").render_as_string(hide_password=False)
    store, other = open_store(url), open_store(url)
    study = store.create_study("s", {}, 1, 2)
    with superuser.begin() as connection:
        connection.exec_driver_sql("ALTER ROLE lonely CONNECTION LIMIT 1")
    other.close()
    with raises(StoreUnavailable, "max_connections"):
        other.studies()
    other.hold_on(60.0)
    threading.Timer(LATER_S, store.close).start()
    assert other.studies() == [study]
    other.close()
    superuser.dispose()


def test_who_works_waits_while_the_server_is_read_only_and_who_looks_reads(postgres_url: str) -> None:
    superuser = sa.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:", 1))

    def demote(change: str) -> None:
        # As a standby does that takes the place of a server: it has none of its connections.
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'demoted'"
        with superuser.begin() as connection:
            connection.exec_driver_sql(f"ALTER ROLE demoted {change}")
            connection.exec_driver_sql(ended)

    with superuser.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE demoted LOGIN IN ROLE postgres")
    store = open_store(sa.make_url(postgres_url).set(username="demoted").render_as_string(hide_password=False))
    study = store.create_study("s", {}, 1, 2)
    demote("SET default_transaction_read_only = on")
    with raises(StoreUnavailable, "target_session_attrs=read-write"):
        store.set_state(study.id, StudyState.STOPPED)
    assert store.studies() == [study]
    store.hold_on(60.0)
    threading.Timer(LATER_S, demote, ["RESET default_transaction_read_only"]).start()
    store.set_state(study.id, StudyState.STOPPED)
    assert [found.state for found in store.studies()] == [StudyState.STOPPED]
    store.close()
    superuser.dispose()


class Cuts:
    """Closes the connection of a store at the next commits, or right after them."""

    def __init__(self, *, committed: bool) -> None:
        self.committed = committed
        self.left = 0
        self.reads = True
        self.every = 0
        self._commits = 0
        self._commit = PostgresSession.commit

    def commit(self, session: PostgresSession) -> None:
        self._commits += 1
        if self.every and self._commits % self.every == 0:
            self.left = 1
        if not self.left or not (session.write or self.reads):
            return self._commit(session)
        self.left -= 1
        if self.committed:
            session.cursor.connection.commit()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        session.cursor.connection.close()
        return self._commit(session)

    def during(self, request: Callable[[], R], times: int = 1) -> R:
        self.left = times
        try:
            return request()
        finally:
            assert not self.left


@pytest.fixture(params=[False, True], ids=["before the commit", "after the commit"])
def cuts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cuts:
    made = Cuts(committed=request.param)
    monkeypatch.setattr(PostgresSession, "commit", lambda session: made.commit(session))
    return made


def test_what_a_worker_asks_is_asked_again_when_its_connection_is_lost(postgres_url: str, cuts: Cuts) -> None:
    store = open_store(postgres_url)
    agreed = rules(pbt(2))
    config = to_config(agreed, 7)
    client = Client(store, store.create_study("s", config, 7, 2), agreed)

    def claim() -> tuple[list[Work], NoWork | None]:
        return client.exchange((), WORKER, 1, held=frozenset())[1:]

    def claimed() -> Claimed:
        (work,), _ = cuts.during(claim)
        assert isinstance(work, Claimed)
        return work

    work = claimed()
    first = work.trial
    assert first.token == 1
    assert cuts.during(client.study).state is StudyState.RUNNING
    assert cuts.during(client.is_active)
    assert cuts.during(client.waiting) == []
    cuts.during(lambda: client.renew(WORKER))
    whole = completion(work).checkpoint
    assert whole is not None
    half = replace(whole, name="half", step=first.start_step + 1)
    cuts.during(lambda: client.save_progress(first.id, first.token, half))
    with suppress(LeaseLost):
        cuts.during(lambda: client.release(first.id, first.token))
    second = claimed().trial
    assert (second.id, second.token, second.progress) == (first.id, 2, "half")
    with suppress(LeaseLost):
        cuts.during(lambda: client.fail(Failure(job=second.id, token=second.token, error="oops")))
    third = claimed().trial
    assert (third.id, third.token) == (first.id, 3)
    assert cuts.during(lambda: client.lose_worker(WORKER, "it died", counts=False)) in (0, 1)
    last = claimed()
    answers, _, _ = cuts.during(lambda: client.exchange([completion(last)], WORKER, 0), times=3)
    assert answers == [Accepted(job=first.id, fitness=0.5, repeated=cuts.committed)]
    found = cuts.during(lambda: client.checkpoint(f"{first.id}.4", study=client.record.id))
    assert found is not None
    assert found.state is CheckpointState.LIVE
    with store.reader(client.record.id) as reader:
        assert [trial.state for trial in reader.trials()] == [JobState.COMPLETED]
        assert [attempt.state for attempt in reader.trial_attempts()] == [
            AttemptState.RELEASED,
            AttemptState.FAILED,
            AttemptState.LOST,
            AttemptState.COMPLETED,
        ]
    with pytest.raises(ConnectionLost):
        cuts.during(client.study, times=4)
    store.close()


def test_reports_whose_answer_was_lost_are_sent_again_and_stored_once(
    postgres_url: str, tmp_path: Path, cuts: Cuts
) -> None:
    space = {"lr": phyla.Float(0.1, 1.0)}
    search = phyla.RandomSearch(members=1, total_steps=9)

    def train(trial: phyla.Trial) -> None:
        for step in range(1, 10):
            trial.report(score=float(step), step=step)
            if step in (3, 5, 8):
                with pytest.raises(ConnectionLost):
                    cuts.during(trainer.flush)
        (trial.checkpoint_dir / "w").write_text("")

    study = phyla.Study("s", space, phyla.Maximize("score"), search, home=tmp_path, storage=postgres_url)
    client = study._open()
    trainer = Trainer(client, client.repository, train, metrics=["score"], work_root=tmp_path / "work")
    (claimed,), _ = client.controller.claim(WORKER)
    done = trainer.run(claimed.trial)
    assert isinstance(done, Completion)
    client.exchange([done], WORKER, 0)
    with client.store.reader(client.record.id) as reader:
        assert [report.step for report in reader.reports(claimed.trial.id)] == [*range(1, 10)]


def test_ask_gives_each_trial_that_it_claimed(postgres_url: str, tmp_path: Path, cuts: Cuts) -> None:
    search = phyla.RandomSearch(members=5, total_steps=1)
    space = {"lr": phyla.Float(0.1, 1.0)}
    study = phyla.Study("s", space, phyla.Maximize("score"), search, home=tmp_path, storage=postgres_url)
    first = study.ask(2)
    again = cuts.during(lambda: study.ask(2))
    last = study.ask(5)
    assert [len(trials) for trials in (first, again, last)] == [2, 2, 1]
    assert len({trial.id for trial in (*first, *again, *last)}) == 5


def test_a_service_says_that_what_it_was_asked_may_have_been_done(postgres_url: str, cuts: Cuts) -> None:
    with closing(open_store(postgres_url)) as behind, served(behind) as url, closing(open_store(url)) as there:
        config = to_config(rules(pbt(2)), 7)
        study = there.create_study("s", config, 7, 2)
        cuts.reads = False
        with pytest.raises(StoreUnavailable, match=r"answered: .*closed"):
            cuts.during(lambda: sightings_of(there, study, ()).note("action", "ann stopped the study"))
        with behind.reader(study.id) as reader:
            assert len(reader.events()) == cuts.committed


def test_a_run_survives_any_number_of_cuts_once_it_trains(postgres_url: str, tmp_path: Path, cuts: Cuts) -> None:
    def train(trial: phyla.Trial) -> None:
        cuts.every = 3
        before = (trial.source.path / "w").read_text() if trial.source else ""
        (trial.checkpoint_dir / "w").write_text(f"{before}{trial.id} ")
        trial.report(score=trial.params["lr"])

    strategy = phyla.PBT(population_size=2, steps_per_trial=1, total_steps=3)
    space = {"lr": phyla.Float(0.1, 1.0)}
    study = phyla.Study("s", space, phyla.Maximize("score"), strategy, train, home=tmp_path, storage=postgres_url)
    results = study.run()
    assert (results.state, results.counts(), results.findings()) == (StudyState.COMPLETED, {"completed": 6}, [])
    best = results.best
    assert best is not None
    assert best.checkpoint.path.is_dir()
    assert [attempt.state for attempt in results.attempts()] == [AttemptState.COMPLETED] * 6


def test_a_watch_survives_cuts_once_it_evaluates(postgres_url: str, tmp_path: Path, cuts: Cuts) -> None:
    @phyla.eval_task
    def size(evaluation: phyla.Evaluation) -> None:
        cuts.every = 11
        evaluation.record(size=float(evaluation.checkpoint.path.stat().st_size))

    written = tmp_path / "written"
    written.mkdir()
    for step in range(5):
        (written / f"step-{step}.bin").write_bytes(bytes(step + 1))
        os.utime(written / f"step-{step}.bin", (1e9 + step, 1e9 + step))
    suite = phyla.Suite("all", [size], objective=phyla.Maximize("size_mean"))
    once = phyla.Following(once=True)
    home = tmp_path / "home"
    told: list[Change] = []
    watched = phyla.watch(
        written, suite, format="quiet", following=once, home=home, storage=postgres_url, on_change=told.append
    )
    assert [change.kind for change in told].count("seen") == 5
    assert [change.kind for change in told].count("complete") == 5
    assert (watched.checkpoints, watched.counts, watched.missing) == (5, {"complete": 5}, [])


def test_what_training_deletes_while_the_server_is_away_is_evaluated(
    door: tuple[Door, str], tmp_path: Path
) -> None:
    entrance, url = door
    written, home = tmp_path / "written", tmp_path / "home"
    values: list[float] = []

    def write(step: int) -> Path:
        folder = written / f"step_{step}"
        folder.mkdir(parents=True)
        (folder / "w").write_text(str(step))
        (folder / "DONE").touch()
        return folder

    @phyla.eval_task
    def value(evaluation: phyla.Evaluation) -> None:
        if not values:
            entrance.shut()
            try:
                for step in range(1, 4):
                    folder = write(step)
                    snapshot = f"step_{step}@*/step_{step}"
                    until(lambda snapshot=snapshot: [*home.rglob(snapshot)], "a snapshot")
                    shutil.rmtree(folder)
            finally:
                entrance.open()
            (written / "FINISHED").touch()
        values.append(float((evaluation.checkpoint.path / "w").read_text()))
        evaluation.record(value=values[-1])

    write(0)
    suite = phyla.Suite("all", [value], objective=phyla.Maximize("value_mean"))
    following = phyla.Following(done="FINISHED")
    watched = phyla.watch(written, suite, format="marker", following=following, home=home, storage=url)
    assert (watched.checkpoints, watched.counts, watched.missing) == (4, {"complete": 4}, [])
    assert sorted(values) == [0, 1, 2, 3]
