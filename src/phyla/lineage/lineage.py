"""Lineage: the tree of a study's trials that made weights, with the jumps of exploits."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import final

from phyla.errors import UsageError
from phyla.lineage.schedule import Schedule
from phyla.lineage.strict import strict
from phyla.records import Json, TrialKind, TrialRecord, TrialState

SCHEMA = 1
WORST = float("-inf")


@final
class Lineage:
    """Where the weights of every training trial came from.

    Trials form trees by `parent`, the trial whose weights they started from. A jump leads from the trial that a
    member abandoned to the one that replaced it. Nothing here recurses, so chains may be of any depth.

    Args:
        trials: all trials of one study, in any order; trials that only measure are left out. Imports are in it.

    Raises:
        UsageError: a trial refers to one that is not among them.

    Source:
        Li et al. 2019, arXiv 1902.01894 (trials, replay); jumps, true ancestors and elites after Orion.
    """

    __slots__ = ("_children", "_elites", "_paths", "_trials")

    def __init__(self, trials: Iterable[TrialRecord]) -> None:
        chosen = sorted((t for t in trials if t.kind is not TrialKind.MEASURE), key=lambda trial: trial.id)
        self._trials = {trial.id: trial for trial in chosen}
        self._children: defaultdict[int, list[int]] = defaultdict(list)
        self._elites: dict[int, int | None] = {}
        self._paths: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
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
            self._elites[trial.id] = self._best_so_far(trial)
            if trial.state is TrialState.COMPLETED:
                self._paths[trial.member].append((trial.generation, trial.id))

    def _best_so_far(self, trial: TrialRecord) -> int | None:
        ancestor = self._true_ancestor(trial)
        before = None if ancestor is None else self._elites[ancestor]
        mine = _order(trial)
        if mine == WORST or (before is not None and _order(self._trials[before]) >= mine):
            return before
        return trial.id

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
        """Return a training trial by id.

        Raises:
            UsageError: there is none of that id.
        """
        found = self._trials.get(trial)
        if found is None:
            raise UsageError(
                f"there is no training trial {trial!r} in this study; it has {len(self._trials):,} of them"
            )
        return found

    def parent(self, trial: int) -> TrialRecord | None:
        """Return the trial whose weights this one started from; None if it started fresh.

        Raises:
            UsageError: there is no such trial.
        """
        parent = self.trial(trial).parent
        return None if parent is None else self._trials[parent]

    def children(self, trial: int) -> tuple[TrialRecord, ...]:
        """Return the trials that started from this one's weights, by id.

        Raises:
            UsageError: there is no such trial.
        """
        found = self._children.get(self.trial(trial).id, ())
        return tuple(self._trials[child] for child in found)

    def roots(self) -> tuple[TrialRecord, ...]:
        """Return the trials that started fresh, by id."""
        return tuple(trial for trial in self if trial.parent is None)

    @property
    def jumps(self) -> tuple[tuple[int, int], ...]:
        """Pairs of the trial that was abandoned and the one that replaced it, by the latter's id."""
        return tuple((trial.jump_from, trial.id) for trial in self if trial.jump_from is not None)

    def ancestry(self, trial: int) -> tuple[TrialRecord, ...]:
        """Return the trials that trained this one's weights, root first, itself last.

        Raises:
            UsageError: there is no such trial.
        """
        path = [self.trial(trial)]
        while (parent := path[-1].parent) is not None:
            path.append(self._trials[parent])
        path.reverse()
        return tuple(path)

    def true_ancestor(self, trial: int) -> TrialRecord | None:
        """Return the trial this one would have continued from had there been no jump.

        It is of the same member; None in generation 0. The same holds for broken trials: it is the one
        that is examined again.

        Raises:
            UsageError: there is no such trial.
        """
        ancestor = self._true_ancestor(self.trial(trial))
        return None if ancestor is None else self._trials[ancestor]

    @staticmethod
    def _true_ancestor(trial: TrialRecord) -> int | None:
        if trial.generation == 0:
            return None
        return trial.parent if trial.jump_from is None else trial.jump_from

    def elite(self, trial: int) -> TrialRecord | None:
        """Return the best trial on the path that the trial's member took, up to and including it.

        Only finite fitness counts; among equals the earliest is chosen. None if there is none.

        Raises:
            UsageError: there is no such trial.
        """
        best = self._elites[self.trial(trial).id]
        return None if best is None else self._trials[best]

    def elites(self, generation: int | None = None) -> dict[int, TrialRecord]:
        """Return the elite of every member's path.

        Args:
            generation: the last generation that is looked at; None looks at all.

        Returns:
            Elites by member. A member that has no finite fitness so far is absent.
        """
        found: dict[int, TrialRecord] = {}
        for member, path in sorted(self._paths.items()):
            if generation is None:
                known = len(path)
            else:
                known = bisect_right(path, generation, key=lambda entry: entry[0])
            best = self._elites[path[known - 1][1]] if known else None
            if best is not None:
                found[member] = self._trials[best]
        return found

    def best(self) -> TrialRecord | None:
        """Return the completed trial with the best finite fitness, the earliest among equals; or None.

        Where goals are traded off, the best in the first goal, and among equals in the next.
        """
        best = max(self, key=lambda trial: (_order(trial), _goals(trial), -trial.id), default=None)
        return None if best is None or _order(best) == WORST else best

    def schedule(self, trial: int) -> Schedule:
        """Return the hyperparameters along the weights' ancestry, root to this trial.

        A trial that has not completed counts up to the step it is asked to reach.

        Raises:
            UsageError: there is no such trial, or its ancestry does not join.
        """
        return Schedule.along(self.ancestry(trial))

    def to_json(self) -> dict[str, Json]:
        """Return the whole lineage as strict JSON: nodes are trials, edges are of kind parent or jump."""
        edges: list[Json] = []
        for trial in self:
            for kind, other in (("parent", trial.parent), ("jump", trial.jump_from)):
                if other is not None:
                    edges.append({"kind": kind, "from": other, "to": trial.id})
        return {"schema": SCHEMA, "nodes": [_node(trial) for trial in self], "edges": edges}


def _node(trial: TrialRecord) -> Json:
    return {
        "id": trial.id,
        "member": trial.member,
        "generation": trial.generation,
        "state": trial.state.value,
        "parent": trial.parent,
        "jump_from": trial.jump_from,
        "params": strict(trial.params),
        "fitness": strict(trial.fitness),
        "start_step": trial.start_step,
        "reached_step": trial.reached_step,
        "checkpoint": trial.checkpoint,
        "reason": strict(trial.reason),
        **({} if trial.stop_reason is None else {"stop_reason": strict(trial.stop_reason)}),
        **({} if trial.criteria is None else {"criteria": strict(trial.criteria.to_json())}),
    }


def _goals(trial: TrialRecord) -> tuple[float, ...]:
    return () if trial.criteria is None else trial.criteria.orders


def _order(trial: TrialRecord) -> float:
    """Sort key; the worst for trials that have not completed, or not with a finite fitness."""
    if trial.state is not TrialState.COMPLETED or trial.order is None:
        return WORST
    return trial.order if abs(trial.order) != float("inf") and trial.order == trial.order else WORST
