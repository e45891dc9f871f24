"""Names of files as text."""

import os

from hypothesis import example, given
from hypothesis import strategies as st

from phyla.records import escape_name, restore_name, storable

NAMES = st.binary(min_size=1, max_size=255).map(os.fsdecode)


@given(NAMES)
@example("step_2\udcff")
@example("a\\xff")
@example("\\\\u0041")
@example("\u0085\udc85")
def test_a_name_survives_being_stored_and_being_shown(name: str) -> None:
    assert restore_name(storable(name)) == name
    assert restore_name(escape_name(name)) == name
    assert "\0" not in storable(name)
    storable(name).encode()
    assert escape_name(name).replace("\u200d", "").isprintable()
    escape_name(name).encode()


def test_plain_names_stay_as_they_are() -> None:
    for name in (
        "checkpoint-500",
        "epoch=3 step=1",
        "\u00fcml\u00e4ut",
        "\U0001f468\u200d\U0001f52c",
        "\u05d0\u05d1",
    ):
        assert (storable(name), escape_name(name), restore_name(name)) == (name, name, name)


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert escape_name("step_2\udcff\n\x1b[31m\u202e\\") == r"step_2\xff\x0a\x1b[31m\u202e\\"
