"""Trials and attempts as arrays, so that figures of a long study need little memory.

Records are read in a stream and not kept in memory; the few that a figure shows singly are read again, by id.
"""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from phyla.records import (
    WORST,
    Attempt,
    AttemptState,
    Criteria,
    Goal,
    Group,
    GroupState,
    JobState,
    JsonObject,
    Phase,
    TrialRecord,
)

PHASES = (Phase.TRAINING, Phase.LOADING, Phase.SAVING, Phase.EVALUATING, Phase.CONTROL, Phase.WAITING)
"""All phases, in the order in which they are shown."""

Read: TypeAlias = Callable[[Sequence[int]], Sequence[TrialRecord]]
"""Returns trials by id, in the order of the ids."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Trials:
    """The training trials of a study: counts of all, and of the completed ones, by id, an array per field."""

    id: Any
    member: Any
    progress: Any  # the member's clock at the end of the trial
    start: Any  # step of the weights at the start
    end: Any  # and at the end
    parent: Any  # index into these arrays of the trial whose weights it started from; -1 for none
    jump: Any  # index of the trial that was abandoned for these weights; -1 for none
    fitness: Any  # nan unless it is finite and the trial feasible
    order: Any  # sort key of the fitness, higher is better; -inf unless it is finite
    infeasible: Any  # whether a constraint is violated
    created: Any  # when it was decided, in seconds since the epoch
    ended: Any  # when it completed; nan if unknown
    params: Sequence[JsonObject]  # equal hyperparameters are one object
    values: Any  # a row per trial, a column per goal of a trade-off: its metric; nan if it has no criteria
    orders: Any  # like `values`: the sort keys
    stopped: Any  # a row per trial that a stopping rule ended: when, and the steps that it trained
    counts: Counter[JobState]  # how many training trials are in each state
    newest: Mapping[int, int]  # id of every member's newest trial, in whatever state
    last_ended: float  # when the last trial in any state ended; -inf without trials
    read: Read

    def __len__(self) -> int:
        return len(self.id)

    @classmethod
    def of(cls, records: Iterable[TrialRecord], read: Read, goals: Sequence[Goal] = ()) -> "Trials":
        """Return the columns of all trials of a study.

        Args:
            records: the trials by id; those that only measure are ignored.
            read: returns whole trials.
            goals: the goals of the trade-off.
        """
        whole = {name: array("q") for name in ("id", "member", "progress", "start", "end", "parent", "jump")}
        real = {name: array("d") for name in ("fitness", "order", "created", "ended")}
        infeasible, values, orders, stopped = array("b"), array("d"), array("d"), array("d")
        columns: list[array[Any]] = [*whole.values(), *real.values()]
        params: list[JsonObject] = []
        known: dict[str, JsonObject] = {}
        clock: dict[int, int] = {}
        counts: Counter[JobState] = Counter()
        newest: dict[int, int] = {}
        last_ended = -math.inf
        for trial in records:
            if trial.measures:
                continue
            counts[trial.state] += 1
            newest[trial.member] = trial.id
            last_ended = max(last_ended, -math.inf if trial.ended_at is None else trial.ended_at)
            if trial.stop_reason is not None:
                stopped.extend((trial.ended_at or 0.0, trained(trial)))
            if trial.state is not JobState.COMPLETED:
                continue
            end = trial.start_step + trained(trial)
            progress = clock[trial.member] = max(clock.get(trial.member, 0), trial.age) + trained(trial)
            fitness = finite_fitness(trial)
            row = (
                *(
                    trial.id,
                    trial.member,
                    progress,
                    trial.start_step,
                    end,
                    trial.parent or 0,
                    trial.jump_from or 0,
                ),
                math.nan if fitness is None else fitness,
                trial.order if trial.order is not None and math.isfinite(trial.order) else WORST,
                trial.created_at,
                math.nan if trial.ended_at is None else trial.ended_at,
            )
            for column, value in zip(columns, row, strict=True):
                column.append(value)
            # The key is the text, because 1, 1.0 and True compare as equal.
            params.append(known.setdefault(repr(trial.params), trial.params))
            criteria = trial.criteria or Criteria()
            judged = len(criteria.orders) == len(goals)
            infeasible.append(bool(criteria.infeasible))
            values.extend([criteria.values[goal.metric] if judged else math.nan for goal in goals])
            orders.extend(criteria.orders if judged else [math.nan] * len(goals))
        arrays = {name: np.array(column) for name, column in (whole | real).items()}
        for name in ("parent", "jump"):
            arrays[name] = _places(arrays["id"], arrays[name])
        return cls(
            **arrays,
            infeasible=np.array(infeasible, dtype=bool),
            params=params,
            values=np.array(values).reshape(len(params), len(goals)),
            orders=np.array(orders).reshape(len(params), len(goals)),
            stopped=np.array(stopped).reshape(-1, 2),
            counts=counts,
            newest=newest,
            last_ended=last_ended,
            read=read,
        )

    def records(self, places: Iterable[int]) -> Sequence[TrialRecord]:
        """Return the complete records of the trials at these indices."""
        return self.read([int(self.id[place]) for place in places])


def _places(ids: Any, wanted: Any) -> Any:
    """Return the index of each wanted id; -1 for an id that is missing."""
    if not len(ids):
        return wanted
    places = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
    return np.where(ids[places] == wanted, places, -1)


def trained(trial: TrialRecord) -> int:
    """Return the steps that a trial trained if it completed or a stopping rule ended it, else 0."""
    return 0 if trial.reached_step is None else max(0, trial.reached_step - trial.start_step)


def finite_fitness(trial: TrialRecord) -> float | None:
    """Return the fitness of a completed trial if it is a finite number and the trial is feasible."""
    feasible = trial.criteria is None or not trial.criteria.infeasible
    known = trial.fitness is not None and math.isfinite(trial.fitness)
    return trial.fitness if trial.state is JobState.COMPLETED and feasible and known else None


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Attempts:
    """Attempts at trials or eval tasks, an array per field."""

    begin: Any  # when it was claimed, in seconds since the epoch
    end: Any  # when it ended; nan while it runs
    worker: Any  # index of its worker in `workers`
    lost: Any  # whether it failed or its worker was lost
    seconds: Any  # a row per attempt, a column per phase in `PHASES`; nan if unknown; all training if stopped
    workers: Sequence[str]

    def __len__(self) -> int:
        return len(self.begin)

    @classmethod
    def of(cls, records: Iterable[Attempt]) -> "Attempts":
        """Return the columns of attempts."""
        begin, end, seconds, worker, lost = array("d"), array("d"), array("d"), array("i"), array("b")
        workers: dict[str, int] = {}
        names, unknown = [phase.value for phase in PHASES], [math.nan] * len(PHASES)
        for attempt in records:
            begin.append(attempt.claimed_at)
            end.append(math.nan if attempt.ended_at is None else attempt.ended_at)
            worker.append(workers.setdefault(attempt.worker, len(workers)))
            lost.append(attempt.state in (AttemptState.FAILED, AttemptState.LOST))
            known = attempt.timings
            if known is None and attempt.state is AttemptState.CANCELLED and attempt.ended_at is not None:
                known = {Phase.TRAINING: attempt.ended_at - attempt.claimed_at}
            seconds.extend(unknown if known is None else [known.get(name, 0.0) for name in names])
        return cls(
            begin=np.array(begin),
            end=np.array(end),
            worker=np.array(worker),
            lost=np.array(lost, dtype=bool),
            seconds=np.array(seconds).reshape(len(begin), len(PHASES)),
            workers=[*workers],
        )

    @property
    def timed(self) -> Any:
        """Whether the phases of each attempt were measured."""
        return ~np.isnan(self.seconds[:, 0])


@final
class Waits(NamedTuple):
    """When groups of one suite were queued and when they ended, in seconds since the epoch; nan if not yet."""

    queued: Any
    ended: Any


def waits_of(groups: Iterable[Group]) -> dict[str, Waits]:
    """Return when groups waited, by suite; skipped groups are ignored."""
    times: dict[str, Waits] = defaultdict(lambda: Waits(array("d"), array("d")))
    for group in groups:
        if group.state is not GroupState.SKIPPED:
            times[group.suite].queued.append(group.created_at)
            # The clock may have been set back in between.
            ended = math.nan if group.ended_at is None else max(group.created_at, group.ended_at)
            times[group.suite].ended.append(ended)
    return {suite: Waits(*map(np.array, waits)) for suite, waits in times.items()}
