"""How the command line writes numbers, times and errors."""

import math
from pathlib import Path

import pytest

from phyla.cli.words import command, counted, duration, masked, number, size
from phyla.records import said_by
from phyla.study import Places


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0:00"),
        (7, "0:07"),
        (61, "1:01"),
        (3723, "1:02:03"),
        (183845, "2 d 3:04:05"),
        (-1, "0:00"),
        (math.inf, "?"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_counts_agree_with_their_nouns() -> None:
    assert [counted(count, "trial") for count in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]


def test_numbers_and_sizes() -> None:
    assert [number(value) for value in (None, 0.1234567, math.nan, 3)] == ["-", "0.123457", "nan", "3"]
    assert [size(value) for value in (0, 1023, 2048, 5 << 20, 3 << 40, 5 << 50)] == [
        "0 B",
        "1023 B",
        "2.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
        "5120.0 TiB",
    ]


def test_the_line_of_an_error_that_says_what_happened() -> None:
    assert (
        said_by("Traceback (most recent call last):\n  File ...\nValueError: lr is nan\n")
        == "ValueError: lr is nan"
    )
    assert said_by("NoFitness: never reported\ncall report") == "NoFitness: never reported"
    assert said_by(None) == said_by("  ") == "-"


def test_a_command_line_names_what_is_not_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHYLA_HOME", raising=False)
    monkeypatch.delenv("PHYLA_STORAGE", raising=False)
    assert command("best", "s", Places.of()) == "phyla best s"
    assert command("best", "s", Places.of("runs")) == "phyla best s --home runs"
    assert command("best", "s", Places.of(checkpoints="/data")) == "phyla best s --checkpoints /data"
    elsewhere = Places.of("runs", "postgresql://me:secret@host/db?password=secret&a=b")
    assert "secret" not in command("best", "s", elsewhere)
    assert masked(elsewhere.storage) == "postgresql://me:***@host/db?password=***&a=b"
    for file in ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a&password=b/c.db"):
        assert masked(file) == file
