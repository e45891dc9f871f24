"""What a strategy can decide about a ready member."""

from dataclasses import dataclass
from typing import TypeAlias, final

from phyla.records import Json, JsonObject, Scored


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Train one trial.

    Attributes:
        weights: the completed trial whose checkpoint to start from; None to start fresh.
        params: flat hyperparameters, valid in the study's space.
        params_from: id of the trial they were taken or derived from; None for fresh ones.
        steps: how many steps to train, at least 1.
        reason: why, as data; `decision` is one of start, continue, exploit, explore, replace.
        exploited: whether the member took over another's state, which restarts its ready interval.
        state: new state of the strategy; None leaves it as it is.
        seed: seed for the training code, in [0, 2**31); None draws it.
    """

    weights: Scored | None
    params: JsonObject
    params_from: int | None
    steps: int
    reason: JsonObject
    exploited: bool = False
    state: Json = None
    seed: int | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Ask again later: at each claim, as long as nothing else can be started.

    Attributes:
        reason: why, as data.
    """

    reason: JsonObject


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Measure a checkpoint again; its fitness becomes the mean of all measurements.

    Where fitness comes from a suite, the suite is run on it again, with other seeds, and the member waits for
    that. Else the member's own checkpoint is given to the training function as a trial without steps.

    Attributes:
        times: how many times, at least 1.
        subject: the completed trial whose checkpoint it is; None for the member's own. Others than the
            member's own need a suite.
        reason: why, as data.
        state: new state of the strategy; None leaves it as it is.
    """

    times: int
    reason: JsonObject
    subject: Scored | None = None
    state: Json = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the member, or the whole study.

    Attributes:
        reason: why, as data.
        study: True ends the study; running trials finish.
        state: new state of the strategy; None leaves it as it is.
    """

    reason: JsonObject
    study: bool = False
    state: Json = None


Decision: TypeAlias = Start | Wait | Measure | Stop
