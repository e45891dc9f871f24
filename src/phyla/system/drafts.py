"""Files that are replaced as a whole."""

import os
from contextlib import suppress
from pathlib import Path

from phyla.errors import UsageError


def file_to_replace(path: Path) -> Path:
    """Return the file that a path leads to, which is replaced or made.

    Raises:
        UsageError: it is a directory, or a device or pipe such as /dev/null, which a rename would put an end to.
    """
    try:
        file = path.resolve()
    except RuntimeError as error:
        raise UsageError(f"{path}: symbolic links form a circle; name a file") from error
    if path.is_dir():
        raise UsageError(f"{path} is a directory; name a file")
    if path.exists() and not path.is_file():  # a link may lead to a pipe without a name, as /dev/stdout does
        raise UsageError(f"{path} is a device or a pipe; name a file")
    return file


def replace_text(file: Path, text: str) -> None:
    """Write a file under another name, then rename it; an error names the file, and leaves it as it was."""
    draft = file.with_name(f".{file.name}-{os.getpid()}")
    try:
        draft.write_text(text)
        draft.replace(file)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        # The error of a full disk names no file.
        raise OSError(error.errno, error.strerror, str(file)) from error
