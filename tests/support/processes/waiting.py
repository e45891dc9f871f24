"""How tests wait for what other processes do."""

import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forked import Forked

PATIENCE_S = 180.0
"""What takes longer than this, even on a slow machine that is busy, does not happen."""


def until(
    condition: Callable[..., Any],
    what: str,
    *,
    timeout_s: float = PATIENCE_S,
    process: "Forked | subprocess.Popen[Any] | None" = None,
) -> Any:
    """Return what a condition gives once it is true; fail where a process has ended before."""
    ends_at = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        ended = process is not None and process.poll() is not None
        if found := condition():
            return found
        if process is not None and ended:
            raise AssertionError(f"the process ended before: {what}\n{process.communicate()}")
        looked = time.monotonic()
        printed = getattr(process, "printed", str)
        assert looked < ends_at, f"not within {timeout_s:g} s: {what}\n{printed()}"
        # Looking all the time would slow down what is waited for.
        time.sleep(min(0.1, max(0.01, 3 * (looked - began))))
