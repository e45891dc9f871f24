"""Text that every machine has: the source files of Python's standard library.

A module belongs to the held-out text by the name of its top-level package, so that no two files of one package
are on both sides. Text is ASCII, one byte per character; a model over it has `VOCABULARY` characters.
"""

import ast
import hashlib
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

Text = npt.NDArray[np.uint8]

VOCABULARY = 128
HELD_OUT = 0.12
FILE_LIMIT = 40_000
LIMIT = 400_000
# Generated tables, data for tests, and what is installed beside the standard library.
LEFT_OUT = {"site-packages", "dist-packages", "encodings", "pydoc_data", "data", "idlelib", "lib2to3"}
TESTS = {"test", "tests"}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def stdlib() -> Path:
    """Return the directory of the standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def is_held_out(relative: Path) -> bool:
    """Return whether a file is held out, by its top-level module or package, or by its name among tests."""
    name = relative.name if is_test(relative) else relative.parts[0]
    digest = hashlib.sha256(name.removesuffix(".py").encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT * 2**32


def is_test(relative: Path) -> bool:
    """Return whether a file is a test."""
    return not TESTS.isdisjoint(relative.parts[:-1]) or relative.name.startswith("test_")


@cache
def files(root: Path) -> tuple[Path, ...]:
    """Return the source files of the standard library, relative to its directory, in a fixed but mixed order."""
    found = []
    for top in root.iterdir():  # site-packages may be huge
        if top.name not in LEFT_OUT:
            found += [top] if top.suffix == ".py" else list(top.rglob("*.py"))
    relative = [path.relative_to(root) for path in found]
    wanted = [path for path in relative if LEFT_OUT.isdisjoint(path.parts)]
    return tuple(sorted(wanted, key=lambda path: hashlib.sha256(path.as_posix().encode()).digest()))


def sources(root: Path, *, tests: bool, held_out: bool, limit: int | None = FILE_LIMIT) -> Iterator[str]:
    """Yield the files of one part, each cut off at so many bytes."""
    for path in files(root):
        if is_test(path) == tests and is_held_out(path) == held_out:
            text = (root / path).read_bytes()[:limit].decode(errors="replace")
            yield text.encode("ascii", errors="replace").decode("ascii")


def beginning(texts: Iterable[str]) -> str:
    """Join texts until they have `LIMIT` characters."""
    found: list[str] = []
    missing = LIMIT
    for text in texts:
        found.append(text[:missing])
        missing -= len(found[-1]) + 1
        if missing <= 0:
            break
    return "\n".join(found)


def encoded(text: str) -> Text:
    """Return a text as numbers below `VOCABULARY`."""
    return np.frombuffer(text.encode("ascii", errors="replace"), dtype=np.uint8)


@cache
def training() -> Text:
    """Return what the model is trained on: modules that are neither held out nor tests."""
    text = encoded("\n".join(sources(stdlib(), tests=False, held_out=False)))
    if not len(text):
        raise SystemExit(f"{stdlib()} has no source files of the standard library; install them, then try again")
    return text


@cache
def modules() -> str:
    """Return held-out modules."""
    return beginning(sources(stdlib(), tests=False, held_out=True))


def unit_tests(root: Path | None = None) -> str:
    """Return held-out unit tests; where none are installed, tests made of the functions of held-out modules."""
    root = root or stdlib()
    return beginning(chain(sources(root, tests=True, held_out=True), _made_up_tests(root)))


def docstrings() -> str:
    """Return the docstrings of held-out modules, and nothing else."""
    texts = (ast.get_docstring(node) for node in _nodes(stdlib()) if isinstance(node, DOCUMENTED))
    return beginning(text + "\n" for text in texts if text)


def _made_up_tests(root: Path) -> Iterator[str]:
    for node in _nodes(root):
        if isinstance(node, ast.FunctionDef):
            names = ", ".join(argument.arg for argument in node.args.args if argument.arg != "self")
            yield f"""\
    def test_{node.name.strip("_")}(self):
        result = {node.name}({names})
        self.assertIsNotNone(result)
        with self.assertRaises(TypeError):
            {node.name}({names or "self"}, None)
"""


def _nodes(root: Path) -> Iterator[ast.AST]:
    for text in sources(root, tests=False, held_out=True, limit=None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from ast.walk(ast.parse(text))


def like_c(text: str) -> str:
    """Return Python rewritten to look like C: braces for indentation, semicolons, comments, `->`; it is no C."""
    lines: list[str] = []
    open_blocks: list[int] = []
    for line in text.splitlines():
        code = line.strip()
        if not code:
            lines.append("")
            continue
        indent = len(line) - len(line.lstrip())
        while open_blocks and indent <= open_blocks[-1]:
            lines.append(" " * open_blocks.pop() + "}")
        for pattern, replacement in C_WORDS:
            code = pattern.sub(replacement, code)
        if code.startswith("#"):
            code = f"/* {code.strip('# ')} */"
        elif code.endswith(":"):
            code = code[:-1] + " {"
            open_blocks.append(indent)
        elif not code.endswith((",", "(", "[", "{", "\\")):
            code += ";"
        lines.append(" " * indent + code)
    return "\n".join(lines)


C_WORDS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^(?:async )?def (\w+)\((.*)\).*:$", r"static PyObject *\1(\2):"),
        (r"^class (\w+).*:$", r"struct \1:"),
        (r"^(el)?if (.*):$", r"\1if (\2):"),
        (r"^while (.*):$", r"while (\1):"),
        (r"^for (\w+) in (.*):$", r"for (int \1 = 0; \1 < \2; \1++):"),
        (r"^elif\b", "else if"),
        (r"^import (\S+).*$", r"#include <\1.h>"),
        (r"\bself\.", "self->"),
        (r"\bNone\b", "NULL"),
        (r"\bnot ", "!"),
        (r" and ", " && "),
        (r" or ", " || "),
        (r"'([^']*)'", r'"\1"'),
    )
]


def with_typos(text: Text, share: float) -> Text:
    """Return a text with a share of its characters replaced by others of it, the same ones each time."""
    rng = np.random.default_rng(0)
    return np.where(rng.random(len(text)) < share, text[rng.permutation(len(text))], text)
