"""Waking up when directories may have changed."""

import builtins
import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phyla.watcher.file_events import FileEvents

FOREVER = 1000.0
PATIENCE = 30.0

Wakes = Callable[[], frozenset[Path]]


@contextmanager
def waking(directory: FileEvents) -> Iterator[Wakes]:
    """Iterate in a thread; the value waits for the next wake-up."""
    wakes: queue.Queue[frozenset[Path]] = queue.Queue()

    def iterate() -> None:
        for roots in directory:
            wakes.put(roots)

    thread = threading.Thread(target=iterate, daemon=True)
    thread.start()
    try:
        yield lambda: wakes.get(timeout=PATIENCE)
    finally:
        directory.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def refuse_events(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    real = builtins.__import__

    def refuse(name: str, *arguments: object) -> object:
        if name == "watchfiles":
            raise error("no events here")
        return real(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)


def settle(directory: FileEvents, next_wake: Wakes, folder: Path) -> None:
    """Wait until events arrive from this folder."""
    assert next_wake()
    for number in range(100):
        (folder / f"settle-{number}").touch()
        if folder in next_wake() and number > 1:
            return


def test_it_wakes_at_once_and_at_every_change(tmp_path: Path) -> None:
    directory = FileEvents(tmp_path, poll_s=FOREVER)
    with waking(directory) as next_wake:
        assert next_wake() == {tmp_path}
        for number in range(3):
            (tmp_path / str(number)).write_bytes(b"x")
            assert next_wake() == {tmp_path}
        assert directory.events


def test_changes_deep_below_wake_it_too(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    directory = FileEvents(tmp_path, poll_s=FOREVER)
    with waking(directory) as next_wake:
        settle(directory, next_wake, tmp_path)
        (tmp_path / "a/b/x").touch()
        assert next_wake() == {tmp_path}


def test_it_tells_which_root_changed(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for root in roots:
        root.mkdir()
    directory = FileEvents(*roots, poll_s=FOREVER)
    with waking(directory) as next_wake:
        settle(directory, next_wake, roots[0])
        (roots[1] / "x").touch()
        while roots[1] not in next_wake():
            pass


@pytest.fixture(params=[True, False], ids=["events", "polling"])
def has_events(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the system tells events."""
    if not request.param:
        refuse_events(monkeypatch, ImportError)
    return bool(request.param)


def test_it_wakes_without_any_change(has_events: bool, tmp_path: Path) -> None:
    with waking(FileEvents(tmp_path, poll_s=0.05)) as next_wake:
        assert [next_wake() for _ in range(4)] == [{tmp_path}] * 4


def test_a_root_that_does_not_exist_is_waited_for(has_events: bool, tmp_path: Path) -> None:
    late, there = tmp_path / "late", tmp_path / "there"
    there.mkdir()
    with waking(FileEvents(late, there, poll_s=FOREVER)) as next_wake:
        next_wake()
        late.mkdir()
        while not (late in next_wake() and late.exists()):
            pass
        if has_events:
            (late / "x").touch()
            while late not in next_wake():
                pass


@pytest.mark.parametrize("noticed", [True, False])
def test_a_root_that_is_replaced_is_watched_again(noticed: bool, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    directory = FileEvents(root, poll_s=FOREVER)
    with waking(directory) as next_wake:
        settle(directory, next_wake, root)
        shutil.rmtree(root)
        if noticed:
            next_wake()
        root.mkdir()
        next_wake()
        settle(directory, next_wake, root)


@pytest.mark.parametrize("error", [ImportError, OSError])
def test_without_events_it_polls(error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_events(monkeypatch, error)
    directory = FileEvents(tmp_path, poll_s=0.05)
    with waking(directory) as next_wake:
        for _ in range(4):
            assert next_wake() == {tmp_path}
    assert not directory.events


def test_closing_ends_it_from_another_thread(has_events: bool, tmp_path: Path) -> None:
    directory = FileEvents(tmp_path, poll_s=FOREVER)
    wakes = iter(directory)
    assert next(wakes) == {tmp_path}
    threading.Timer(0.2, directory.close).start()
    assert all(roots == {tmp_path} for roots in wakes)
    assert list(directory) == []


def test_what_happens_while_the_caller_is_busy_is_not_lost(tmp_path: Path) -> None:
    wakes = iter(FileEvents(tmp_path, poll_s=FOREVER))
    assert next(wakes) == {tmp_path}
    assert next(wakes) == {tmp_path}
    (tmp_path / "x").touch()
    assert next(wakes) == {tmp_path}
