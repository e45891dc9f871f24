"""What was evaluated, as rows of a table or of JSON."""

from typing import Any

from phyla.evaluation import Cell, Estimate, GroupValues


def cell_row(one: Cell) -> dict[str, Any]:
    """Return a cell as a row; its values as an object by name."""
    estimate = one.estimate
    return {
        "step": one.seen.step,
        "branch": one.seen.branch,
        "checkpoint": one.seen.name,
        "index": one.seen.index,
        "number": one.seen.number,
        "trial": one.seen.trial,
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
        "values": {name: _estimate(found) for name, found in one.values.items()},
        **({"unread": one.unread} if one.unread else {}),
        "shards": one.shards,
        "shards_done": one.shards_done,
        "duration_s": one.duration_s,
        "attempts": one.attempts,
        "worker": one.worker,
        "written_at": one.seen.written_at,
        "evaluated_at": one.evaluated_at,
    }


def _estimate(found: Estimate) -> dict[str, float | None]:
    return {"value": found.value, "stderr": found.stderr}


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a column per value instead of an object of them."""
    values = row.pop("values")
    row.pop("unread", None)
    return {
        **row,
        **{f"values.{name}": found["value"] for name, found in values.items()},
        **{f"stderr.{name}": found["stderr"] for name, found in values.items() if found["stderr"] is not None},
    }


def values_row(one: GroupValues) -> dict[str, Any]:
    """Return the aggregates of a group as a row; its values as an object by name."""
    return {
        "step": one.seen.step,
        "branch": one.seen.branch,
        "checkpoint": one.seen.name,
        "index": one.seen.index,
        "number": one.seen.number,
        "trial": one.seen.trial,
        "suite": one.group.suite,
        "replicate": one.group.replicate,
        "partial": one.partial,
        "why": one.group.why,
        "best": one.best,
        "values": {name: _estimate(found) for name, found in one.values.items()},
        "ended_at": one.group.ended_at,
    }
