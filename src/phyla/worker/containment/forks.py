"""Processes that training forks."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def only_here(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call user code; a fork that returns from it ends there, as it would without phyla.

    Otherwise the fork would continue as a second worker, with the lease of this one.
    """
    here, status = os.getpid(), 1
    try:
        value, status = function(*arguments), 0
        if os.getpid() == here:
            return value
        text = f"process {os.getpid()}, which training or an eval task forked from {here}, returned and ends here"
        print(text, file=sys.stderr)  # noqa: T201
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
