"""What a Python user sees stays small, and says where the rest is."""

import ast
import inspect
from collections import Counter
from pathlib import Path

import pytest

import phyla

NAMES = 44
ARGUMENTS = 16


def test_there_are_few_public_names() -> None:
    assert len(phyla.__all__) <= NAMES


def test_a_class_has_a_name_of_its_own() -> None:
    trees = [ast.parse(file.read_text()) for file in Path(phyla.__file__).parent.rglob("*.py")]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    # Each framework calls what it is given a callback.
    assert [name for name, count in names.items() if count > 1] == ["PhylaCallback"]


def test_a_study_has_few_arguments() -> None:
    assert len(list(inspect.signature(phyla.Study).parameters)) <= ARGUMENTS


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("PB2", "phyla.strategies.PB2"),
        ("Divergence", "phyla.strategies.Divergence"),
        ("Worst", "phyla.evaluation.Worst"),
        ("Schedule", "phyla.lineage.Schedule"),
        ("Watched", "phyla.study.Watched"),
        ("simulate", "phyla.testing.simulate"),
        ("EvaluationCheckpoint", "phyla.worker.EvaluationCheckpoint"),
    ],
)
def test_a_name_that_is_elsewhere_says_where(name: str, where: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; it is {where}$"):
        getattr(phyla, name)


def test_a_name_that_is_nowhere_is_said_to_be_nowhere() -> None:
    with pytest.raises(AttributeError, match=r"module 'phyla' has no attribute 'nonsense'$"):
        _ = phyla.nonsense


def test_the_modules_with_the_other_names_need_no_import() -> None:
    for name in ("strategies", "evaluation", "errors", "study", "testing"):
        assert inspect.ismodule(getattr(phyla, name))
