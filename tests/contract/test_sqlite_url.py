"""Every path of a SQLite file can be written as a URL; two paths never mean one file."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from facts import raises
from phyla.errors import ConfigurationError
from phyla.store import open_store
from phyla.store.sqlite_url import read_sqlite_url, sqlite_url

AWKWARD = (
    *("run?1", "run?2", "exp%20A", "exp A", "a#b", "100%", "a&b;c=d", "it's", 'say "x"', "a\\b", "ü-模型", "-x"),
    *("a@b:c", "line\nbreak", "password=x&password=y", "?synchronous=normal", "file:x", "\udcff\udcfe"),
)

NAMES = st.one_of(
    st.text(st.sampled_from("?%#&;' \"\\@:+=~20A-ü"), min_size=1, max_size=12),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12),
    st.binary(min_size=1, max_size=12).map(
        lambda name: os.fsdecode(name.replace(b"/", b"?").replace(b"\0", b"%"))
    ),
)


@given(NAMES)
@example("exp%20A")
@example("run?1")
def test_what_is_written_is_what_is_read(name: str) -> None:
    path = Path("/tmp") / name / "phyla.db"
    assert read_sqlite_url(sqlite_url(path)) == path


@given(NAMES)
def test_a_url_can_be_printed(name: str) -> None:
    sqlite_url(Path("/tmp") / name).encode("utf-8")


def test_stores_in_awkward_directories_are_apart(tmp_path: Path) -> None:
    for number, name in enumerate(AWKWARD, start=1):
        store = open_store(sqlite_url(tmp_path / name / "phyla.db"))
        store.create_study(f"study-{number}", {}, 1, 1)
        assert store.url == sqlite_url(tmp_path / name / "phyla.db")
        store.close()
    for number, name in enumerate(AWKWARD, start=1):
        assert (tmp_path / name / "phyla.db").is_file()
        store = open_store(sqlite_url(tmp_path / name / "phyla.db"))
        assert [study.name for study in store.studies()] == [f"study-{number}"]
        store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(AWKWARD)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://study.db", "name a file as in"),
        ("sqlite:///", "name a file as in"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///a%00b", "null byte"),
        ("sqlite:////home/run?1/phyla.db", "%3F"),
    ],
)
def test_what_names_no_file_is_refused(url: str, message: str) -> None:
    with raises(ConfigurationError, *message.split()):
        open_store(url)
