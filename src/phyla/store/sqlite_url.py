"""URLs of SQLite files, for any path."""

import os
import re
from pathlib import Path
from urllib.parse import unquote_to_bytes

from phyla.errors import ConfigurationError

PREFIX = "sqlite:///"
MEMORY = "memory://"
"""URL of a store in memory, which ends with its process."""

_ESCAPED = re.compile(r"[%?#\x00-\x1f\x7f\ud800-\udfff]")
"""Characters with a meaning in URLs, and undecodable bytes of file names."""


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file; `?`, `%` and `#` in its path are escaped, as in `%3F`."""
    text = _ESCAPED.sub(lambda match: "".join(f"%{byte:02X}" for byte in os.fsencode(match[0])), path.as_posix())
    return f"{PREFIX}{text}"


def read_sqlite_url(url: str) -> Path:
    """Return the path that a URL names, as it is written there.

    Raises:
        ConfigurationError: the URL names no file.
    """
    location, question, _ = url.partition("?")
    name = os.fsdecode(unquote_to_bytes(os.fsencode(location.removeprefix(PREFIX))))
    if not location.startswith(PREFIX) or not name or name == ":memory:" or name.startswith("file:"):
        raise ConfigurationError(
            f"storage {url!r}: name a file, as in sqlite:///runs/study.db; for a store in memory use memory://"
        )
    if question or "\0" in name:
        raise ConfigurationError(
            f"storage {url!r}: give only the path of a file, without a null byte (%00); write a '?' in it as %3F"
        )
    return Path(name)
