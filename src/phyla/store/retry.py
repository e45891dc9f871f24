"""Retries of requests whose transaction was cut short."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from phyla.errors import ConnectionLost, StoreBusy, StoreError

RETRIES = 3

P = ParamSpec("P")
R = TypeVar("R")


def again(*errors: type[StoreError]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Retry a request that raises one of these errors, up to `RETRIES` times.

    Its first transaction may have been committed, with only the answer lost: the retry must then do no harm.
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
"""For requests that are safe to retry: after a deadlock, a lock held for too long, or a lost connection."""
