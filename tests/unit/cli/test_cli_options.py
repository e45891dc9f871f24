"""Commands in messages, as they can be pasted."""

import pytest

from phyla.cli.options import with_places


@pytest.mark.parametrize(
    ("given", "serve"),
    [
        (["--storage", "http://host:8470"], "phyla serve"),
        (["--storage=https://host"], "phyla serve"),
        (["--server", "service.json"], "phyla serve"),
        (["--storage", "postgresql://host/db"], "phyla --storage postgresql://host/db serve"),
    ],
)
def test_a_command_of_the_database_is_not_given_a_service(
    given: list[str], serve: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["phyla", "status", *given])
    told = with_places("phyla serve starts it, then run phyla status", ["serve", "status"])
    assert told == f"{serve} starts it, then run phyla {' '.join(given)} status"
