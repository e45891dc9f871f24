"""The command lines that the command line suggests."""

from pathlib import Path

import pytest

from phyla.cli.options import command, masked
from phyla.study import Places


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
