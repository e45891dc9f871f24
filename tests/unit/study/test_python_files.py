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


@pytest.mark.parametrize("line", ["from json import relative", "import in_a_package.too_high"])
def test_another_import_that_fails_gets_no_advice(line: str, tmp_path: Path) -> None:
    (tmp_path / "in_a_package").mkdir()
    (tmp_path / "in_a_package/too_high.py").write_text("from ...relative import lr\n")
    file = tmp_path / "read.py"
    file.write_text(f"{line}\n")
    with raises(UsageError, file, "line 1", "ImportError", "relative") as caught:
        read_file(file, "study")
    assert "by its name" not in str(caught.value)


def test_an_error_that_cannot_be_shown_is_named(tmp_path: Path) -> None:
    file = tmp_path / "read.py"
    file.write_text("class Broken(Exception):\n    def __str__(self):\n        raise KeyError\n\n\nraise Broken\n")
    with raises(UsageError, file, "line 6", "Broken", "__str__"):
        read_file(file, "study")
