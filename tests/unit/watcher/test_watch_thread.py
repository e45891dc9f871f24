"""Waking up when directories may have changed."""

import builtins
import shutil
import threading
import time
from pathlib import Path

import pytest

from phyla.watcher.file_events import FileEvents

PATIENCE = 30.0


class Waking:
    """File events of some roots, and what is woken by them."""

    def __init__(self, *roots: Path) -> None:
        self.events = FileEvents(*roots)
        self.stop = threading.Event()

    def wait(self, timeout_s: float = PATIENCE) -> frozenset[Path]:
        return self.events.wait(timeout_s, self.stop)

    def until(self, root: Path) -> None:
        """Wait for an event of this root."""
        end = time.monotonic() + PATIENCE
        while root not in self.wait(1.0):
            assert time.monotonic() < end

    def settle(self, folder: Path) -> None:
        """Wait until events arrive from this folder, and no more are on their way."""
        self.until(folder)
        for number in range(3):
            (folder / f"settle-{number}").touch()
            self.until(folder)
        while self.wait(0.2):
            pass


def refuse_events(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    real = builtins.__import__

    def refuse(name: str, *arguments: object) -> object:
        if name.startswith("watchfiles"):
            raise error("no events here")
        return real(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_it_wakes_at_once_and_at_every_change(tmp_path: Path) -> None:
    waking = Waking(tmp_path)
    assert waking.wait() == {tmp_path}
    for number in range(3):
        (tmp_path / str(number)).write_bytes(b"x")
        assert waking.wait() == {tmp_path}
    assert waking.wait(0.01) == frozenset()
    assert waking.events.works


def test_changes_deep_below_wake_it_too(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    waking = Waking(tmp_path)
    waking.settle(tmp_path)
    (tmp_path / "a/b/x").touch()
    assert waking.wait() == {tmp_path}


def test_it_tells_which_root_changed(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for root in roots:
        root.mkdir()
    waking = Waking(*roots)
    waking.settle(roots[0])
    (roots[1] / "x").touch()
    assert waking.wait() == {roots[1]}


@pytest.mark.parametrize("has_events", [True, False], ids=["events", "polling"])
def test_a_root_that_does_not_exist_is_waited_for(
    has_events: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_events:
        refuse_events(monkeypatch, ImportError)
    late, there = tmp_path / "late", tmp_path / "there"
    there.mkdir()
    waking = Waking(late, there)
    assert waking.wait() == {late, there}
    late.mkdir()
    waking.until(late)
    if has_events:
        (late / "x").touch()
        waking.until(late)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_root_that_is_replaced_is_watched_again(noticed: bool, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    waking = Waking(root)
    waking.settle(root)
    shutil.rmtree(root)
    if noticed:
        waking.wait()
    root.mkdir()
    waking.settle(root)


@pytest.mark.parametrize("error", [ImportError, OSError])
def test_without_events_it_only_waits(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_events(monkeypatch, error)
    waking = Waking(tmp_path)
    assert waking.wait() == {tmp_path}
    (tmp_path / "x").touch()
    assert waking.wait(0.05) == frozenset()
    assert not waking.events.works


def test_stopping_ends_a_wait_from_another_thread(tmp_path: Path) -> None:
    waking = Waking(tmp_path)
    waking.wait()
    threading.Timer(0.2, waking.stop.set).start()
    before = time.monotonic()
    assert waking.wait() == frozenset()
    assert time.monotonic() - before < PATIENCE / 2


def test_what_happens_while_the_caller_is_busy_is_not_lost(tmp_path: Path) -> None:
    waking = Waking(tmp_path)
    assert waking.wait() == {tmp_path}
    (tmp_path / "x").touch()
    time.sleep(0.1)
    assert waking.wait() == {tmp_path}
