"""What simulated workers measure and hand in."""

from typing import Any, final

import numpy as np

from phyla.evaluation import suite_named
from phyla.machine import ClaimedEvaluation, Completion, Evaluated, Rules
from phyla.records import Checkpoint, EvalResult, EvalTaskKind, JsonObject, TrialKind, TrialRecord
from phyla.simulation.curve import Fitness
from phyla.simulation.workers import SimulatedWorker
from phyla.store import Store


@final
class Measurements:
    """Draws what is measured, and makes of it what real workers would hand in.

    Args:
        rules: what the study's decisions go by.
        fitness: what is measured.
        rng: where its noise comes from.
        store: where the study is.
        study: the study.
    """

    def __init__(self, rules: Rules, fitness: Fitness, rng: np.random.Generator, store: Store, study: int) -> None:
        self._rules = rules
        self._fitness = fitness
        self._rng = rng
        self._store = store
        self._study = study

    def completion(self, trial: TrialRecord, now: float) -> Completion:
        """Return what a worker hands in that has trained a trial to its end."""
        drawn = self._rules.reported_metrics
        values = {metric: (float(self._fitness(trial.params, trial.end_step, self._rng)),) for metric in drawn}
        checkpoint = None
        if trial.kind is TrialKind.TRAIN:
            name = f"{trial.id}.{trial.token}"
            checkpoint = Checkpoint(
                name=name,
                study=trial.study,
                trial=trial.id,
                step=trial.end_step,
                digest=name,
                size_bytes=0,
                created_at=now,
            )
        return Completion(
            trial=trial.id,
            token=trial.token,
            reached_step=trial.end_step,
            values=values,
            metrics={},
            checkpoint=checkpoint,
        )

    def evaluated(self, work: ClaimedEvaluation, worker: SimulatedWorker, now: float) -> Evaluated:
        """Return what a worker hands in that has done an eval task, or an aggregation."""
        task, seen = work.task, work.seen
        if task.kind is EvalTaskKind.AGGREGATE:
            values, best = self._aggregates(work)
            return Evaluated(task=task.id, group=task.group, token=task.token, values=values, best=best)
        result = EvalResult(
            identity=seen.identity,
            task_identity=task.identity,
            replicate=task.replicate,
            shard=task.shard,
            shards=task.shards,
            run=task.run,
            statistics={},
            duration_s=worker.busy_s,
            load_s=worker.load_s,
            worker=worker.name,
            created_at=now,
        )
        return Evaluated(task=task.id, group=task.group, token=task.token, result=result)

    def _aggregates(self, work: ClaimedEvaluation) -> tuple[JsonObject, bool]:
        """Return what the fitness and the suite's own objective are made of, and whether it is the best."""
        suite = suite_named(self._rules.suites, work.group.suite)
        names: set[str] = set() if suite.objective is None else {suite.objective.metric}
        fitness = self._rules.suite_fitness
        if fitness is not None and fitness.suite == suite.name:
            names.update(self._rules.aggregates.values())
        if not names or work.seen.trial is None:
            return {}, False
        with self._store.transaction(self._study, exclusive=False) as tx:
            value = float(self._fitness(tx.trial(work.seen.trial).params, work.seen.step, self._rng))
            evaluation = tx.evaluation()
            former = None if evaluation is None else evaluation.best_group(suite.name)
        values: JsonObject = {name: {"value": value, "stderr": None} for name in sorted(names)}
        if suite.objective is None:
            return values, False
        before: Any = None if former is None else former.values[suite.objective.metric]
        order = suite.objective.order(value)
        return values, before is None or order > suite.objective.order(before["value"])
