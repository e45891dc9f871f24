"""A PostgreSQL server that is restarted, or out of reach for a while, as a process that works sees it."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
import sqlalchemy as sa

from phyla.controller import Controller
from phyla.errors import StoreUnavailable
from phyla.records import StudyState
from phyla.space import Float, Params, Space
from phyla.store import Store, open_store
from storing import pbt, rules

LATER_S = 0.5


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
