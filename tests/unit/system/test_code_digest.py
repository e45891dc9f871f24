"""A digest of a function changes with what it does, and only with that."""

import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from phyla.system.code_digest import code_digest

HELPER = "def twice(x):\n    return 2 * x\n\n\n"
TRAIN = "def train(trial):\n    return [twice(x) for x in 'abc']\n"


def module(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    name = f"digested_{len(list(tmp_path.iterdir()))}"
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, made)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    return lambda text: code_digest(module(tmp_path, text, monkeypatch).train)


@pytest.mark.parametrize("edited", [TRAIN.replace("'abc'", "'abd'"), TRAIN.replace("twice(x)", "twice(x) + x")])
def test_an_edit_changes_the_digest(edited: str, digest: Callable[[str], str]) -> None:
    assert digest(HELPER + edited) != digest(HELPER + TRAIN)


def test_an_edit_of_what_it_uses_changes_the_digest(digest: Callable[[str], str]) -> None:
    assert digest(HELPER.replace("2 * x", "3 * x") + TRAIN) != digest(HELPER + TRAIN)


def test_comments_and_what_it_does_not_use_do_not_count(digest: Callable[[str], str]) -> None:
    other = "def unused():\n    return 1\n\n\n# A comment.\n"
    assert digest(HELPER + other + TRAIN) == digest(HELPER + TRAIN)


def test_wrapped_functions_count_as_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train: Any = module(tmp_path, HELPER + TRAIN, monkeypatch).train
    assert code_digest(functools.partial(train, 1)) == code_digest(train)


def test_objects_that_can_be_called_and_builtins_have_one(digest: Callable[[str], str]) -> None:
    called = "class T:\n    def __call__(self, trial):\n        return [{}]\n\n\ntrain = T()\n"
    assert digest(called.format(1)) != digest(called.format(2))
    assert code_digest(print) != code_digest(len)


def compiled(text: str) -> Callable[..., Any]:
    """A function whose source nobody can find, as in an interactive session."""
    namespace: dict[str, Any] = {}
    exec(compile(text, "<input>", "exec"), namespace)
    found: Callable[..., Any] = namespace["train"]
    return found


def test_an_edit_changes_the_digest_without_source() -> None:
    text = "def train(trial):\n    return [x * 2 for x in 'abc' if x in {'a', 'b'}]\n"
    assert code_digest(compiled(text)) == code_digest(compiled(text))
    for old, new in (("2", "3"), ("'b'", "'c'"), ("x * 2", "x + 2"), ("[x * 2", "[str(x) * 2")):
        assert code_digest(compiled(text.replace(old, new))) != code_digest(compiled(text))
