"""A digest of a function changes with what it does, and only with that."""

import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import phyla
from phyla.system.code_digest import code_digest, imported_by, imports_of, modules_of

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


PROJECT = {
    "study.py": "import json, numpy\nfrom lab.models import build\n\ndef train(trial):\n    import late\n",
    "late.py": "import lab.tools.numbers as numbers\n",
    "lab/__init__.py": "",
    "lab/models/__init__.py": "from .net import build\nfrom .. import config\n",
    "lab/models/net.py": "from .parts import norm\n\ndef build():\n    return norm\n",
    "lab/models/parts.py": "norm = 1\n",
    "lab/config.py": "raise SystemExit('imported')\n",
    "lab/tools/numbers.py": "def broken(:\n",
    "unused.py": "",
}
OWN = {"late", "lab", "lab.models", "lab.models.net", "lab.models.parts", "lab.config", "lab.tools.numbers"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def modules(project: Path) -> dict[str, str]:
    return modules_of(imports_of(project / "study.py"), [str(project), *sys.path])


def test_modules_of_the_user_have_digests_without_being_imported(project: Path) -> None:
    """`lab/tools` is a namespace package, one module cannot be parsed, and NumPy is installed."""
    assert modules(project).keys() == OWN
    assert not OWN & sys.modules.keys()


@pytest.mark.parametrize("edited", ["lab/models/net.py", "lab/config.py", "late.py"])
def test_an_edit_of_a_module_changes_its_digest_only(project: Path, edited: str) -> None:
    before = modules(project)
    with (project / edited).open("a") as file:
        file.write("# A comment.\n")
    assert modules(project) == before
    with (project / edited).open("a") as file:
        file.write("MORE = 1\n")
    after = modules(project)
    assert [name for name in OWN if before[name] != after[name]] == [edited.removesuffix(".py").replace("/", ".")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["python", "study.py", "--lr", "{lr}"], OWN),
        (["torchrun", "-m", "lab.models.net", "--lr={lr}"], OWN - {"late", "lab.tools.numbers"}),
        (["sh", "late.sh", "{lr}"], set()),
    ],
)
def test_modules_of_commands_count(project: Path, arguments: list[str], expected: set[str]) -> None:
    (project / "late.sh").write_text("import late\n")
    assert phyla.Command(arguments, cwd=project).modules().keys() == expected


def test_functions_of_files_and_of_sessions_have_modules(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    train: Any = module(project, "def train(trial):\n    import late\n", monkeypatch).train
    assert imported_by(functools.partial(train, 1)).keys() == {"late", "lab", "lab.tools.numbers"}
    assert imported_by(compiled("def train(trial):\n    import late\n")) == {}
    assert imported_by(print) == {}
