"""A digest of a function, such as training or an eval task, and of what it uses, by which an edit is noticed."""

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import CodeType


def code_digest(function: Callable[..., object]) -> str:
    """Return a digest of a function and of all that it uses of its own file, by which an edit is noticed.

    Comments, and what the function does not use, make no difference. Of a function whose source cannot be
    found, the compiled code counts.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__
    text = _source(function)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


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
