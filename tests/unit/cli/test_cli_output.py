"""Where tables are cut, and where they are not."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from phyla.cli.output import WIDE, page_width, print_table, to_json
from phyla.terminal import console, table


@dataclass(frozen=True, kw_only=True)
class Place:
    path: Path
    values: tuple[float, ...]


LONG = "took over member 3 (0.9 against 0.1), " + ", ".join(f"lr{number} * 1.2" for number in range(40))


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    console().print(table(["trial", "~decision"], [[1, LONG]]))
    return capsys.readouterr().out.splitlines()


def test_nothing_is_cut_in_a_file_or_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert printed(capsys)[-1] == f"1       {LONG}"
    assert page_width() == WIDE


def test_rows_are_not_filled_with_blanks_in_a_file_or_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["trial", "~decision", ">n"], [[1, LONG, 2], [10, "", ""], [2, "short", None]])
    head, rule, *rows = capsys.readouterr().out.splitlines()
    assert [line for line in (head, rule, *rows) if line != line.rstrip()] == []
    assert [row.split() for row in rows] == [["1", *LONG.split(), "2"], ["10"], ["2", "short", "-"]]
    assert set(rule) == {"─"}
    assert len(rule) == max(map(len, rows))


@pytest.mark.parametrize("columns", [60, 200])
def test_it_is_cut_to_the_columns_that_the_environment_names(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    last = printed(capsys)[-1]
    assert len(last) == columns
    assert last.endswith("…")
    assert page_width() == columns


@pytest.mark.parametrize("columns", ["", "0", "wide", "-5"])
def test_columns_that_are_no_number_say_nothing(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert printed(capsys)[-1].endswith(LONG)


@pytest.mark.parametrize("columns", [40, 60, 119])
def test_a_path_that_is_longer_than_its_column_goes_on_in_the_next_line(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    path = "/home/" + "a-long-name/" * 12 + "worker-0.log"
    print_table(["state", "=why"], [["failed", f"it is in {path}"]])
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert max(map(len, rows)) <= columns
    assert "".join("".join(rows).split()) == f"faileditisin{path}"


def test_columns_of_one_name_stay_apart(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(table(["step", "step"], [[1, None]]))
    assert [line.split() for line in capsys.readouterr().out.splitlines()][::2] == [["step", "step"], ["1", "-"]]


def test_records_are_json_by_their_fields() -> None:
    value = to_json({"at": Place(path=Path("/x"), values=(math.nan, 1.0))}, indent=None)
    assert value == '{"at": {"path": "/x", "values": ["nan", 1.0]}}'
