"""A digest of a function's source, by which an edited function is noticed."""

import functools
import hashlib
import inspect
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
