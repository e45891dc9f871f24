"""Imports are not interrupted by garbage collections."""

import gc
from importlib import import_module

import pytest

from phyla.system.garbage import pause_collection


def test_collection_pauses_for_imports() -> None:
    skipped = gc.get_freeze_count()
    made: list[object] = [{}]
    with pause_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > skipped  # later collections skip what was there
    assert not any(known is made for known in gc.get_objects())


def test_collection_goes_on_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), pause_collection():
        import_module("no_such_module")
    assert gc.isenabled()
