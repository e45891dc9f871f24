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
from functools import partial
from pathlib import Path
from typing import NoReturn

from phyla import plugins
from phyla.checkpoints import advice_on, is_storage_error
from phyla.controller import from_config, suites_from
from phyla.errors import CheckpointsAbsent, PhylaError, StoreError
from phyla.launchers.spec import (
    BEATS,
    EXIT_CANNOT_START,
    EXIT_CHECKPOINTS_ABSENT,
    EXIT_OUTDATED,
    EXIT_STORE_FAILED,
    WorkerSpec,
)
from phyla.local_client import LocalClient, open_checkpoints
from phyla.machine import Outdated
from phyla.records import StudyState, WorkKind
from phyla.settings import escape_output
from phyla.store import Store, open_store
from phyla.worker import Bindings, EvaluatedRun, Evaluator, StudySources, Trainer, Worker, WorkerContext

_PR_SET_PDEATHSIG = 1

SUITES_CHANGED = (
    "the suites of the run were changed while this worker evaluated. It has returned its eval task and takes no "
    "more; start it again with the changed suite file"
)


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
    sys.path[:] = [*spec.python_path, *(entry for entry in sys.path if entry not in spec.python_path)]
    return _make_evaluator(spec) if spec.runs else _make_trainer(spec)


def _make_evaluator(spec: WorkerSpec) -> Callable[[], str | None]:
    """Make a worker of runs that are watched: it only evaluates."""
    from phyla.launchers.runs import changed_suites, open_runs

    suites = {run: suites_from({"suites": given}, plugins.resolve) for run, given in spec.suites.items()}
    store = open_store(spec.storage)
    opened = open_runs(store, spec.runs, suites, gin_bindings=spec.gin_bindings)
    why = changed_suites(opened, spec.suites)
    if why is not None:
        return lambda: why
    evaluator = Evaluator(opened.client, opened.run_of, work_root=Path(spec.work_root), name=spec.name)
    worker = Worker(opened.client, name=spec.name, evaluator=evaluator, beat=_beats(Path(spec.beat_file)))
    return _work(worker, store, evaluator)


def _make_trainer(spec: WorkerSpec) -> Callable[[], str | None]:
    """Make a worker of a study: it trains, evaluates, or does both."""
    train = None if spec.train is None else plugins.resolve(spec.train)
    store = open_store(spec.storage)
    study = store.find_study(spec.study)
    if study is None:
        raise PhylaError(f"study {spec.study!r} is gone from {store.url}")
    rules = from_config(spec.config, plugins.resolve)
    repository = open_checkpoints(store, study.name, Path(spec.checkpoints))
    repository.check_owner()
    work_root = Path(spec.work_root)
    state = None
    if spec.setup is not None:
        directory = work_root / f"worker-{spec.index}"
        directory.mkdir(parents=True, exist_ok=True)
        context = WorkerContext(name=spec.name, index=spec.index, study=spec.study, working_dir=directory)
        state = plugins.resolve(spec.setup)(context)
    # Where the stored configuration is another one, the controller takes it over as far as it can.
    client = LocalClient(store, replace(study, config=spec.config), rules, repository, collects=False)
    evaluator = None
    if rules.suites and WorkKind.EVALUATE in spec.kinds:
        own = EvaluatedRun(
            suites=rules.suites,
            sources=StudySources(repository),
            outputs=Path(spec.outputs),
            stop=partial(client.end_study, StudyState.FAILED),
            bindings=Bindings(worker=spec.gin_bindings),
        )
        evaluator = Evaluator(
            client,
            lambda run: own,
            work_root=work_root,
            name=spec.name,
            state=state,
        )
    trainer = None
    if train is not None and WorkKind.TRAIN in spec.kinds:
        trainer = Trainer(
            client,
            repository,
            train,
            metrics=rules.reported_metrics,
            work_root=work_root,
            state=state,
            log=Path(spec.log) if spec.log else None,
        )
    worker = Worker(
        client,
        name=spec.name,
        trainer=trainer,
        evaluator=evaluator,
        beat=_beats(Path(spec.beat_file)),
        yields=spec.yields,
    )
    return _work(worker, store)


def _work(worker: Worker, store: Store, evaluator: Evaluator | None = None) -> Callable[[], str | None]:
    signal.signal(signal.SIGTERM, lambda number, frame: worker.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def work() -> str | None:
        ended = worker.run()
        store.close()
        if isinstance(ended, Outdated):
            return ended.why
        return SUITES_CHANGED if evaluator is not None and evaluator.outdated else None

    return work


def _beats(path: Path) -> Callable[[int, int, float], None]:
    with path.open("r+b") as file:
        page = mmap.mmap(file.fileno(), BEATS.size)

    def beat(progress: int, done: int, deadline: float) -> None:
        BEATS.pack_into(page, 0, progress, done, deadline)

    return beat


if __name__ == "__main__":
    main()
