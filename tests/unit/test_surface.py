"""What a Python user sees stays small, and says where the rest is."""

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import phyla
from facts import raises
from phyla.system.garbage import pause_collection

ROOT = Path(__file__).parents[2]
NAMES = 45
ARGUMENTS = 16
LINES = 80
"""The longest function, with its decorators and its docstring."""
RECORDS = {"Attempt", "Checkpoint", "Group", "Member", "Study", "Suite", "Trial"}
"""Classes that are what the glossary calls so."""
Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
reads_the_source = pytest.mark.xdist_group("source")
"""One process parses all files, once."""


def test_there_are_few_public_names() -> None:
    assert len(phyla.__all__) <= NAMES


def defined(tree: ast.AST) -> Iterator[Defined]:
    """Yield functions and classes, wherever they are; an expression has none."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            if isinstance(node, Defined):
                yield node
            yield from defined(node)


@pytest.fixture(scope="module")
def definitions() -> list[tuple[str, Defined, bool]]:
    """Functions and classes, each with its file, and whether it is at the top of the file."""
    source = Path(phyla.__file__).parent
    with pause_collection():
        return [
            (str(file.relative_to(source)), node, node in tree.body)
            for file in source.rglob("*.py")
            for tree in [ast.parse(file.read_text())]
            for node in defined(tree)
        ]


@reads_the_source
def test_a_function_fits_on_a_page(definitions: list[tuple[str, Defined, bool]]) -> None:
    lines: dict[str, int] = {}
    for name, node, _ in definitions:
        if not isinstance(node, ast.ClassDef):
            first = min(part.lineno for part in (node, *node.decorator_list))
            lines[f"{name}: {node.name}"] = (node.end_lineno or 0) - first + 1
    assert {name: count for name, count in lines.items() if count > LINES} == {}


@reads_the_source
def test_a_class_is_called_by_a_word_of_the_glossary_only_if_it_is_that(
    definitions: list[tuple[str, Defined, bool]],
) -> None:
    _, _, rest = (ROOT / "docs/design.md").read_text().partition("## Words")
    table, _, _ = rest.partition("\n## ")
    words = {
        word.strip().capitalize() for row in re.findall(r"^\| ([^|]+) \|", table, re.M) for word in row.split(",")
    }
    classes = {node.name for _, node, _ in definitions if isinstance(node, ast.ClassDef)}
    assert words > RECORDS
    assert classes & words == RECORDS


@reads_the_source
def test_a_class_has_a_name_of_its_own(definitions: list[tuple[str, Defined, bool]]) -> None:
    names = Counter(node.name for _, node, top in definitions if top and isinstance(node, ast.ClassDef))
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
