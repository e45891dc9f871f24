"""Lineage: the tree of a study's trials that made weights, with the jumps of exploits."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, final

from phyla.errors import UsageError
from phyla.lineage.schedule import Schedule
from phyla.records import WORST, JobKind, JobState, Json, TrialRecord, strict

SCHEMA = 1

NODE = (
    *("id", "member", "generation", "state", "parent", "jump_from", "params", "fitness"),
    *("start_step", "reached_step", "checkpoint", "reason"),
)
"""What a node of the exported tree says of its trial."""


@final
class Lineage:
    """Where the weights of every training trial came from.

    Trials form trees by `parent`, the trial whose weights they started from. A jump leads from the trial that a
    member abandoned to the one that replaced it. Chains may be of any depth.

    Args:
        trials: all trials of one study, in any order; trials that only measure are left out. Imports are in it.

    Raises:
        UsageError: a trial refers to one that is not among them, or a method was asked about another.

    Source: Li et al. 2019, arXiv 1902.01894 (trials, replay); jumps and elites after Orion.
    """

    __slots__ = ("_children", "_trials")

    def __init__(self, trials: Iterable[TrialRecord]) -> None:
        chosen = sorted((t for t in trials if t.kind is not JobKind.MEASURE), key=lambda trial: trial.id)
        self._trials = {trial.id: trial for trial in chosen}
        self._children: defaultdict[int, list[int]] = defaultdict(list)
        for trial in chosen:
            for name, other in (("parent", trial.parent), ("jump_from", trial.jump_from)):
                # An origin was completed before its child was decided, so its id is smaller: no cycles.
                if other is not None and (other not in self._trials or other >= trial.id):
                    raise UsageError(
                        f"trial {trial.id} has {name} {other}, which is no earlier training trial among those "
                        "given; a lineage needs all trials of the study"
                    )
            if trial.parent is not None:
                self._children[trial.parent].append(trial.id)

    def __len__(self) -> int:
        return len(self._trials)

    def __contains__(self, trial: object) -> bool:
        return trial in self._trials

    def __iter__(self) -> Iterator[TrialRecord]:
        """Iterate over the training trials by id."""
        return iter(self._trials.values())

    def __repr__(self) -> str:
        return f"<Lineage of {len(self):,} trials, {len(self.jumps):,} jumps>"

    def trial(self, trial: int) -> TrialRecord:
        """Return a training trial by id."""
        if trial not in self._trials:
            raise UsageError(f"there is no training trial {trial!r} in this study; it has {len(self):,} of them")
        return self._trials[trial]

    def parent(self, trial: int) -> TrialRecord | None:
        """Return the trial whose weights this one started from; None if it started fresh."""
        parent = self.trial(trial).parent
        return None if parent is None else self._trials[parent]

    def children(self, trial: int) -> tuple[TrialRecord, ...]:
        """Return the trials that started from this one's weights, by id."""
        return tuple(self._trials[child] for child in self._children.get(self.trial(trial).id, ()))

    def roots(self) -> tuple[TrialRecord, ...]:
        """Return the trials that started fresh, by id."""
        return tuple(trial for trial in self if trial.parent is None)

    @property
    def jumps(self) -> tuple[tuple[int, int], ...]:
        """Pairs of the trial that was abandoned and the one that replaced it, by the latter's id."""
        return tuple((trial.jump_from, trial.id) for trial in self if trial.jump_from is not None)

    def ancestry(self, trial: int) -> tuple[TrialRecord, ...]:
        """Return the trials that trained this one's weights, root first, itself last."""
        path = [self.trial(trial)]
        while (parent := path[-1].parent) is not None:
            path.append(self._trials[parent])
        return tuple(reversed(path))

    def elites(self) -> dict[int, TrialRecord]:
        """Return the best trial of every member that has a finite fitness, the earliest among equals."""
        found: dict[int, TrialRecord] = {}
        for trial in sorted(self, key=lambda trial: (-_order(trial), trial.id)):
            if _order(trial) > WORST:
                found.setdefault(trial.member, trial)
        return dict(sorted(found.items()))

    def best(self) -> TrialRecord | None:
        """Return the completed trial with the best finite fitness, the earliest among equals; or None.

        Where goals are traded off, the best in the first goal, and among equals in the next.
        """

        def place(trial: TrialRecord) -> tuple[float, tuple[float, ...], int]:
            return _order(trial), () if trial.criteria is None else trial.criteria.orders, -trial.id

        best = max(self, key=place, default=None)
        return None if best is None or _order(best) == WORST else best

    def schedule(self, trial: int) -> Schedule:
        """Return the hyperparameters along the weights' ancestry, root to this trial; see `Schedule.along`."""
        return Schedule.along(self.ancestry(trial))

    def to_json(self) -> dict[str, Json]:
        """Return the whole lineage as strict JSON: nodes are trials, edges are of kind parent or jump."""
        edges: list[Json] = [
            {"kind": kind, "from": other, "to": trial.id}
            for trial in self
            for kind, other in (("parent", trial.parent), ("jump", trial.jump_from))
            if other is not None
        ]
        return {"schema": SCHEMA, "nodes": [_node(trial) for trial in self], "edges": edges}


def _node(trial: TrialRecord) -> Json:
    node: dict[str, Any] = {name: getattr(trial, name) for name in NODE}
    node["state"] = trial.state.value
    if trial.stop_reason is not None:
        node["stop_reason"] = trial.stop_reason
    if trial.criteria is not None:
        node["criteria"] = trial.criteria.to_json()
    return strict(node)


def _order(trial: TrialRecord) -> float:
    """Sort key; the worst for trials that have not completed, or not with a finite fitness."""
    if trial.state is not JobState.COMPLETED or trial.order is None or not math.isfinite(trial.order):
        return WORST
    return trial.order
