"""One trial on all ranks of a PyTorch process group, of which rank 0 works on the study."""

import signal
import threading
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, cast, final

from phyla.errors import ConfigurationError
from phyla.records import JobKind, JsonObject, TrialRecord
from phyla.space import Params
from phyla.worker import Parent, Session, Trial, session_of

__all__ = ["shared_trials"]


def shared_trials(trials: Iterator[Trial] | None) -> Iterator[Trial]:
    """Iterate over trials on every rank of the default process group; rank 0 has them.

    All ranks see the same trial, and leave `steps()` after the same step. Only rank 0 reports; what the others
    report is dropped. All may write into `checkpoint_dir`, which is committed when all have gone on to the next
    trial. So every rank has to use these alike: the iteration, `steps()`, `should_stop`, `save_progress()`.
    `cached_state` is each rank's own. The facts travel through a gloo group, made here, and use no GPU.

    Args:
        trials: on rank 0, what `phyla.attach(...).trials()` returned; None on the other ranks.

    Raises:
        ConfigurationError: it is None on rank 0, or given on another rank.
        RuntimeError: on the other ranks, when rank 0 ended with an error.
    """
    from torch import distributed

    rank = distributed.get_rank()
    if (trials is None) == (rank == 0):
        raise ConfigurationError(
            f"shared_trials() on rank {rank}: give it the trials on rank 0, and None on the other ranks"
        )
    group = distributed.new_group(backend="gloo")
    handlers = {} if rank == 0 else _left_to_rank_0()
    cached: Any = None
    try:
        while True:
            real, facts = None, None
            if trials is not None:
                try:
                    trial = next(trials, None)
                except BaseException as error:
                    _tell(f"{type(error).__name__}: {error}", group)
                    raise
                real = None if trial is None else session_of(trial)
                facts = None if real is None else _facts(real)
            facts = _tell(facts, group)
            if facts is None:
                return
            if isinstance(facts, str):
                raise RuntimeError(f"rank 0 ended with {facts}")
            shared = _Shared(real, group, facts)
            if real is not None:
                shared.cached_state = real.cached_state
            elif facts["continues"]:
                shared.cached_state = cached
            yield Trial(cast("Session", shared))
            cached = shared.cached_state
            if real is not None:
                real.touched, real.cached_state = real.touched or shared.touched, cached
            distributed.barrier(group)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if isinstance(trials, Generator):
            trials.close()


def _left_to_rank_0() -> dict[int, Any]:
    """Leave it to rank 0 when all end, as a signal asks; a second one interrupts at once."""
    seen: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        seen.append(number)
        if len(seen) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}


def _tell(thing: Any, group: Any) -> Any:
    """Return what rank 0 has, on all ranks."""
    from torch import distributed

    box = [thing]
    distributed.broadcast_object_list(box, src=0, group=group)
    return box[0]


def _facts(session: Session) -> dict[str, Any]:
    return {
        "record": session.record,
        "parent": session.parent,
        "progress": session.progress,
        "checkpoint_dir": session.checkpoint_dir,
        "working_dir": session.working_dir,
        "continues": session.cached_state is not None,
    }


@final
class _Shared:
    """What a trial stands on that ranks share: rank 0's real session, or what it told."""

    def __init__(self, real: Session | None, group: Any, facts: dict[str, Any]) -> None:
        self._real, self._group = real, group
        self.record: TrialRecord = facts["record"]
        self.parent: Parent | None = facts["parent"]
        self.progress: Parent | None = facts["progress"]
        self.checkpoint_dir: Path = facts["checkpoint_dir"]
        self.working_dir: Path = facts["working_dir"]
        self.params = Params.of_flat(dict(self.record.params)) if real is None else real.params
        self.measuring = self.record.kind is JobKind.MEASURE
        self.touched = False
        self.worker = self.cached_state = None

    def steps(self) -> Iterator[int]:
        import torch

        steps = None if self._real is None else self._real.steps()
        while True:
            step = torch.tensor(0 if steps is None else next(steps, -1))
            torch.distributed.broadcast(step, src=0, group=self._group)
            if step < 0:
                return
            yield int(step)

    def report(self, metrics: Mapping[str, Any], step: int | None) -> None:
        if self._real is not None:
            self._real.report(metrics, step)

    def should_stop(self) -> bool:
        return bool(_tell(self._real and self._real.should_stop(), self._group))

    @property
    def stop_reason(self) -> JsonObject | None:
        return cast(
            "JsonObject | None", _tell(None if self._real is None else self._real.stop_reason, self._group)
        )

    def save_progress(self, step: int | None) -> None:
        from torch import distributed

        distributed.barrier(self._group)  # All have written.
        error: Exception | None = None
        if self._real is not None:
            try:
                self._real.save_progress(step)
            except Exception as raised:  # noqa: BLE001  # raised below, on every rank
                error = raised
        error = _tell(error, self._group)
        if error is not None:
            raise error
