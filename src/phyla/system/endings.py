"""Exits a process whose work is done, even if user code left threads or processes running.

At exit, Python waits for every thread and every process of `multiprocessing` that is still running.
"""

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

GRACE_S = 2.0
"""Seconds that threads and processes have to end by themselves after the work."""
AT_EXIT_S = 30.0
"""Seconds that the exit handlers of libraries may take in a worker process."""
HANDLERS_S = 10.0
"""Seconds that these may take where threads were left."""
_LOOK_S = 0.25
_POLL_S = 0.05
_NAME = "phyla-end"
_SHUTDOWN = "threading"


@contextlib.contextmanager
def ending(unclean: int | None = None) -> Iterator[None]:
    """End this process after the block with its own exit status, even if something keeps the process alive.

    Args:
        unclean: exit status of a worker process, instead of 0, if threads or processes were still running.
    """
    status = 1
    try:
        yield
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    finally:
        names = [thread.name for thread in threading.enumerate()]
        if _NAME not in names and (unclean is not None or len(names) > 1 or _processes()):
            # Both now: no thread can be started once the interpreter exits.
            due = threading.Event()
            handlers = threading.Thread(target=_handlers, args=(due,), daemon=True)
            end = threading.Thread(target=_end, args=(status, unclean, due, handlers), name=_NAME, daemon=True)
            with contextlib.suppress(RuntimeError):  # where no more threads are allowed, it ends when they do
                handlers.start()
                end.start()


def _handlers(due: threading.Event) -> None:
    due.wait()
    atexit._run_exitfuncs()


def _end(status: int, unclean: int | None, due: threading.Event, handlers: threading.Thread) -> None:
    """Wait for the main thread to finish its work, and then briefly for other threads and processes."""
    while threading.main_thread().is_alive() and _waits_in() is None:
        threading.main_thread().join(_LOOK_S)
    waited_s = 0.0
    while waited_s < GRACE_S or not (_waits_in() or (unclean is not None and waited_s >= AT_EXIT_S)):
        time.sleep(_POLL_S)
        waited_s += _POLL_S
    remaining = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    threads = [f"the thread {thread.name!r}" for thread in remaining if not thread.daemon]
    if any(thread.name == "QueueFeederThread" for thread in remaining):
        threads.append("a queue of multiprocessing that still holds items")
    processes = [
        f"the process {process.name!r} (number {process.pid})" for process in _processes() if not process.daemon
    ]
    names = ", ".join([*threads, *processes]) or "an exit handler"
    with contextlib.suppress(AttributeError, OSError, ValueError):  # training may have replaced or closed it
        sys.stdout.flush()
        print(  # noqa: T201
            f"warning: the work was done, but these were still running, and were ended: {names}. End "
            "what you start (join, close, shutdown) before your function returns",
            file=sys.stderr,
            flush=True,
        )
    if _waits_in() == _SHUTDOWN:  # else handlers are running already, and one of them waits for processes
        _kill()
    due.set()
    handlers.join(HANDLERS_S)
    _kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # training may have replaced or closed it
            stream.flush()  # what exit handlers printed
    os._exit(unclean if unclean is not None and not status else status)


def _processes() -> list[Any]:
    """Return the processes of `multiprocessing` that are alive."""
    used: Any = sys.modules.get("multiprocessing")
    return [] if used is None else used.active_children()


def _kill() -> None:
    for process in _processes():
        process.kill()


def _waits_in() -> str | None:
    """Return where the main thread waits at exit for other threads or processes; None if it does not.

    Python waits for threads first, then handlers run, among them that of `multiprocessing`.
    """
    util: Any = sys.modules.get("multiprocessing.util")
    # Compared by identity: code that a library made may not be hashable.
    waits = {id(threading._shutdown.__code__): _SHUTDOWN}  # type: ignore[attr-defined]
    if util is not None:
        waits[id(util._exit_function.__code__)] = "multiprocessing"
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and id(frame.f_code) not in waits:
        frame = frame.f_back
    return None if frame is None else waits[id(frame.f_code)]
