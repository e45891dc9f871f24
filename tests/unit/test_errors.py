"""Which errors of the system are reported as a paragraph, and which as a traceback."""

import asyncio
import errno
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phyla.errors import StateError, advice_on, ends_only_call, is_limit_error, is_place_error, is_storage_error
from phyla.store import open_store
from phyla.study_modules import StudyFileRead
from phyla.system.drafts import replace_text

USER = "def write(path, text):\n    path.write_text(text)\n"


def error_of(write: Callable[[Path, str], object], file: Path) -> OSError:
    with pytest.raises(OSError, match="Errno") as caught:
        write(file, "text")
    return caught.value


def test_only_phyla_s_own_errors_of_a_place_are_place_errors(tmp_path: Path) -> None:
    user: dict[str, Any] = {"__name__": "study"}
    exec(USER, user)
    (tmp_path / "file").write_text("")
    for place, number in ((tmp_path / "file/inner", errno.ENOTDIR), (tmp_path / ("x" * 300), errno.ENAMETOOLONG)):
        own, users = error_of(replace_text, place), error_of(user["write"], place)
        assert (own.errno, users.errno) == (number, number)
        assert own.filename == str(place)
        assert (is_place_error(own), is_place_error(users)) == (True, False)
        assert not is_storage_error(own), "training that meets it has failed"
        assert "health" not in advice_on(own)
    assert not is_place_error(error_of(replace_text, tmp_path / "missing/file")), "that is a bug"


@pytest.mark.parametrize(
    "write", [lambda array, file: array.tofile(file), lambda array, file: np.save(file, array)]
)
def test_a_full_disk_is_recognized_where_numpy_hides_the_error(write: Callable[[Any, Any], None]) -> None:
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(OSError, match=r"written|space") as caught,
    ):
        write(np.zeros(100_000), full)
    assert is_storage_error(caught.value)
    assert advice_on(caught.value) == advice_on(OSError(errno.ENOSPC, ""))
    assert not is_storage_error(OSError("a report of 3 requested and 2 written files"))


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (MemoryError(), "fewer workers"),
    ],
)
def test_limits_of_the_system_are_named_with_the_fix(error: Exception, fix: str) -> None:
    assert is_limit_error(error)
    assert not is_storage_error(error), "training that meets it has failed"
    assert fix in advice_on(error)
    assert not is_limit_error(RuntimeError("my own"))


def test_a_command_that_may_open_no_more_files_says_so_without_a_traceback(tmp_path: Path) -> None:
    words = ["sh", "-c", 'ulimit -n 5; exec "$@"', "sh", sys.executable, "-m", "phyla.cli", "status"]
    (tmp_path / ".phyla").mkdir()
    open_store(f"sqlite:///{tmp_path}/.phyla/phyla.db").close()
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ulimit -n" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_replaced_stays_and_no_draft_is_left(tmp_path: Path) -> None:
    (tmp_path / "directory/file").mkdir(parents=True)
    error_of(replace_text, tmp_path / "directory")
    assert [path.name for path in tmp_path.iterdir()] == ["directory"]


@pytest.mark.parametrize("ignored", [False, True])
def test_of_errors_that_no_handler_for_exceptions_catches_only_interrupts_and_our_own_end_the_process(
    monkeypatch: pytest.MonkeyPatch, ignored: bool
) -> None:
    handler = signal.SIG_IGN if ignored else signal.default_int_handler
    monkeypatch.setattr(signal, "getsignal", {signal.SIGINT: handler}.__getitem__)
    interrupt = KeyboardInterrupt()
    one_call = (ValueError(), StateError(), SystemExit(3), asyncio.CancelledError(), GeneratorExit())
    for error in (*one_call, interrupt, StudyFileRead()):
        group = BaseExceptionGroup("all", [ValueError(), error])
        expected = ignored if error is interrupt else error in one_call
        assert ends_only_call(error) == ends_only_call(group) == expected
