"""Garbage collection during imports."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collection() -> Iterator[None]:
    """Collect no garbage during imports in the block, and leave their modules out of later collections.

    Modules are not garbage, but searching them took a tenth of the time that a command needs to start. Only for
    processes of phyla that have not run user code yet: its garbage would never be collected.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
