"""What comes from training code or the database cannot command the terminal."""

import os
import pty
import select
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import phyla
from command_line import Phyla
from effort import rarely
from facts import check_facts
from forked import Forked
from phyla.settings import child_environment
from phyla.terminal import console, table, visible

TITLE = "\x1b]0;pwned\x07\x1b[2J\x9b31m"
SHOWN = r"\x1b]0;pwned\x07\x1b[2J\x9b31m"
STUDY = """
import phyla

def train(trial):
    raise ValueError("broken [bold]{title}[/bold] :smile:")

study = phyla.Study("s", {{"note": phyla.Choice(["a\\nb"])}}, phyla.Maximize("score"),
    phyla.RandomSearch(members=1, total_steps=1), train, retries=phyla.Retries(attempts=1, broken=1))
"""


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study whose training raises what would take over the terminal."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.py").write_text(STUDY.format(title=TITLE.encode("unicode_escape").decode()))
    return tmp_path


def commands_of(text: str) -> set[str]:
    return {letter for letter in text if letter in "\x07\x1b\x9b\x08\r"}


def test_errors_of_training_are_written_out(failed: Path, cli: Phyla) -> None:
    told = cli("run", "study.py", "--workers", 0, code=1)
    assert SHOWN in told
    assert not commands_of(told)
    for words in (("status", "s"), ("trials", "s"), ("doctor",), ("status",)):
        text = cli(*words)
        assert not commands_of(text), words
        if words in (("status", "s"), ("trials", "s")):
            assert f"broken [bold]{SHOWN}[/bold] :smile:" in text
    assert r"note=a\nb" in cli("trials", "s")
    assert TITLE not in cli("status", "s", "--json")
    assert r"\u001b]0;pwned" in cli("status", "s", "--json"), "JSON is as it was"


@pytest.mark.parametrize("workers", [rarely(0), 1])  # without workers: above
def test_the_live_display_and_the_tail_of_a_log_command_nothing(failed: Path, workers: int) -> None:
    main, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stdout:
        words = ["-m", "phyla.cli", "run", "study.py", "--workers", workers]
        env = child_environment({"TERM": "xterm", "COLUMNS": "300"})
        process = Forked(words, env=env, stdout=stdout, spares=workers)
    shown = b""
    while process.poll() is None or select.select([main], [], [], 0)[0]:
        if select.select([main], [], [], 0.1)[0]:
            shown += os.read(main, 65536)
    os.close(main)
    assert process.wait(180) == 1
    assert b"pwned" in shown
    assert b"\x1b]0;" not in shown
    assert b"\x1b[2J" not in shown
    assert "\x9b".encode() not in shown


def test_names_in_the_database_are_written_out_in_tables_and_in_the_report(failed: Path, cli: Phyla) -> None:
    cli("run", "study.py", "--workers", 0, code=1)
    with closing(sqlite3.connect(failed / ".phyla" / "phyla.db")) as connection, connection:
        connection.execute("UPDATE jobs SET worker = ?, error = ?", (TITLE, f"<script>alert(1)</script>{TITLE}"))
        connection.execute("UPDATE attempts SET worker = ?", (TITLE,))
        connection.execute("UPDATE studies SET message = ?", (f"<script>alert(1)</script>{TITLE}",))
    for words in (("status", "s"), ("trials", "s"), ("doctor",)):
        assert not commands_of(cli(*words)), words
    cli("report", "s", "--output", "report.html")
    page = (failed / "report.html").read_text()
    assert "<script>alert(1)" not in page


def test_markup_means_nothing_in_headings_and_cells(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(table(["[red]metric[/red]", f"name{TITLE}"], [["[bold]1[/bold]", f"a{TITLE}b"]]))
    console().print(f"[bold]{TITLE}[/bold] :smile:")
    text = capsys.readouterr().out
    assert not commands_of(text)
    assert "[red]metric[/red]" in text
    assert "[bold]1[/bold]" in text
    assert text.count(r"\x1b]0;pwned") == 3
    assert "[/bold] :smile:" in text


def test_what_is_harmless_stays() -> None:
    text = "größer 模型 ±0.1 ✓\n\tnext"
    assert visible(text) == text
    assert visible("a\x00\x1b\x85\u202e\udcff") == r"a\x00\x1b\x85\u202e\udcff"


def test_every_command_prints_through_the_one_place() -> None:
    """A command that used the `print` of Python would write control characters as they are."""
    folder = Path(phyla.__file__).parent / "cli"
    for file in folder.glob("*.py"):
        text = file.read_text()
        if " print(" in text and file.name != "output.py":
            check_facts(text, "phyla.terminal")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_table_is_as_wide_as_the_screen_in_any_encoding(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    place = tmp_path / "out.txt"
    with place.open("w", encoding=encoding, errors="backslashreplace") as out:
        console(out).print(table(["member", "~hyperparameters"], [[1, "word " * 30]]))
    *_, row = place.read_text(encoding).splitlines()
    assert len(row) == 40
    assert row[-1] == ("…" if encoding == "utf-8" else "~")
