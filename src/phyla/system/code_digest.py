"""Digests of a function, such as training or an eval task, and of what it uses, by which an edit is noticed."""

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType

MOST_MODULES = 100
"""How many modules have a digest: reading all of a large project would delay each worker."""


def code_digest(function: Callable[..., object]) -> str:
    """Return a digest of a function and of all that it uses of its own file, by which an edit is noticed.

    Comments, and what the function does not use, make no difference. Of a function whose source cannot be
    found, the compiled code counts.
    """
    return _digest(_source(_plain(function)).encode(errors="surrogatepass"))


def imported_by(function: Callable[..., object]) -> dict[str, str]:
    """Return digests of the user's modules that the file of a function imports: see `modules_of`."""
    function = inspect.unwrap(_plain(function))
    try:
        file = Path(inspect.getsourcefile(function) or "")
    except TypeError:
        return {}
    package = getattr(sys.modules.get(function.__module__), "__package__", None) or ""
    return modules_of(imports_of(file, package), [str(file.parent), *sys.path]) if file.is_file() else {}


def modules_of(names: Iterable[str], search: Sequence[str]) -> dict[str, str]:
    """Return digests of the user's modules among absolute names, and of those that they import, by their names.

    Modules are found in the directories `search`, without importing any. Python's own and installed ones are not
    the user's.
    """
    digests: dict[str, str] = {}
    pending = list(names)
    for imported in pending:
        for name, file in _found(imported, search):
            if name not in digests and len(digests) < MOST_MODULES:
                package = name if file.stem == "__init__" else name.rpartition(".")[0]
                digests[name], others = _read(file, package)
                pending += (other for other in others if other not in pending)
    return digests


def imports_of(file: Path, package: str = "") -> tuple[str, ...]:
    """Return the absolute names that a file of a package imports; some are names of functions."""
    return _read(file, package)[1]


def _read(file: Path, package: str) -> tuple[str, tuple[str, ...]]:
    stat = file.stat()
    return _parse(file, package, (stat.st_mtime_ns, stat.st_size))


@functools.lru_cache(maxsize=1000)
def _parse(file: Path, package: str, version: tuple[int, int]) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a file and the absolute names that it imports, of the version that is there now."""
    content = file.read_bytes()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return _digest(content), ()
    imported: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            module = ".".join(filter(None, [*above, node.module]))
            imported += [f"{module}.{alias.name}".strip(".") for alias in node.names]
    return _digest(ast.unparse(tree).encode(errors="surrogatepass")), tuple(dict.fromkeys(imported))


def _found(imported: str, search: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield names and files of the user's packages and of the module that an absolute name stands for."""
    parts = imported.split(".")
    if parts[0] in sys.stdlib_module_names or parts[0] == "phyla":
        return
    for depth in range(1, len(parts) + 1):
        place = "/".join(parts[:depth])
        files = (Path(root, f"{place}{end}") for root in search for end in ("/__init__.py", ".py"))
        file = next((file for file in files if file.is_file()), None)
        if file is not None and {"site-packages", "dist-packages"} & set(file.parts):
            return
        if file is not None:
            yield ".".join(parts[:depth]), file


def _plain(function: Callable[..., object]) -> Callable[..., object]:
    """Return what is called in the end: that of a partial call, or the method of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__
    return function


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _source(function: Callable[..., object]) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        code = getattr(inspect.unwrap(function), "__code__", None)
        return _compiled(code) if isinstance(code, CodeType) else f"{function.__module__}:{function.__qualname__}"
    try:
        own = ast.parse(text)
        module = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return text
    named = {name: node for node in module.body for name in _defined(node)}
    used: dict[str, ast.AST] = {"": own}
    wanted = _names(own, ast.expr_context)
    while wanted:
        name = wanted.pop()
        if name in named and name not in used:
            used[name] = named[name]
            wanted += _names(named[name], ast.expr_context)
    return "\n".join(ast.unparse(used[name]) for name in sorted(used))


def _compiled(code: CodeType) -> str:
    constants = [
        _compiled(constant)
        if isinstance(constant, CodeType)
        # The order of a set differs from process to process.
        else repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
        for constant in code.co_consts
    ]
    return repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants))


def _names(node: ast.AST, context: type[ast.expr_context]) -> list[str]:
    return [child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, context)]


def _defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top level of a file gives a meaning to."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    return [] if isinstance(node, (ast.Import, ast.ImportFrom)) else _names(node, ast.Store)
