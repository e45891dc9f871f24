"""Simulated workers, and what they measure and hand in."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from phyla.evaluation import suite_named
from phyla.machine import Claimed, ClaimedEvaluation, Completion, Evaluated, TrainRules
from phyla.records import Checkpoint, EvalResult, JobKind, JsonObject, TrialRecord, WorkKind
from phyla.simulation.curve import Fitness
from phyla.store import Store


@final
@dataclass(slots=True)
class SimulatedWorker:
    """One slot for a worker: its process may be replaced, its place stays.

    Attributes:
        life: counts processes; what was planned for an earlier one does not happen.
        mark: counts pieces of work and interruptions, likewise.
        work: what it does now, since `began`; it loads for `load_s`, trains or evaluates for `busy_s`, saves for
            `save_s`.
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

    def steps_done(self, now: float) -> int:
        """Return the steps that its work has trained by now."""
        if not isinstance(self.work, Claimed) or not self.busy_s:
            return 0
        share = min(1.0, max(0.0, (now - self.began - self.load_s) / self.busy_s))
        return int(share * (self.work.trial.end_step - self.work.trial.start_step) + 1e-9)


@final
class Measurements:
    """Draws what is measured, and makes of it what real workers would hand in."""

    def __init__(
        self, rules: TrainRules, fitness: Fitness, rng: np.random.Generator, store: Store, study: int
    ) -> None:
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
        if trial.kind is JobKind.TRAIN:
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
        job, seen = work.job, work.seen
        if job.kind is JobKind.AGGREGATE:
            values, best, former = self._aggregates(work)
            return Evaluated(job=job.id, group=job.group, token=job.token, values=values, best=best, former=former)
        result = EvalResult(
            identity=seen.identity,
            task_identity=job.identity,
            replicate=job.replicate,
            shard=job.shard,
            shards=job.shards,
            study=job.study,
            statistics={},
            duration_s=worker.busy_s,
            load_s=worker.load_s,
            worker=worker.name,
            created_at=now,
        )
        return Evaluated(job=job.id, group=job.group, token=job.token, result=result)

    def _aggregates(self, work: ClaimedEvaluation) -> tuple[JsonObject, bool, int | None]:
        """Return what the objectives are made of, whether it is the best, and the id of the best one before."""
        suite = suite_named(self._rules.suites, work.group.suite)
        names: set[str] = set() if suite.objective is None else {suite.objective.metric}
        fitness = self._rules.suite_fitness
        if fitness is not None and fitness.suite == suite.name:
            names.update(self._rules.aggregates.values())
        if not names or work.seen.trial is None:
            return {}, False, None
        with self._store.reader(self._study) as reader:
            value = float(self._fitness(reader.trial(work.seen.trial).params, work.seen.step, self._rng))
            former = reader.best_group(suite.name)
        values: JsonObject = {name: {"value": value, "stderr": None} for name in sorted(names)}
        if suite.objective is None:
            return values, False, None
        before: Any = None if former is None else former.values[suite.objective.metric]
        order = suite.objective.order(value)
        best = before is None or order > suite.objective.order(before["value"])
        return values, best, None if former is None else former.id
