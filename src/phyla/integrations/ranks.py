"""One trial on all ranks of a PyTorch process group, where rank 0 talks to the study."""

import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, cast, final

from phyla.errors import ConfigurationError
from phyla.space import Params
from phyla.worker import Trial, TrialSession, session_of

__all__ = ["shared_trials"]

FACTS = (
    *("record", "parent", "progress", "checkpoint_dir", "working_dir", "measuring"),
    *("total_steps", "reached_step", "interrupted"),
)
"""Facts of rank 0's session that the other ranks need."""


def shared_trials(trials: Iterator[Trial] | None) -> Iterator[Trial]:
    """Iterate over the trials of rank 0 on every rank of the default process group.

    All ranks see the same trial, and leave `steps()` after the same step. Only rank 0 reports; reports of other
    ranks are dropped. All may write into `checkpoint_dir`, which is committed when all have continued to the next
    trial. So every rank has to use these in the same way: the iteration, `steps()`, `should_stop`, `should_save`,
    `save_progress()`, and the helpers for PyTorch, Lightning and Hugging Face. Each rank has its own
    `cached_state`. Communication uses a gloo group, created here, and no GPU.

    Args:
        trials: on rank 0, what `phyla.attach(...).trials()` returned; None on the other ranks.

    Raises:
        ConfigurationError: it is None on rank 0, or given on another rank.
        RuntimeError: on the other ranks, when rank 0 was interrupted; its other errors are raised on all ranks.
    """
    from torch import distributed

    rank = distributed.get_rank()
    if (trials is None) == (rank == 0):
        raise ConfigurationError(
            f"shared_trials() on rank {rank}: give it the trials on rank 0, and None on the other ranks"
        )
    group = distributed.new_group(backend="gloo")
    handlers = {} if rank == 0 else _leave_to_rank_0()
    cached: Any = None
    real: TrialSession | None = None

    def following() -> dict[str, Any] | None:
        nonlocal real
        trial = None if trials is None else next(trials, None)
        real = None if trial is None else session_of(trial)
        return real and {
            "continues": real.cached_state is not None,
            **{name: getattr(real, name) for name in FACTS},
        }

    try:
        while (facts := _from_rank_0(following, group)) is not None:
            if real is not None:
                cached = real.cached_state
            elif not facts["continues"]:
                cached = None
            shared = _Shared(real, group, facts, cached)
            yield Trial(cast("TrialSession", shared))
            cached = shared.cached_state
            if real is not None:
                real.touched, real.cached_state = real.touched or shared.touched, cached
            distributed.barrier(group)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if isinstance(trials, Generator):
            trials.close()


def _leave_to_rank_0() -> dict[int, Any]:
    """Let rank 0 decide when all ranks stop after a signal; a second signal interrupts at once."""
    seen: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        seen.append(number)
        if len(seen) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}


def _from_rank_0(call: Callable[[], Any], group: Any) -> Any:
    """Return on all ranks the result of a call on rank 0, or raise its exception."""
    from torch import distributed

    answer = error = failure = None
    if distributed.get_rank() == 0:
        try:
            answer = call()
        except BaseException as raised:  # noqa: BLE001  # raised below
            error = raised
            failure = raised if isinstance(raised, Exception) else RuntimeError(f"rank 0 ended with {raised!r}")
    box = [answer, failure]
    distributed.broadcast_object_list(box, src=0, group=group)
    answer, failure = box
    if failure is not None:
        raise error or failure
    return answer


@final
class _Shared:
    """The session behind a shared trial: the real one of rank 0, or its broadcast facts."""

    def __init__(self, real: TrialSession | None, group: Any, facts: dict[str, Any], cached_state: Any) -> None:
        from torch import distributed

        self._real, self._group = real, group
        vars(self).update({name: facts[name] for name in FACTS})
        self.params = Params.of_flat(dict(facts["record"].params)) if real is None else real.params
        self.touched, self.worker, self.cached_state = False, None, cached_state
        self.rank = distributed.get_rank()

    def _ask(self, question: Callable[[TrialSession], Any]) -> Any:
        return _from_rank_0(lambda: self._real and question(self._real), self._group)

    def steps(self) -> Iterator[int]:
        import torch

        steps = None if self._real is None else self._real.steps()
        while True:
            # A tensor: a third of the time that an object takes.
            state = torch.zeros(3, dtype=torch.int64)
            if self._real is not None and steps is not None:
                step = next(steps, -1)
                state = torch.tensor([step, self._real.reached_step, self._real.interrupted])
            torch.distributed.broadcast(state, src=0, group=self._group)
            step, self.reached_step, interrupted = state.tolist()
            self.interrupted = bool(interrupted)
            if step < 0:
                return
            yield step

    def report(self, metrics: Mapping[str, Any], step: int | None) -> None:
        if self._real is not None:
            self._real.report(metrics, step)

    def should_stop(self) -> bool:
        return bool(self._ask(TrialSession.should_stop))

    def should_save(self) -> bool:
        return bool(self._ask(TrialSession.should_save))

    @property
    def stop_reason(self) -> Any:
        return self._ask(lambda session: session.stop_reason)

    def save_progress(self, step: int | None) -> None:
        from torch import distributed

        distributed.barrier(self._group)  # All have written.
        self._ask(lambda session: session.save_progress(step))
