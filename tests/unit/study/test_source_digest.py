"""A digest of a function's source changes with its text, and only with it."""

import functools
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phyla.study.source_digest import source_digest

TRAIN = "def train(trial):\n    return [x * 2 for x in {'a', 'b', 'c'} if x in {'a', 'b'}]\n"


def compiled(text: str, name: str = "train") -> Callable[..., Any]:
    """A function whose source nobody can find, as in an interactive session."""
    namespace: dict[str, Any] = {}
    exec(compile(text, "<input>", "exec"), namespace)
    found: Callable[..., Any] = namespace[name]
    return found


def test_the_same_text_gives_the_same_digest_without_source() -> None:
    assert source_digest(compiled(TRAIN)) == source_digest(compiled(TRAIN))


def compiled_file(path: Path) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    found: Callable[..., Any] = namespace["train"]
    return found


@pytest.mark.parametrize(
    "edited",
    [
        TRAIN.replace("2", "3"),
        TRAIN.replace("'c'", "'d'"),
        TRAIN.replace("x * 2", "x + 2"),
        TRAIN.replace("[x * 2", "[str(x) * 2"),
    ],
)
def test_an_edit_changes_the_digest_without_source(edited: str) -> None:
    assert source_digest(compiled(edited)) != source_digest(compiled(TRAIN))


def test_indentation_of_the_whole_function_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(TRAIN)
    (tmp_path / "deeper.py").write_text("if True:\n" + textwrap.indent(TRAIN, "    "))
    one, two = (compiled_file(tmp_path / name) for name in ("plain.py", "deeper.py"))
    assert source_digest(one) == source_digest(two)


def test_wrapped_functions_count_as_themselves() -> None:
    train = compiled(TRAIN)
    assert source_digest(functools.partial(train, 1)) == source_digest(train)


def test_objects_that_can_be_called_and_builtins_have_one() -> None:
    edited = "class T:\n    def __call__(self, trial):\n        return [{}]\n"
    one, two = (compiled(edited.format(number), "T")() for number in (1, 2))
    assert source_digest(one) != source_digest(two)
    assert source_digest(print) != source_digest(len)
