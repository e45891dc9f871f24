"""The URL of a SQLite file: every path can be written as one and read back."""

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote_to_bytes

from phyla.errors import ConfigurationError

PREFIX = "sqlite:///"
MEMORY = "memory://"
"""URL of a store that ends with its process."""
SYNCHRONOUS = ("full", "normal")

_ESCAPED = re.compile(r"[%?#\x00-\x1f\x7f\ud800-\udfff]")
"""Characters that a URL would read differently, and bytes of a file name that are no text."""


def sqlite_url(path: Path, synchronous: str = "full") -> str:
    """Return the URL of a SQLite file; `?`, `%` and `#` in its path are escaped, as in `%3F`.

    Args:
        path: the file.
        synchronous: `full` or `normal`.
    """
    text = _ESCAPED.sub(lambda found: "".join(f"%{byte:02X}" for byte in os.fsencode(found[0])), path.as_posix())
    return f"{PREFIX}{text}" + ("" if synchronous == "full" else f"?synchronous={synchronous}")


def read_sqlite_url(url: str) -> tuple[Path, str]:
    """Return the path that a URL names, as it is written there, and the `synchronous` option.

    Raises:
        ConfigurationError: the URL names no file, or has an unknown option.
    """
    location, _, query = url.partition("?")
    name = os.fsdecode(unquote_to_bytes(os.fsencode(location.removeprefix(PREFIX))))
    if not location.startswith(PREFIX) or not name or name == ":memory:" or name.startswith("file:"):
        raise ConfigurationError(
            f"storage {url!r}: name a file, as in sqlite:///runs/study.db; for a store in memory use memory://"
        )
    if "\0" in name:
        raise ConfigurationError(f"storage {url!r}: the path contains a null byte (%00); name another file")
    options = dict(parse_qsl(query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "full").lower()
    if synchronous not in SYNCHRONOUS:
        raise ConfigurationError(f"storage {url!r}: synchronous={synchronous}: choose full or normal")
    if options:
        raise ConfigurationError(
            f"storage {url!r}: unknown option {sorted(options)[0]}; the only one is synchronous=full|normal. "
            "If the '?' belongs to the path, write it as %3F"
        )
    return Path(name), synchronous
