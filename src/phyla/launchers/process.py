"""The worker process: `python -m phyla.launchers.process`, told what to do on standard input."""

import ctypes
import mmap
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from phyla import plugins
from phyla.checkpoints import advice_on, is_storage_error
from phyla.client import LocalClient, open_checkpoints
from phyla.controller import from_config, suites_from
from phyla.errors import CheckpointsAbsent, PhylaError, StoreError
from phyla.launchers.launcher import (
    BEATS,
    EXIT_CANNOT_START,
    EXIT_CHECKPOINTS_ABSENT,
    EXIT_OUTDATED,
    EXIT_STORE_FAILED,
    WorkerSpec,
)
from phyla.machine import Outdated
from phyla.settings import escape_output
from phyla.store import Store, open_store
from phyla.worker import Beat, Evaluator, Worker, population_worker

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read a spec, work until the study ends, exit with 0; with another status if that cannot be.

    What is imported is named by the spec, which comes from the supervisor, never by the database.
    """
    escape_output()
    spec = WorkerSpec.from_json(sys.stdin.readline())
    _die_with_parent()
    try:
        work = _make(spec)
    except Exception as error:  # noqa: BLE001  # user code; the supervisor shows what it printed
        _fail(error, EXIT_CANNOT_START)
    try:
        outdated = work()
    except (StoreError, CheckpointsAbsent) as error:
        _fail(error, EXIT_STORE_FAILED)
    if outdated is not None:
        print(outdated, file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_OUTDATED)


def _fail(error: Exception, status: int) -> NoReturn:
    """Print an error for the supervisor (of phyla's own and of storage, only the message), and exit."""
    if isinstance(error, PhylaError):
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
    elif isinstance(error, OSError) and is_storage_error(error):
        print(f"{error}; {advice_on(error)}", file=sys.stderr)  # noqa: T201
    else:
        traceback.print_exception(error)
    sys.exit(EXIT_CHECKPOINTS_ABSENT if isinstance(error, CheckpointsAbsent) else status)


def _die_with_parent() -> None:
    """End this process, and with it its process group, as soon as its supervisor is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        # The supervisor never writes more: this returns when it is gone.
        os.read(sys.stdin.fileno(), 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="phyla-parent", daemon=True).start()


def _make(spec: WorkerSpec) -> Callable[[], str | None]:
    """Return the work, which returns why other settings are needed, if they are."""
    sys.path[:] = [*spec.python_path, *(entry for entry in sys.path if entry not in spec.python_path)]
    store = open_store(spec.storage)
    beat = _beats(Path(spec.beat_file))
    if spec.watched:
        from phyla.launchers.watched import changed_suites, open_watched

        suites = {name: suites_from(config, plugins.resolve) for name, config in spec.configs.items()}
        opened = open_watched(store, suites, gin_bindings=spec.gin_bindings)
        why = changed_suites(opened, spec.configs)
        if why is not None:
            return lambda: why
        evaluator = Evaluator(opened.client, opened.evaluated, work_root=Path(spec.work_root), name=spec.name)
        worker = Worker(opened.client, name=spec.name, evaluator=evaluator, beat=beat)
    else:
        worker = _population_worker(spec, store, beat)
    signal.signal(signal.SIGTERM, lambda number, frame: worker.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def work() -> str | None:
        ended = worker.run()
        store.close()
        return ended.why if isinstance(ended, Outdated) else None

    return work


def _population_worker(spec: WorkerSpec, store: Store, beat: Beat) -> Worker:
    config = spec.configs[spec.study]
    train, setup = config["train"], config["setup"]
    study = store.find_study(spec.study)
    if study is None:
        raise PhylaError(f"study {spec.study!r} is gone from {store.url}")
    rules = from_config(config, plugins.resolve)
    repository = open_checkpoints(store, study.name, Path(spec.checkpoints))
    repository.check_owner()
    return population_worker(
        # Where the stored configuration is another one, the controller takes it over as far as it can.
        LocalClient(store, replace(study, config=config), rules, repository, collects=False),
        study,
        repository,
        rules,
        plugins.resolve(str(train)),
        None if setup is None else plugins.resolve(str(setup)),
        name=spec.name,
        index=spec.index,
        kinds=spec.kinds,
        work_root=Path(spec.work_root),
        outputs=Path(spec.outputs),
        log=Path(spec.log) if spec.log else None,
        gin_bindings=spec.gin_bindings,
        beat=beat,
        yields=spec.yields,
    )


def _beats(path: Path) -> Beat:
    with path.open("r+b") as file:
        page = mmap.mmap(file.fileno(), BEATS.size)

    def beat(progress: int, done: int, deadline: float) -> None:
        BEATS.pack_into(page, 0, progress, done, deadline)

    return beat


if __name__ == "__main__":
    main()
