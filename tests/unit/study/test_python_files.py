"""What a study or suite file raises while it is read is an error with its line, and advice if there is any."""

from pathlib import Path

import pytest

from facts import raises
from phyla.errors import UsageError
from phyla.study.files.python import read_file


@pytest.mark.parametrize(
    ("kind", "advice"), [("study", "python -m package.module"), ("suite", "package.module:NAME")]
)
@pytest.mark.parametrize("line", ["from .settings import lr", "from . import settings", "from ..a import b"])
def test_a_relative_import_is_explained(kind: str, advice: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "settings.py").write_text("lr = 1.0\n")
    file = tmp_path / "read.py"
    file.write_text(f"import json\n{line}\n")
    with raises(UsageError, file, "line 2", "ImportError", advice):
        read_file(file, kind)


def test_another_import_that_fails_gets_no_advice(tmp_path: Path) -> None:
    file = tmp_path / "read.py"
    file.write_text("from json import relative\n")
    with raises(UsageError, file, "line 1", "relative") as caught:
        read_file(file, "study")
    assert "package" not in str(caught.value)
