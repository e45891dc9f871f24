"""Where tables are cut, and where they are not."""

import pytest

from phyla.cli.output import WIDE, add_row, console, page_width, table

LONG = "took over member 3 (0.9 against 0.1), " + ", ".join(f"lr{number} * 1.2" for number in range(40))


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    made = table("trial", "decision", elastic=("decision",))
    add_row(made, 1, LONG)
    console().print(made)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_nothing_is_cut_in_a_file_or_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert printed(capsys)[-1] == f"1       {LONG}"
    assert page_width(console()) == WIDE


@pytest.mark.parametrize("columns", [60, 200])
def test_it_is_cut_to_the_columns_that_the_environment_names(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    last = printed(capsys)[-1]
    assert len(last) == columns
    assert last.endswith("…")
    assert page_width(console()) == columns


@pytest.mark.parametrize("columns", ["", "0", "wide", "-5"])
def test_columns_that_are_no_number_say_nothing(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert printed(capsys)[-1].endswith(LONG)
