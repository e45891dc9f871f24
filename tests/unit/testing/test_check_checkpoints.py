"""`check_checkpoints` says why checkpoints cannot be kept in a place."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from phyla.checkpoints.ownership import OWNER_NAME
from phyla.errors import ConfigurationError
from phyla.testing import check_checkpoints

URL = "planted://bucket/prefix"
LOCK = threading.Lock()
Method = Callable[..., Any]


def find(self: Any, path: str, **how: Any) -> dict[str, Any]:
    with LOCK:
        infos = MemoryFileSystem.find(self, path, **how)
    return {key.lstrip("/"): info for key, info in infos.items()}


def pipe_file(self: Any, path: str, data: bytes, **how: Any) -> None:
    with LOCK:
        MemoryFileSystem.pipe_file(self, path, data, **how)


def put_file(self: Any, local: str, path: str, **how: Any) -> None:
    pipe_file(self, path, Path(local).read_bytes())


def loses_the_end(self: Any, local: str, path: str, **how: Any) -> None:
    pipe_file(self, path, Path(local).read_bytes()[:-1])


def changes_bytes(self: Any, path: str, local: str, **how: Any) -> None:
    Path(local).write_bytes(bytes(len(MemoryFileSystem.cat_file(self, path))))


def keeps_what_is_deleted(self: Any, path: str) -> None:
    """Does nothing."""


def hides_new_objects(self: Any, path: str, **how: Any) -> dict[str, Any]:
    return {key: info for key, info in find(self, path, **how).items() if not key.endswith("manifest.json")}


def writes_again(self: Any, path: str, data: bytes, **how: Any) -> None:
    """Let each thread read its own marker, as if it had been the last to write."""
    pipe_file(self, f"{path}.{threading.get_ident()}" if OWNER_NAME in path else path, data)


def reads_again(self: Any, path: str, **how: Any) -> bytes:
    name = f"{path}.{threading.get_ident()}" if OWNER_NAME in path else path
    return bytes(MemoryFileSystem.cat_file(self, name, **how))


def plant(**methods: Method) -> dict[str, Any]:
    """Register an object store, in memory, and return its objects."""
    usual = {"find": find, "pipe_file": pipe_file, "put_file": put_file}
    settings = {"protocol": "planted", "store": {}, "pseudo_dirs": [""], "cachable": False}
    kind: Any = type("Planted", (MemoryFileSystem,), {**settings, **usual, **methods})
    fsspec.register_implementation("planted", kind, clobber=True)
    objects: dict[str, Any] = kind.store
    return objects


def test_places_without_faults_pass_and_are_left_empty(tmp_path: Path) -> None:
    objects = plant()
    check_checkpoints(URL)
    assert objects == {}
    check_checkpoints(tmp_path)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("methods", "facts"),
    [
        ({"put_file": loses_the_end}, ("lacks files",)),
        ({"get_file": changes_bytes}, ("1.1", "digest")),
        ({"find": hides_new_objects}, ("1.1",)),
        ({"rm_file": keeps_what_is_deleted}, ("one of two was deleted", "'1.1'")),
        ({"pipe_file": writes_again, "cat_file": reads_again}, ("two stores", "[True, True]")),
    ],
)
def test_what_a_place_does_wrong_is_named(methods: dict[str, Method], facts: tuple[str, ...]) -> None:
    plant(**methods)
    with pytest.raises(AssertionError) as caught:
        check_checkpoints(URL)
    assert [fact for fact in facts if fact not in str(caught.value)] == []


def test_a_url_without_a_library_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        check_checkpoints("nowhere://bucket/prefix")
