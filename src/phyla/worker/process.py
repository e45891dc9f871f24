"""The worker process, which a supervisor starts and configures on standard input."""

import ctypes
import faulthandler
import gc
import mmap
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from phyla import plugins, study_modules
from phyla.client import Client, open_checkpoints
from phyla.configuration import from_config, suites_from
from phyla.errors import (
    CheckpointsAbsent,
    PhylaError,
    ProcessSpoiled,
    RunChanged,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    advice_on,
    ends_only_call,
    hidden_modules,
    is_limit_error,
    is_storage_error,
)
from phyla.machine import NoTime, Outdated
from phyla.settings import prepare_output
from phyla.store import Store, hold_on, open_store
from phyla.system.endings import ending
from phyla.system.fork_safe_signals import handle
from phyla.worker import Worker
from phyla.worker.containment.surroundings import Surroundings
from phyla.worker.make import check_suites, open_watched, place, population_worker, watched_worker
from phyla.worker.spec import BEATS, LAST_WORDS, Exit, WorkerSpec

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read a spec, work until the study ends, and exit with 0, or with another status on errors."""
    with ending(Exit.LEFT):
        _work()


def _work() -> None:
    prepare_output()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # before user code, whose own KeyboardInterrupt is an error
    faulthandler.enable(all_threads=False)  # into the log
    spec = WorkerSpec.from_json(sys.stdin.readline())
    die_with_parent(supervisor := _take_input())
    try:
        with open(spec.beat_file, "r+b") as file:
            shared = mmap.mmap(file.fileno(), LAST_WORDS.stop)
        worker, store = _make(spec, shared, Surroundings(supervisor))
        hold_on(store)
    except RunChanged as error:
        _exit_with(Exit.OUTDATED, str(error))
    except (StoreBusy, StoreUnavailable) as error:
        _fail(error, Exit.STORE_FAILED)
    except BaseException as error:
        if not ends_only_call(error):
            raise
        # User code; the supervisor shows what it printed.
        _fail(error, Exit.CANNOT_START)
    try:
        ended = worker.run()
        store.close()
    except ProcessSpoiled as error:
        shared[LAST_WORDS] = f"{error}".encode().ljust(LAST_WORDS.stop)[: LAST_WORDS.stop - LAST_WORDS.start]
        with suppress(Exception):
            traceback.print_exception(error)
        os._exit(Exit.SPOILED)  # what Python does at exit may hang
    except (StoreError, CheckpointsAbsent) as error:
        _fail(error, Exit.STORE_FAILED)
    if isinstance(ended, (Outdated, NoTime)):
        _exit_with(Exit.OUTDATED if isinstance(ended, Outdated) else Exit.NO_TIME, ended.why)


def _fail(error: BaseException, status: int) -> NoReturn:
    """Print an error for the supervisor (of phyla's own and of storage, only the message), and exit."""
    if isinstance(error, PhylaError):
        text = f"{type(error).__name__}: {error}"
    elif is_storage_error(error) or is_limit_error(error):
        text = f"{str(error) or type(error).__name__}; {advice_on(error)}"
    else:
        text = "\n".join(filter(None, ("".join(traceback.format_exception(error)).rstrip(), hidden_modules())))
    _exit_with(Exit.CHECKPOINTS_ABSENT if isinstance(error, CheckpointsAbsent) else status, text)


def _exit_with(status: int, text: str) -> NoReturn:
    """Print a text and exit; the status counts, also where the log is on the disk that failed."""
    with suppress(OSError):
        print(text, file=sys.stderr)  # noqa: T201
    sys.exit(status)


def _take_input() -> int:
    """Move standard input to a descriptor that no program inherits; user code that reads finds an empty one."""
    supervisor = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    return supervisor


def die_with_parent(supervisor: int) -> None:
    """End this process, and with it its process group, as soon as its supervisor closes this pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        # The supervisor never writes more: this returns when it is gone.
        os.read(supervisor, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="phyla-parent", daemon=True).start()


def _make(spec: WorkerSpec, shared: mmap.mmap, surroundings: Surroundings) -> tuple[Worker, Store]:
    sys.path[:] = [*spec.python_path, *(entry for entry in sys.path if entry not in spec.python_path)]
    study_modules.begin(spec.argv, spec.files)
    store = open_store(spec.storage)
    gc.freeze()  # collections skip phyla's own modules
    gc.enable()
    how: dict[str, Any] = {
        "beat": partial(BEATS.pack_into, shared, 0),
        "closing": lambda: shared[BEATS.size],
        "surroundings": surroundings,
    }
    if spec.watched:
        suites = {name: suites_from(config, plugins.resolve) for name, config in spec.configs.items()}
        client, runs = open_watched(store, suites)
        check_suites(runs, spec.configs)
        worker = watched_worker(client, runs, spec, **how)
    else:
        ((name, config),) = spec.configs.items()
        study = store.find_study(name)
        if study is None:
            raise PhylaError(f"study {name!r} is gone from {store.url}")
        rules = from_config(config, plugins.resolve)
        repository = open_checkpoints(store, study, place(spec.checkpoints, spec.outputs))
        repository.check_owner()
        # If the stored configuration differs, the controller adopts what it can.
        client = Client(store, replace(study, config=config), rules, repository, collects=False)
        raw: Any = config["train"]
        train = plugins.resolve(raw) if isinstance(raw, str) else plugins.decode(raw, plugins.resolve)
        setup = None if config["setup"] is None else plugins.resolve(str(config["setup"]))
        worker = population_worker(client, rules, train, setup, spec, **how)
    for number in {signal.SIGTERM, spec.stop_signal or signal.SIGTERM}:
        handle(number, lambda number, frame: worker.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # again: the file of a study may have set a handler
    return worker, store
