"""The worker process: `python -m phyla.launchers.process`, told what to do on standard input."""

import ctypes
import mmap
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from phyla.errors import PhylaError, StoreError
from phyla.launchers.spec import BEATS, EXIT_CANNOT_START, EXIT_STORE_FAILED, WorkerSpec

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read a spec, work until the study ends, exit with 0, or with 3 if the training code cannot load."""
    spec = WorkerSpec.from_json(sys.stdin.readline())
    _die_with_parent()
    try:
        worker = _make(spec)
    except Exception as error:  # noqa: BLE001  # user code; the supervisor shows what it printed
        if isinstance(error, PhylaError):
            print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        else:
            traceback.print_exc()
        sys.exit(EXIT_CANNOT_START)
    try:
        worker()
    except StoreError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_STORE_FAILED)


def _die_with_parent() -> None:
    """End this process, and with it its process group, as soon as its supervisor is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        # The supervisor never writes more: this returns when it is gone.
        os.read(sys.stdin.fileno(), 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="phyla-parent", daemon=True).start()


def _make(spec: WorkerSpec) -> Callable[[], None]:
    from phyla import plugins
    from phyla.checkpoints import LocalCheckpoints
    from phyla.controller import from_config
    from phyla.local_client import LocalClient
    from phyla.settings import system_clock
    from phyla.store import open_store
    from phyla.worker import Worker, WorkerContext, worker_name

    sys.path[:] = [*spec.python_path, *(entry for entry in sys.path if entry not in spec.python_path)]
    train = plugins.resolve(spec.train)
    store = open_store(spec.storage)
    study = store.find_study(spec.study)
    if study is None:
        raise PhylaError(f"study {spec.study!r} is gone from {store.url}")
    rules = from_config(study.config)
    repository = LocalCheckpoints(Path(spec.checkpoints))
    work_root = Path(spec.work_root)
    name = worker_name(spec.index)
    state = None
    if spec.setup is not None:
        directory = work_root / f"worker-{spec.index}"
        directory.mkdir(parents=True, exist_ok=True)
        context = WorkerContext(name=name, index=spec.index, study=spec.study, working_dir=directory)
        state = plugins.resolve(spec.setup)(context)
    worker = Worker(
        LocalClient(store, study, rules, repository, collects=False),
        repository,
        train,
        metric=rules.objective.metric,
        work_root=work_root,
        name=name,
        clock=system_clock,
        state=state,
        beat=_beats(Path(spec.beat_file)),
    )
    signal.signal(signal.SIGTERM, lambda number, frame: worker.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def work() -> None:
        worker.run()
        store.close()

    return work


def _beats(path: Path) -> Callable[[int, int], None]:
    with path.open("r+b") as file:
        page = mmap.mmap(file.fileno(), BEATS.size)

    def beat(progress: int, trials: int) -> None:
        BEATS.pack_into(page, 0, progress, trials)

    return beat


if __name__ == "__main__":
    main()
