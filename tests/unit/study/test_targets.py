"""What can be watched, and under which names."""

from facts import raises
from phyla.errors import ConfigurationError
from phyla.store import open_store
from phyla.study.watching.targets import targets_of
from phyla.watcher import get_format


def test_a_study_cannot_be_watched_under_the_name_of_its_own_suites() -> None:
    store = open_store("memory://")
    store.create_study("digits", {}, 0, 2)
    assert [target.name for target in targets_of(store, "digits", None)] == ["digits-watch"]
    with raises(ConfigurationError, "digits"):
        targets_of(store, "digits", "digits")


def test_an_option_of_another_format_is_told_with_the_format_that_takes_it() -> None:
    with raises(ConfigurationError, "quiet_s"):
        get_format("auto", marker="READY")
