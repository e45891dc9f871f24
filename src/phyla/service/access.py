"""Access control of requests, by tokens and roles."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, final

from fastapi import Depends, Header
from starlette.concurrency import run_in_threadpool

from phyla.errors import AccessDenied, StoreError, StoreUnavailable
from phyla.records import Role, Token, token_of
from phyla.settings import system_clock
from phyla.store import Store

LOG = logging.getLogger("phyla.service")
TOKENS_S = 5.0
"""How long a revoked token may still be accepted."""


@final
class Doors:
    """Checks the roles of tokens; with `open_without` it allows all requests while there are no tokens."""

    def __init__(self, store: Store, *, open_without: bool) -> None:
        self._store = store
        self._open_without = open_without
        self._tokens: Sequence[Token] = ()
        self._looked_at = float("-inf")

    async def check(self, authorization: str | None, needed: Role) -> None:
        """Raise `AccessDenied` unless a request has the role."""
        token = await self.token(authorization)
        if token is None and not self._tokens and self._open_without:
            return
        if token is None:
            problem = "unknown or expired token" if authorization else "a token is needed"
            raise AccessDenied(
                f"{problem}: create one on the machine of the database with `phyla token create NAME --role ROLE` "
                "(viewer reads, worker also works, operator also creates studies), and pass it in the "
                "variable PHYLA_TOKEN or in the file that PHYLA_TOKEN_FILE names"
            )
        if not token.role.allows(needed):
            raise AccessDenied(
                f"token {token.name!r} has the role {token.role}, but this needs the role {needed}: create one on "
                f"the machine of the database with `phyla token create NAME --role {needed}`"
            )

    async def token(self, authorization: str | None) -> Token | None:
        """Return the valid token of a request; None without one."""
        if time.monotonic() - self._looked_at > TOKENS_S:
            await self._look()
        token = self._known(authorization)
        if token is None and authorization:
            await self._look()  # It may be new.
            token = self._known(authorization)
        return token

    async def _look(self) -> None:
        with discreet():
            self._tokens = await run_in_threadpool(self._store.tokens)
        self._looked_at = time.monotonic()
        # Revoking the last token does not open the service again.
        self._open_without = self._open_without and not self._tokens

    def _known(self, authorization: str | None) -> Token | None:
        scheme, _, secret = (authorization or "").partition(" ")
        return token_of(secret.strip(), self._tokens, system_clock()) if scheme.lower() == "bearer" else None


@contextmanager
def discreet() -> Iterator[None]:
    """Hide the reason of store errors from clients that may have no token; the log has it."""
    try:
        yield
    except StoreError as error:
        LOG.warning("cannot reach the store: %s", error)
        raise StoreUnavailable("the service cannot reach its store; see the log of the service") from None


def may(doors: Doors, role: Role) -> Any:
    """Return the dependency of a route that needs a role."""

    async def check(authorization: Annotated[str | None, Header(description="`Bearer TOKEN`")] = None) -> None:
        await doors.check(authorization, role)

    return Depends(check)
