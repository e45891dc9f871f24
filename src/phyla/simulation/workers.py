"""Who works in a simulation."""

from dataclasses import dataclass
from typing import final

from phyla.errors import ConfigurationError
from phyla.machine import Claimed, ClaimedEvaluation
from phyla.records import WorkKind

BOTH = frozenset({WorkKind.TRAIN, WorkKind.EVALUATE})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Who works.

    Args:
        workers: workers that do `kinds`.
        evaluators: further workers that only evaluate.
        kinds: what the workers do.

    Raises:
        ConfigurationError: nobody trains.
    """

    workers: int
    evaluators: int = 0
    kinds: frozenset[WorkKind] = BOTH

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("evaluators", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigurationError(f"{name}={value!r}: must be an integer of at least {least}")
        if WorkKind.TRAIN not in self.kinds:
            raise ConfigurationError("kinds: somebody has to train")


@final
@dataclass(slots=True)
class SimulatedWorker:
    """One slot for a worker: its process may be replaced, its place stays.

    Attributes:
        index: 0 .. workers - 1.
        kinds: what it does.
        name: of its present process.
        life: counts processes; what was planned for an earlier one does not happen.
        mark: counts pieces of work and interruptions, likewise.
        work: what it does now.
        began: when it claimed that.
        load_s: seconds of its work for loading.
        busy_s: seconds of its work for training or evaluating.
        save_s: seconds of its work for saving.
        holding: the checkpoint seen that it has loaded.
        idle_since: since when it has nothing to do; None when it is at work or gone.
        gone_since: since when it is gone.
    """

    index: int
    kinds: frozenset[WorkKind]
    name: str = ""
    life: int = 0
    mark: int = 0
    work: Claimed | ClaimedEvaluation | None = None
    began: float = 0.0
    load_s: float = 0.0
    busy_s: float = 0.0
    save_s: float = 0.0
    holding: int | None = None
    idle_since: float | None = None
    gone_since: float | None = None

    def start_process(self) -> None:
        """Become a new process in the same place."""
        self.life += 1
        self.name = f"simulated:{self.index}:{self.life}:0"
        self.holding = None
        self.gone_since = None

    def share_done(self, now: float) -> float:
        """Return the share of the training of its work that was done by now."""
        if not self.busy_s:
            return 0.0
        return min(1.0, max(0.0, (now - self.began - self.load_s) / self.busy_s))
