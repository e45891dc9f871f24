"""Processes that training forks."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def only_here(train: Callable[..., object], *arguments: Any) -> None:
    """Call training; a process that it forks, and that leaves it, ends there, as it would without phyla.

    Otherwise the fork would go on as a second worker, with the lease of this one.
    """
    here, status = os.getpid(), 1
    try:
        train(*arguments)
        status = 0
    except SystemExit as error:
        if os.getpid() == here:
            raise
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        if os.getpid() == here:
            raise
        traceback.print_exc()
    finally:
        if os.getpid() != here:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
