"""Trials, and cells of the matrix of checkpoints and eval tasks, as rows of tables and of JSON."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from phyla.evaluation import Cell, GroupValues
from phyla.records import Checkpoint, TrialRecord
from phyla.strategies import describe

if TYPE_CHECKING:
    import pandas as pd


def cell_row(one: Cell) -> dict[str, Any]:
    """Return a cell as a row; its values as an object by name."""
    estimate = one.estimate
    return {
        **_of_checkpoint(one.seen),
        "suite": one.suite,
        "task": one.task,
        "replicate": one.replicate,
        "status": one.status.value,
        "why": one.why,
        "partial": one.partial,
        "metric": one.metric,
        "value": None if estimate is None else estimate.value,
        "stderr": None if estimate is None else estimate.stderr,
        "n": one.n,
        "values": {name: asdict(found) for name, found in one.values.items()},
        **({"unread": one.unread} if one.unread else {}),
        "shards": one.shards,
        "shards_done": one.shards_done,
        "duration_s": one.duration_s,
        "attempts": one.attempts,
        "worker": one.worker,
        "written_at": one.seen.written_at,
        "evaluated_at": one.evaluated_at,
    }


def values_row(one: GroupValues) -> dict[str, Any]:
    """Return the aggregates of a group as a row; its values as an object by name."""
    return {
        **_of_checkpoint(one.seen),
        "suite": one.group.suite,
        "replicate": one.group.replicate,
        "partial": one.partial,
        "why": one.group.why,
        "best": one.best,
        "values": {name: asdict(found) for name, found in one.values.items()},
        "ended_at": one.group.ended_at,
    }


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a column per value instead of an object of them."""
    values = row.pop("values")
    row.pop("unread", None)
    return {
        **row,
        **{f"values.{name}": found["value"] for name, found in values.items()},
        **{f"stderr.{name}": found["stderr"] for name, found in values.items() if found["stderr"] is not None},
    }


def _of_checkpoint(seen: Checkpoint) -> dict[str, Any]:
    return {
        "step": seen.step,
        "branch": seen.branch,
        "checkpoint": seen.name,
        "index": seen.index,
        "number": seen.number,
        "trial": seen.trial,
    }


def trial_row(trial: TrialRecord) -> dict[str, Any]:
    """Return a trial as one flat row."""
    criteria: dict[str, Any] = {}
    if trial.criteria is not None:
        # What several metrics were judged as, which may be means of what was reported.
        criteria = {f"criteria.{name}": value for name, value in trial.criteria.values.items()}
        criteria["infeasible"] = trial.criteria.infeasible
    return {
        "trial": trial.id,
        "member": trial.member,
        "generation": trial.generation,
        "kind": trial.kind.value,
        "state": trial.state.value,
        "fitness": trial.fitness,
        "start_step": trial.start_step,
        "end_step": trial.end_step,
        "reached_step": trial.reached_step,
        "parent": trial.parent,
        "jump_from": trial.jump_from,
        "decision": describe(trial.reason),
        "seed": trial.seed,
        "attempts": trial.token,
        "failures": trial.failures,
        "error": trial.error,
        "stop_reason": None if trial.stop_reason is None else describe(trial.stop_reason),
        "checkpoint": trial.checkpoint,
        "worker": trial.worker,
        "created_at": trial.created_at,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
        **{f"params.{name}": value for name, value in trial.params.items()},
        **{f"metrics.{name}": value for name, value in trial.metrics.items()},
        **criteria,
    }


def frame(rows: Iterable[dict[str, Any]], *times: str) -> "pd.DataFrame":
    """Return rows as a pandas table, with columns that hold times as such."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError('dataframe() needs pandas: pip install "phyla[pandas]"') from error
    made = pd.DataFrame(list(rows))
    for column in times:
        if column in made:
            made[column] = pd.to_datetime(made[column], unit="s", utc=True)
    return made
