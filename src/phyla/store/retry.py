"""Retries of requests after transient errors."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from phyla.errors import ConnectionLost, StoreBusy, StoreError

RETRIES = 3

P = ParamSpec("P")
R = TypeVar("R")


def retry_on(*errors: type[StoreError]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Retry a request that raises one of these errors, up to `RETRIES` times.

    The first transaction may have committed with its answer lost, so a retry must be safe.
    """

    def decorated(request: Callable[P, R]) -> Callable[P, R]:
        @wraps(request)
        def retried(*args: P.args, **named: P.kwargs) -> R:
            for _ in range(RETRIES):
                try:
                    return request(*args, **named)
                except errors:
                    continue
            return request(*args, **named)

        return retried

    return decorated


repeatable = retry_on(StoreBusy, ConnectionLost)
"""For requests that are safe to retry: after a deadlock, a lock held for too long, or a lost connection."""
