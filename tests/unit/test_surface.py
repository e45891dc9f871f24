"""What a Python user sees stays small, and says where the rest is."""

import ast
import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

import phyla
from facts import raises

ROOT = Path(__file__).parents[2]
NAMES = 45
ARGUMENTS = 16
LINES = 80
"""The longest function, with its decorators and its docstring."""
RECORDS = {"Attempt", "Checkpoint", "Group", "Member", "Study", "Suite", "Trial"}
"""Classes that are what the glossary calls so."""


def test_there_are_few_public_names() -> None:
    assert len(phyla.__all__) <= NAMES


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    source = Path(phyla.__file__).parent
    return {str(file.relative_to(source)): ast.parse(file.read_text()) for file in source.rglob("*.py")}


@pytest.fixture(scope="module")
def nodes(trees: dict[str, ast.Module]) -> list[tuple[str, ast.AST]]:
    return [(name, node) for name, tree in trees.items() for node in ast.walk(tree)]


def test_a_function_fits_on_a_page(nodes: list[tuple[str, ast.AST]]) -> None:
    lines: dict[str, int] = {}
    for name, node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min(part.lineno for part in (node, *node.decorator_list))
            lines[f"{name}: {node.name}"] = (node.end_lineno or 0) - first + 1
    assert {name: count for name, count in lines.items() if count > LINES} == {}


def test_a_class_is_called_by_a_word_of_the_glossary_only_if_it_is_that(nodes: list[tuple[str, ast.AST]]) -> None:
    _, _, rest = (ROOT / "docs/design.md").read_text().partition("## Words")
    table, _, _ = rest.partition("\n## ")
    words = {
        word.strip().capitalize() for row in re.findall(r"^\| ([^|]+) \|", table, re.M) for word in row.split(",")
    }
    classes = {node.name for _, node in nodes if isinstance(node, ast.ClassDef)}
    assert words > RECORDS
    assert classes & words == RECORDS


def test_a_class_has_a_name_of_its_own(trees: dict[str, ast.Module]) -> None:
    names = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef))
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
    with raises(AttributeError, name, where):
        getattr(phyla, name)


def test_a_name_that_is_nowhere_is_said_to_be_nowhere() -> None:
    with raises(AttributeError, "phyla", "nonsense"):
        _ = phyla.nonsense


def test_the_modules_with_the_other_names_need_no_import() -> None:
    for name in ("strategies", "evaluation", "errors", "study", "testing"):
        assert inspect.ismodule(getattr(phyla, name))
