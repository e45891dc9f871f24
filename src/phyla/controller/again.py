"""A request whose transaction the database gave up is made again."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from phyla.errors import ConnectionLost, StoreBusy, StoreError

RETRIES = 3

P = ParamSpec("P")
R = TypeVar("R")


def again(*errors: type[StoreError]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a request again when it raises one of these errors, up to `RETRIES` times.

    It must be the same request when its first transaction was committed and only the answer is missing.
    """

    def decorated(request: Callable[P, R]) -> Callable[P, R]:
        @wraps(request)
        def made(*args: P.args, **named: P.kwargs) -> R:
            for _ in range(RETRIES):
                try:
                    return request(*args, **named)
                except errors:
                    continue
            return request(*args, **named)

        return made

    return decorated


repeatable = again(StoreBusy, ConnectionLost)
"""Of requests that may be made again: after a deadlock, a crowd, or a connection that was lost on the way."""
