"""What tells pools apart in a cluster that others use, too: their names may be the same."""

import os
import uuid
from pathlib import Path


def identity(folder: Path) -> str:
    """Return eight letters and digits that only the pool in this folder has, made at the first call."""
    file = folder / "id"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".id-{os.getpid()}"
        draft.write_text(uuid.uuid4().hex[:8])
        draft.replace(file)
    return file.read_text()
