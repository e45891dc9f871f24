"""A digest of a function's source, by which an edited function is noticed."""

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType


def source_digest(function: Callable[..., object]) -> str:
    """Return a digest of what a function does: its source, or its compiled code where the source is not known.

    The functions that it calls are not included.

    Args:
        function: a function, a method, a `functools.partial`, or an object that can be called.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        code = getattr(inspect.unwrap(function), "__code__", None)
        named = f"{function.__module__}:{function.__qualname__}"
        text = "\n".join(_parts(code)) if isinstance(code, CodeType) else named
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _parts(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        elif isinstance(constant, frozenset):  # Its order differs from process to process.
            yield repr(sorted(map(repr, constant)))
        else:
            yield repr(constant)


def source_file(function: Callable[..., object]) -> str:
    """Return the file that a function is defined in, or "?"."""
    try:
        return inspect.getsourcefile(inspect.unwrap(function)) or "?"
    except TypeError:
        return "?"


def code_digest(function: Callable[..., object]) -> str:
    """Return a digest of a function and of all that it uses of its own file.

    Comments, and what the function does not use, make no difference.
    """
    try:
        own = ast.parse(textwrap.dedent(inspect.getsource(function)))
        module = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    except (OSError, TypeError, KeyError, AttributeError, SyntaxError):
        return source_digest(function)
    named = {name: node for node in module.body for name in _defined(node)}
    used: dict[str, ast.AST] = {"": own}
    wanted = _names(own)
    while wanted:
        name = wanted.pop()
        if name in named and name not in used:
            used[name] = named[name]
            wanted += _names(named[name])
    parts = [ast.unparse(used[name]) for name in sorted(used)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _names(node: ast.AST) -> list[str]:
    return [name.id for name in ast.walk(node) if isinstance(name, ast.Name)]


def _defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top level of a file gives a meaning to."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return []
    return [name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)]
