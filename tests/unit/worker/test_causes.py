"""What is stored of an error that training raised."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from phyla.errors import NoFitness
from phyla.records import summarize_error
from phyla.worker.training.causes import cause_of, traceback_of, write_log


def train(trial: object) -> None:
    """Never called."""


def raised(act: Callable[[], object]) -> Exception:
    with pytest.raises((ValueError, ArithmeticError, LookupError)) as caught:
        act()
    return caught.value


def test_the_place_is_the_last_line_of_the_users_own_code() -> None:
    for act in (lambda: json.loads("{"), lambda: asyncio.run(None), lambda: 1 / 0):  # type: ignore[arg-type]
        cause = cause_of(raised(act), train, None)
        assert cause.file == __file__
        assert cause.line == act.__code__.co_firstlineno


def test_errors_of_ours_name_the_training_function() -> None:
    cause = cause_of(NoFitness("never reported"), train, Path("/log"))
    assert (cause.error, cause.line) == ("NoFitness: never reported", train.__code__.co_firstlineno)
    assert (
        cause.words()
        == f"NoFitness: never reported ({__file__}, line {cause.line}); the full traceback is in /log"
    )


def test_nothing_in_a_message_reaches_the_terminal_as_it_is() -> None:
    cause = cause_of(ValueError("\x1b[31mred \udcff \0 caf\u00e9\nsecond line"), train, None)
    assert cause.error == "ValueError: \\x1b[31mred \\udcff \\x00 caf\u00e9"


def test_a_message_that_cannot_be_made_hides_neither_type_nor_place() -> None:
    class Broken(LookupError):
        def __str__(self) -> str:
            raise KeyError("no such field")

    def act() -> None:
        raise Broken

    cause = cause_of(raised(act), train, None)
    assert "Broken: " in cause.error
    assert "__str__" in cause.error
    assert cause.line == act.__code__.co_firstlineno + 1


def test_a_message_without_words_is_its_type() -> None:
    assert cause_of(AssertionError(), train, None).error == "AssertionError"


def test_an_exit_is_told_the_way_out() -> None:
    for error, status in ((SystemExit(0), ": 0; "), (SystemExit(), ": ")):
        message = cause_of(error, train, None).error
        assert message.startswith(f"SystemExit{status}return instead of calling sys.exit")


def test_a_long_traceback_is_still_known_as_one() -> None:
    def long() -> None:
        raise ValueError("x" * 6000 + "\nout of memory")

    text = traceback_of(raised(long))
    assert len(text) < 5000
    assert summarize_error(text) == "out of memory"
    assert summarize_error(traceback_of(raised(lambda: 1 / 0))) == "ZeroDivisionError: division by zero"


def test_the_log_has_the_whole_traceback(tmp_path: Path) -> None:
    def deep() -> None:
        raise KeyError("deep \udcff")

    error = raised(deep)
    log = tmp_path / "new" / "worker-0.log"
    write_log(log, "trial 1 failed", error)
    write_log(log, "trial 2 failed", error)
    text = log.read_text()
    assert text.count("Traceback (most recent call last):") == 2
    assert "trial 2 failed" in text
    assert "deep" in traceback_of(error)
