"""Links that always lead to the best checkpoint of a suite."""

import os
from collections.abc import Mapping
from pathlib import Path


def link_best(folder: Path, best: Mapping[str, Path]) -> None:
    """Let `folder/NAME` lead to each path, replacing links in one step, so that a reader never finds none.

    Args:
        folder: made where missing.
        best: target by name of the suite.

    Raises:
        OSError: it cannot be written there.
    """
    for name, target in best.items():
        link = folder / name
        if link.is_symlink() and os.readlink(link) == str(target):  # noqa: PTH115 -- text is compared, not a path
            continue
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f".{name}.{os.getpid()}"
        made.unlink(missing_ok=True)
        made.symlink_to(target)
        made.replace(link)
