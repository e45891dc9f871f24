"""The directory of prepared checkpoints: attempts, locks, and what a killed worker leaves."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from phyla.system import file_locks
from phyla.worker.evaluating.prepared import KILLED_AT_MOST, PreparationFailed, PreparedCheckpoints, Record

WANTED = Record(store="s", study=1, checkpoint=2, identity="i", preparation="p", claimed_at=10.0)


def write(into: Path) -> None:
    (into / "w").write_text("whole")


def fail(into: Path) -> None:
    (into / "w").write_text("half")
    raise PreparationFailed("no shards")


def use(
    prepared: PreparedCheckpoints,
    make: Callable[[Path], None] = write,
    wanted: Record = WANTED,
    *,
    created_at: float = 1.0,
) -> Path | None:
    return prepared.find_or_make(wanted, make, created_at=created_at, max_attempts=2, wait=lambda: False)


def test_it_is_made_once_and_kept_while_it_is_needed(tmp_path: Path) -> None:
    prepared = PreparedCheckpoints(tmp_path / "prepared")
    path = use(prepared)
    assert path is not None
    assert use(prepared, fail) == path
    assert (path / "w").read_text() == "whole"
    assert prepared.collect("s", 1, lambda ids: ids)
    assert path.is_dir()
    # Of another study.
    assert not prepared.collect("s", 2, lambda ids: [])
    assert path.is_dir()
    assert not prepared.collect("s", 1, lambda ids: [])
    assert list(prepared.folder.iterdir()) == []


def test_after_the_last_attempt_nothing_is_tried_until_the_eval_task_is_queued_again(tmp_path: Path) -> None:
    prepared = PreparedCheckpoints(tmp_path)
    ends = []
    for _ in range(2):
        with pytest.raises(PreparationFailed, match="no shards") as caught:
            use(prepared, fail)
        ends.append(caught.value.final)
    assert ends == [False, True]
    with pytest.raises(PreparationFailed, match="no shards"):
        use(prepared, created_at=10.0)
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
    assert use(prepared, created_at=11.0) is not None


def test_an_error_of_the_disk_or_of_the_checkpoint_is_no_failed_attempt(tmp_path: Path) -> None:
    prepared = PreparedCheckpoints(tmp_path)

    def is_full(into: Path) -> None:
        raise OSError(28, "No space left on device")

    for _ in range(5):
        with pytest.raises(OSError, match="No space"):
            use(prepared, is_full)
    assert use(prepared) is not None


def test_what_a_killed_worker_left_is_removed_and_its_attempts_end_some_day(tmp_path: Path) -> None:
    prepared = PreparedCheckpoints(tmp_path)
    (tmp_path / f"{WANTED.name}.0123").mkdir()
    (tmp_path / f"{WANTED.name}.json").touch()
    path = use(prepared)
    assert {entry.name for entry in tmp_path.iterdir()} == {WANTED.name, f"{WANTED.name}.json"}
    assert path == tmp_path / WANTED.name
    killed = replace(WANTED, identity="other", begun=KILLED_AT_MOST)
    with pytest.raises(PreparationFailed, match="10 attempts") as caught:
        use(prepared, wanted=killed)
    assert caught.value.final


def test_a_worker_that_is_to_stop_does_not_wait_for_another(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / f"{WANTED.name}.json", os.O_RDWR | os.O_CREAT)
    try:
        file_locks.lock(descriptor)
        assert use(PreparedCheckpoints(tmp_path)) is None
    finally:
        os.close(descriptor)
    assert use(PreparedCheckpoints(tmp_path)) is not None
