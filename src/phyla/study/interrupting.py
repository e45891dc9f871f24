"""Ctrl-C and SIGTERM while this process works."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts(stop: Callable[[], None], on_interrupt: Callable[[], None]) -> Iterator[threading.Event]:
    """Within the block the first signal asks to stop, the next one raises KeyboardInterrupt at once.

    Only the main thread can handle signals; in another one nothing is changed.

    Args:
        stop: asks what runs to end soon.
        on_interrupt: called for each signal, inside the handler.

    Yields:
        Set once there was a signal.
    """
    interrupted = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        on_interrupt()
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        stop()

    main = threading.current_thread() is threading.main_thread()
    previous = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        yield interrupted
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
