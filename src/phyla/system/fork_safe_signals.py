"""Signals that this process handles, and its forks do not."""

import os
import signal
import threading
from collections.abc import Callable, Collection
from typing import Any

EXIT_PREEMPTED = 75
"""Exit status after a signal or a time limit: run it again (`EX_TEMPFAIL` of sysexits.h)."""
EXIT_INTERRUPTED = 130
"""Exit status after the user pressed Ctrl-C."""
_HANDLED: dict[int, tuple[int, Any]] = {}
"""The handler's id, and how the signal was handled before. A handler that was replaced must not be kept alive."""
_LISTENING: set[int] = set()
_FORKING = threading.local()


def handle(number: int, handler: Callable[[int, Any], object]) -> Any:
    """Handle a signal like `signal.signal`, but only in this process; return how it was handled before.

    Processes that training forks, such as those of `multiprocessing.Pool`, handle it as before. Our handlers only
    record a signal, so a fork with such a handler would survive it, and a parent that ends the fork would wait
    forever.
    """
    before = signal.signal(number, handler)
    _HANDLED[number] = id(handler), before
    return before


def listen(numbers: Collection[int], act: Callable[[int], object]) -> Callable[[], None]:
    """Call `act` in a thread at the first of these signals, even while the main thread cannot run its handlers.

    Native code prevents that, and so does a system call that begins just after the signal. Call it
    in the main thread, and there call the returned function to end it.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    _LISTENING.add(writes)

    def forward() -> None:
        acted = False
        while (byte := os.read(reads, 1)) and byte[0]:
            if not acted and byte[0] in numbers:
                acted = True
                act(byte[0])
        os.close(reads)

    def end() -> None:
        _LISTENING.discard(writes)
        current = signal.set_wakeup_fd(before)
        if current != writes:  # user code listens, too
            signal.set_wakeup_fd(current)
        os.write(writes, b"\0")
        os.close(writes)

    threading.Thread(target=forward, name="phyla-signals", daemon=True).start()
    return end


def _hold() -> None:
    # Python loses a signal that reaches a fork before it is ready, so signals wait until then.
    _FORKING.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _FORKING.mask)


def _forget() -> None:
    for number, (handler, before) in _HANDLED.items():
        if id(signal.getsignal(number)) == handler:
            signal.signal(number, signal.SIG_DFL if before is None else before)
    _HANDLED.clear()
    if _LISTENING:
        signal.set_wakeup_fd(-1)
    _let_go()


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_forget)
