"""What only a store in memory has: one connection, which threads and nested blocks share."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from phyla.controller import Controller
from phyla.machine import Update
from phyla.records import StudyState
from phyla.store import Store, Transaction, open_store
from storing import VirtualClock, completion, pbt, rules


@pytest.fixture
def store() -> Iterator[Store]:
    made = open_store("memory://", clock=VirtualClock())
    made.create_study("s", {}, 1, 2)
    yield made
    made.close()


def _move(tx: Transaction, member: int, slot: str) -> None:
    tx.apply([Update(replace(tx.locked_member(member), slot=slot))])


def _slots(store: Store) -> list[str | None]:
    with store.reader(1) as reader:
        return [member.slot for member in reader.members()]


def test_it_is_its_own_and_ends_with_its_process(store: Store) -> None:
    other = open_store("memory://")
    assert other.studies() == []
    assert (store.url, store.identity().lasting) == ("memory://", False)
    assert store.identity() == store.identity()
    assert other.identity().id != store.identity().id
    other.close()


def test_a_thread_may_look_while_it_writes_and_write_while_it_looks(store: Store) -> None:
    with store.transaction(1, exclusive=True) as tx:
        _move(tx, 0, "a")
        assert _slots(store) == ["a", None]
    with store.reader(1):
        with store.transaction(1, exclusive=True) as tx:
            _move(tx, 1, "b")
        store.set_state(1, StudyState.STOPPED, "enough")
    found = store.find_study("s")
    assert found is not None
    assert (found.state, _slots(store)) == (StudyState.STOPPED, ["a", "b"])


def _fail_after_moving(store: Store, slot: str) -> None:
    with store.transaction(1, exclusive=True) as tx:
        _move(tx, 1, slot)
        raise ZeroDivisionError


def test_what_raises_inside_a_block_undoes_only_itself(store: Store) -> None:
    with store.transaction(1, exclusive=True) as outer:
        _move(outer, 0, "kept")
        with pytest.raises(ZeroDivisionError):
            _fail_after_moving(store, "undone")
    assert _slots(store) == ["kept", None]


def test_what_was_committed_inside_a_look_that_raises_stays(store: Store) -> None:
    def look() -> None:
        with store.reader(1):
            with store.transaction(1, exclusive=True) as tx:
                _move(tx, 0, "kept")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        look()
    assert _slots(store) == ["kept", None]


def test_threads_take_turns(store: Store) -> None:
    study = store.create_study("many", {}, 1, 6).id

    def work(worker: int) -> list[int]:
        controller, done = Controller(store, study, rules(pbt(6))), []
        while claims := controller.claim(f"w{worker}")[0]:
            controller.complete([completion(claims[0])])
            done.append(claims[0].trial.id)
        return done

    with ThreadPoolExecutor(8) as pool:
        done = [trial for trials in pool.map(work, range(8)) for trial in trials]
    assert sorted(done) == list(range(1, 6 * 6 + 1))
