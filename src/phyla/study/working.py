"""Work in this process or in others: checks of the arguments, and Ctrl-C and SIGTERM."""

import signal
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from phyla import settings
from phyla.errors import ConfigurationError, StudyChanged
from phyla.machine import Outdated
from phyla.study.places import Places

if TYPE_CHECKING:
    from phyla.api import Client
    from phyla.worker import Worker

MOST_WORKERS = 10_000
"""Processes of one run on this machine."""


def check_workers(places: Places, **counts: int) -> None:
    """Make sure that this process may start that many workers, of one kind or several.

    Raises:
        ConfigurationError: it may not.
    """
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_WORKERS:
            raise ConfigurationError(
                f"{name}={count!r}: must be an integer of at least 0, at most {MOST_WORKERS:,}"
            )
    if any(counts.values()) and settings.in_worker():
        raise ConfigurationError(
            "a worker process was to start workers, which would start workers without end; start them under "
            '`if __name__ == "__main__":`, or use workers=0 inside training code'
        )
    if any(counts.values()) and places.storage == "memory://":
        raise ConfigurationError(
            "storage='memory://' exists in this process only, where worker processes cannot see it; "
            "run with workers=0, or leave storage= out"
        )


def checked_kinds(kinds: Sequence[str]) -> frozenset[str]:
    """Return what workers do.

    Raises:
        ConfigurationError: it is neither training nor evaluating.
    """
    wanted = frozenset(kinds)
    if not wanted or not wanted <= {"train", "evaluate"}:
        raise ConfigurationError(f"kinds={kinds!r}: choose 'train', 'evaluate', or both")
    return wanted


def work_here(
    worker: "Worker",
    name: str,
    client: "Client",
    on_interrupt: Callable[[], None],
    on_trial: Callable[[], None],
    on_idle: Callable[[], None] = lambda: None,
) -> bool:
    """Work in this process until the work ends; return False when a person interrupted it.

    The first Ctrl-C or SIGTERM asks the worker to end soon, the next one raises KeyboardInterrupt at once. Only
    the main thread can handle signals; in another one they stay as they are.

    Raises:
        StudyChanged: settings changed meanwhile.
    """
    interrupted = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        on_interrupt()
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        worker.stop()

    main = threading.current_thread() is threading.main_thread()
    previous = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        ended = worker.run(on_trial, on_idle)
    except BaseException:
        client.lose_worker(name, "its run was interrupted", counts=False)
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if isinstance(ended, Outdated):
        raise StudyChanged(ended.why)
    return not interrupted.is_set()
