"""Files that are replaced as a whole."""

import os
from contextlib import suppress
from pathlib import Path


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
