"""Commands in messages, as they can be pasted."""

import pytest

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
