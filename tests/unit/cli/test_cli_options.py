"""Commands in messages, as they can be pasted."""

import warnings
from pathlib import Path

import pytest

from command_line import Phyla
from facts import check_facts
from phyla.cli.app import format_warnings
from phyla.cli.options import add_places


@pytest.mark.parametrize(
    ("options", "serve"),
    [
        (["--storage", "http://host:8470"], "phyla serve"),
        (["--storage=https://host"], "phyla serve"),
        (["--server", "service.json"], "phyla serve"),
        (["--storage", "postgresql://host/db"], "phyla --storage postgresql://host/db serve"),
    ],
)
def test_a_command_of_the_database_is_not_given_a_service(
    options: list[str], serve: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["phyla", "status", *options])
    message = add_places("phyla serve starts it, then run phyla status", ["serve", "status"])
    assert message == f"{serve} starts it, then run phyla {' '.join(options)} status"


@pytest.mark.parametrize(
    ("message", "pasted"),
    [
        (
            "give --checkpoints; or run: phyla doctor a --adopt",
            "give --checkpoints; or run: phyla --home h doctor a --adopt",
        ),
        ("run: phyla doctor a --adopt --checkpoints x", "run: phyla --home h doctor a --adopt --checkpoints x"),
        ("run: phyla status a --home h", "run: phyla status a --home h"),
    ],
)
def test_a_command_says_where_studies_live_once(
    message: str, pasted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["phyla", "run", "a.py", "--home", "h"])
    assert add_places(message, ["doctor", "status"]) == pasted


@pytest.mark.parametrize("given", [["--checkpoints", "c"], ["--checkpoints=c"]])
@pytest.mark.parametrize("home", [[], ["--home", "h"]])
@pytest.mark.parametrize("own", ["--checkpoints x", "--checkpoints=x"])
def test_a_command_gets_no_option_twice(
    given: list[str], home: list[str], own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["phyla", "run", "a.py", *given, *home])
    message = add_places(f"run: phyla doctor a --adopt {own}, or phyla status a", ["doctor", "status"])
    doctor, status = (" ".join(["", *options]) for options in (home, [*given, *home]))
    assert message == f"run: phyla{doctor} doctor a --adopt {own}, or phyla{status} status a"


@pytest.mark.parametrize(
    ("file", "category", "ours"),
    [
        (format_warnings.__code__.co_filename, UserWarning, True),
        (format_warnings.__code__.co_filename, DeprecationWarning, False),
        (pytest.__file__, UserWarning, False),
        ("<string>", UserWarning, False),
    ],
)
def test_only_warnings_of_phyla_are_printed_without_their_place_in_the_source(
    file: str, category: type[Warning], ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr("sys.argv", ["phyla", "run", "a.py", "--home", "h"])
    format_warnings(["doctor"])
    text = warnings.formatwarning(category("\x1b[31m: phyla doctor a lists them"), category, file, 1)
    assert "\x1b" not in text
    assert "phyla --home h doctor a lists them" in text
    assert (text == "warning: \\x1b[31m: phyla --home h doctor a lists them\n") == ours
    assert (f"{file}:1" in text) != ours


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["export", "s"], "--output"),
        (["export", "s", "--format", "tensorboard"], "--output"),
        (["report", "s"], "--output"),
        (["compare", "s", "t"], "--output"),
        (["token", "create", "me"], "--out"),
    ],
)
def test_no_file_is_called_by_the_sign_of_standard_output(
    words: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Phyla
) -> None:
    monkeypatch.chdir(tmp_path)
    check_facts(cli(*words, option, "-", "--home", tmp_path, code=2), option)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("action", [["create", "me"], ["list"], ["revoke", "me"]])
def test_tokens_through_a_service_that_a_variable_names_are_refused_with_what_names_a_database(
    action: list[str], monkeypatch: pytest.MonkeyPatch, cli: Phyla
) -> None:
    monkeypatch.setenv("PHYLA_STORAGE", "http://127.0.0.1:1")
    check_facts(cli("token", *action, code=2), "--storage", "--home")
