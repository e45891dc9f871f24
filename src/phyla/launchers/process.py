"""Workers of studies of both kinds, and the worker process, which the supervisor starts.

The process reads on standard input what to do. A process that works by itself makes its worker here, too.
"""

import ctypes
import faulthandler
import gc
import mmap
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from phyla import plugins, study_modules
from phyla.checkpoints import RemotePlace, place_of
from phyla.client import Client, known_checkpoints, open_checkpoints
from phyla.controller import from_config, said, suite_differences, suites_from
from phyla.endings import ending
from phyla.errors import (
    CheckpointsAbsent,
    PhylaError,
    ProcessSpoiled,
    RunChanged,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    StudyFailed,
    StudyNotFound,
    advice_on,
    hidden_modules,
    is_storage_error,
)
from phyla.evaluation import Suite
from phyla.fork_safe_signals import handle
from phyla.launchers.spec import BEATS, LAST_WORDS, Exit, WorkerSpec
from phyla.machine import NoTime, Outdated, TrainRules, WatchRules
from phyla.records import JsonObject, StudyKind, StudyRecord, WorkKind
from phyla.settings import escape_output
from phyla.store import Store, hold_on, open_store
from phyla.watcher import DirectorySources
from phyla.worker import EvaluatedStudy, Evaluator, Sources, StudySources, Trainer, Trial, Worker, WorkerContext
from phyla.worker.containment.surroundings import Surroundings

Runs: TypeAlias = Sequence[tuple[StudyRecord, EvaluatedStudy]]
"""Watched studies, each with what it takes to evaluate it."""
TOLD_AT_MOST = 5
"""Differences of two suite files that a message names."""
_PR_SET_PDEATHSIG = 1


def population_worker(
    client: Client,
    rules: TrainRules,
    train: Callable[[Trial], object],
    setup: Callable[[WorkerContext], Any] | None,
    spec: WorkerSpec,
    **how: Any,
) -> Worker:
    """Make a worker of a study with a population; `setup` is called here, once. `how` is as `Worker` takes it."""
    study, repository, work_root = client.record, client.repository, Path(spec.work_root)
    state, log = None, _log(spec)
    if setup is not None:
        directory = work_root / f"worker-{spec.index}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StudyFailed(f"cannot make {directory}: {error.strerror}; {advice_on(error)}") from error
        context = WorkerContext(name=spec.name, index=spec.index, study=study.name, working_dir=directory)
        state = setup(context)
    evaluator = trainer = None
    if rules.suites and WorkKind.EVALUATE in spec.kinds:
        evaluated = EvaluatedStudy(
            suites=rules.suites,
            sources=StudySources(repository),
            outputs=Path(spec.outputs),
            stop=partial(client.fail_study, study.id),
        )
        evaluator = Evaluator(
            client, {study.id: evaluated}, work_root=work_root, name=spec.name, state=state, log=log
        )
    if WorkKind.TRAIN in spec.kinds:
        trainer = Trainer(
            client,
            repository,
            train,
            metrics=rules.reported_metrics,
            work_root=work_root,
            state=state,
            log=log,
            save_every_s=spec.save_every_s,
            environment=spec.environment,
        )
    return _worker(client, spec, trainer=trainer, evaluator=evaluator, yields=spec.yields, **how)


# Watched studies


def open_watched(store: Store, suites: Mapping[str, Sequence[Suite]]) -> tuple[Client, Runs]:
    """Open watched studies that one pool of workers serves, by name with their suites from the user's files."""
    runs = [_watched(store, name, tuple(given)) for name, given in suites.items()]
    rules = [WatchRules(suites=evaluated.suites, lease_s=lease_of(record)) for record, evaluated in runs]
    (first, *others), (first_rules, *other_rules) = [record for record, _ in runs], rules
    client = Client(store, first, first_rules, others=list(zip(others, other_rules, strict=True)))
    return client, runs


def _watched(store: Store, name: str, suites: tuple[Suite, ...]) -> tuple[StudyRecord, EvaluatedStudy]:
    record = store.find_study(name)
    if record is None or not record.watched:
        raise StudyNotFound(f"watched run {name!r} is gone from {store.url}")
    config: Any = record.config
    sources: Sources = DirectorySources(Path(record.location))
    if record.kind is StudyKind.STUDY:
        source = next(study for study in store.studies() if study.id == record.source)
        repository = open_checkpoints(store, source.name, _place(config["checkpoints"], config["outputs"]))
        if known_checkpoints(store, source):
            repository.check_owner()
        sources = StudySources(repository)

    def changed() -> bool:
        now = store.find_study(name)
        return now is not None and now.config.get("suites") != config.get("suites")

    return record, EvaluatedStudy(
        suites=suites,
        sources=sources,
        outputs=Path(config["outputs"]),
        gin_root=Path(config["gin_root"]),
        changed=changed,
    )


def lease_of(record: StudyRecord) -> float:
    """Return how many seconds a lease of a watched study lasts."""
    config: Any = record.config
    return float(config["lease_s"])


def check_suites(runs: Runs, given: Mapping[str, JsonObject]) -> None:
    """Refuse stored suites that are not those of given configurations."""
    for record, _ in runs:
        differing = suite_differences(record.config, given[record.name])
        if differing:
            told = [f"{key}: it has {said(old)}, given {said(new)}" for key, (old, new) in differing.items()]
            more = [f"and {len(told) - TOLD_AT_MOST} more"] if len(told) > TOLD_AT_MOST else []
            listing = "; ".join([*told[:TOLD_AT_MOST], *more])
            raise RunChanged(
                f"the suites of run {record.name!r} are not those of the suite file ({listing}); give the file "
                "that the run is watched with, or watch it again with this one"
            )


def watched_worker(client: Client, runs: Runs, spec: WorkerSpec, **how: Any) -> Worker:
    """Make a worker of watched studies; `how` is as `Worker` takes it."""
    evaluated = {record.id: evaluated for record, evaluated in runs}
    evaluator = Evaluator(client, evaluated, work_root=Path(spec.work_root), name=spec.name, log=_log(spec))
    return _worker(client, spec, evaluator=evaluator, **how)


def _worker(client: Client, spec: WorkerSpec, **how: Any) -> Worker:
    least, most = spec.gpus
    how |= {"stops_at": spec.stops_at, "run_s": spec.run_s}
    return Worker(client, name=spec.name, gpus=(least, most), labels=tuple(spec.labels), **how)


def _log(spec: WorkerSpec) -> Path | None:
    return Path(spec.log) if spec.log else None


def _place(checkpoints: str, outputs: str) -> Path | RemotePlace:
    # Outputs are in a directory of the home's.
    return place_of(checkpoints, Path(outputs).parent.parent)


# The process


def main() -> None:
    """Read a spec, work until the study ends, exit with 0; with another status if that cannot be."""
    with ending(Exit.LEFT):
        _work()


def _work() -> None:
    escape_output()
    faulthandler.enable(all_threads=False)  # into the log
    spec = WorkerSpec.from_json(sys.stdin.readline())
    die_with_parent(supervisor := _take_input())
    try:
        with open(spec.beat_file, "r+b") as file:
            shared = mmap.mmap(file.fileno(), LAST_WORDS.stop)
        worker, store = _make(spec, shared, Surroundings(supervisor))
        hold_on(store)
    except RunChanged as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(Exit.OUTDATED)
    except (StoreBusy, StoreUnavailable) as error:
        _fail(error, Exit.STORE_FAILED)
    except (SystemExit, Exception) as error:  # noqa: BLE001  # user code; the supervisor shows what it printed
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
        print(ended.why, file=sys.stderr)  # noqa: T201
        sys.exit(Exit.OUTDATED if isinstance(ended, Outdated) else Exit.NO_TIME)


def _fail(error: SystemExit | Exception, status: int) -> NoReturn:
    """Print an error for the supervisor (of phyla's own and of storage, only the message), and exit."""
    if isinstance(error, PhylaError):
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
    elif isinstance(error, OSError) and is_storage_error(error):
        print(f"{error}; {advice_on(error)}", file=sys.stderr)  # noqa: T201
    else:
        traceback.print_exception(error)
        if hidden := hidden_modules():
            print(hidden, file=sys.stderr)  # noqa: T201
    sys.exit(Exit.CHECKPOINTS_ABSENT if isinstance(error, CheckpointsAbsent) else status)


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
    gc.freeze()  # no collection looks at what phyla imported
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
        repository = open_checkpoints(store, study.name, _place(spec.checkpoints, spec.outputs))
        repository.check_owner()
        # Where the stored configuration is another one, the controller takes it over as far as it can.
        client = Client(store, replace(study, config=config), rules, repository, collects=False)
        given: Any = config["train"]
        train = plugins.resolve(given) if isinstance(given, str) else plugins.decode(given, plugins.resolve)
        setup = None if config["setup"] is None else plugins.resolve(str(config["setup"]))
        worker = population_worker(client, rules, train, setup, spec, **how)
    for number in {signal.SIGTERM, spec.stop_signal or signal.SIGTERM}:
        handle(number, lambda number, frame: worker.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return worker, store
