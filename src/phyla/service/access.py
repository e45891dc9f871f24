"""Which requests are allowed."""

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
"""How long a token that was revoked may still open the service."""


@final
class Doors:
    """Decides who may do what: by tokens, or, where `open_without` is set and the store has none, everybody."""

    def __init__(self, store: Store, *, open_without: bool) -> None:
        self._store = store
        self._open_without = open_without
        self._tokens: Sequence[Token] = ()
        self._looked_at = float("-inf")

    async def check(self, authorization: str | None, needed: Role) -> None:
        """Raise `AccessDenied` unless a request may do what takes a role."""
        token = await self.token(authorization)
        if token is None and not self._tokens and self._open_without:
            return
        if token is None:
            given = "the token is not known here, or has expired" if authorization else "a token is needed"
            raise AccessDenied(
                f"{given}: on the machine of the database, make one with `phyla token create NAME --role ROLE` "
                "(viewer reads, worker also works, operator also creates studies), and give it in the "
                "variable PHYLA_TOKEN or in the file that PHYLA_TOKEN_FILE names"
            )
        if not token.role.allows(needed):
            raise AccessDenied(
                f"token {token.name!r} has the role {token.role}; this takes the role {needed}: on the "
                f"machine of the database, make one with `phyla token create NAME --role {needed}`"
            )

    async def token(self, authorization: str | None) -> Token | None:
        """Return the token that a request has; None without one, or with one that opens nothing."""
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
        # When the last token is revoked, nothing is open again.
        self._open_without = self._open_without and not self._tokens

    def _known(self, authorization: str | None) -> Token | None:
        scheme, _, secret = (authorization or "").partition(" ")
        return token_of(secret.strip(), self._tokens, system_clock()) if scheme.lower() == "bearer" else None


@contextmanager
def discreet() -> Iterator[None]:
    """Tell a client without a token that the store failed; only the log has the reason."""
    try:
        yield
    except StoreError as error:
        LOG.warning("the store cannot be reached: %s", error)
        raise StoreUnavailable("the store cannot be reached; the log of the service says why") from None


def may(doors: Doors, role: Role) -> Any:
    """Return the dependency of a route that takes a role."""

    async def check(authorization: Annotated[str | None, Header(description="`Bearer TOKEN`")] = None) -> None:
        await doors.check(authorization, role)

    return Depends(check)
