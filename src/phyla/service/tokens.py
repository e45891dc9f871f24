"""Creating and listing tokens."""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from phyla.errors import ConfigurationError
from phyla.records import Role, Token, token_digest
from phyla.settings import system_clock
from phyla.store import Store

BYTES = 32
PUBLISHED_TOKEN = "published"
"""Reserved name of the token that a service creates when it publishes itself."""


def create(store: Store, name: str, role: Role, lasts_s: float | None = None, file: Path | None = None) -> str:
    """Create a token and return its secret, which is stored only in `file`, if given.

    Raises:
        ConfigurationError: the file exists or cannot be written; no token was created.
        StateError: a token of that name exists.
    """
    now, secret = system_clock(), secrets.token_urlsafe(BYTES)
    if file is not None:
        write_secret(file, secret)
    expires_at = None if lasts_s is None else now + lasts_s
    token = Token(name=name, role=role, digest=token_digest(secret), created_at=now, expires_at=expires_at)
    try:
        store.add_token(token)
    except BaseException:
        # The store may have the token after all, if its answer was lost; without its secret it is of no use.
        if file is not None:
            file.unlink(missing_ok=True)
        raise
    return secret


def write_secret(file: Path, secret: str) -> None:
    """Write a new file that only its owner can read."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        why = "it is a directory; name a new file in it" if file.is_dir() else error.strerror
        raise ConfigurationError(f"{file}: cannot be created: {why}") from error
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(f"{secret}\n")
    except OSError as error:
        file.unlink()
        raise ConfigurationError(f"{file}: cannot be written: {error.strerror}") from error


def list_tokens(store: Store) -> Sequence[Mapping[str, str]]:
    """Return the tokens of a store as rows of a table, without secrets."""
    return [
        {
            "name": token.name,
            "role": token.role,
            "created": _day(token.created_at),
            "expires": _day(token.expires_at),
        }
        for token in store.tokens()
    ]


def _day(seconds: float | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
