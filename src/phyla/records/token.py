"""Tokens: what opens a service to a worker, an operator or a viewer."""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import final


class Role(StrEnum):
    """Roles of a token; each includes the rights of the previous ones.

    Attributes:
        VIEWER: read everything.
        WORKER: get work, submit results, and collect checkpoints.
        OPERATOR: create, change, stop and delete studies.
    """

    VIEWER = "viewer"
    WORKER = "worker"
    OPERATOR = "operator"

    def allows(self, needed: "Role") -> bool:
        """Return whether it includes another role."""
        order = [*Role]
        return order.index(self) >= order.index(needed)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token, as a store knows it: not the secret itself, but its SHA-256, which suffices for 256 random bits.

    Attributes:
        name: its user or purpose.
        expires_at: in seconds since the epoch; None for never.
    """

    name: str
    role: Role
    digest: str
    created_at: float
    expires_at: float | None = None


def token_digest(secret: str) -> str:
    """Return the stored digest of a secret."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def token_of(secret: str, tokens: Iterable[Token], now: float) -> Token | None:
    """Return the token of a secret, unless it has expired; takes as long for a wrong secret as for a right one."""
    digest = token_digest(secret)
    matches = [token for token in tokens if hmac.compare_digest(token.digest, digest)]
    return next((token for token in matches if token.expires_at is None or now < token.expires_at), None)
