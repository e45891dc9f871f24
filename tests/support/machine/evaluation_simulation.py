"""Drive evaluation on a store with simulated workers: no processes, no files, no clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from phyla.controller import EVALUATE_ONLY, Controller, Sightings
from phyla.evaluation import EvalTask, Moments, Suite
from phyla.evaluation.recorder import encode
from phyla.machine import (
    Claimed,
    ClaimedEvaluation,
    Completion,
    Ended,
    Evaluated,
    Failure,
    TrainRules,
    WatchRules,
)
from phyla.records import (
    Checkpoint,
    CheckpointKind,
    EvalResult,
    Group,
    GroupState,
    JobKind,
    JobState,
    JsonObject,
    StudyKind,
    StudyRecord,
    TrialRecord,
    WorkKind,
)
from phyla.store import Reader, Store, open_store
from simulation import VirtualClock, stored_final
from stories import Stories

Values = Callable[[ClaimedEvaluation], float]


def nothing(_evaluation: object) -> None:
    """Stand in for an evaluation function that the simulation never calls."""


def suite_of(*names: str, shards: int = 1, **settings: object) -> Suite:
    """Return a suite of eval tasks with these names."""
    return replace(Suite("s", tuple(EvalTask(name, nothing, shards=shards) for name in names)), **settings)  # type: ignore[arg-type]


def evaluated(
    work: ClaimedEvaluation,
    value: float = 0.0,
    *,
    values: Mapping[str, float] | None = None,
    best: bool = False,
    worker: str = "w",
) -> Evaluated:
    """Return what a worker hands in for its work."""
    if work.job.kind is JobKind.AGGREGATE:
        named: JsonObject = {name: {"value": number, "stderr": 0.1} for name, number in (values or {}).items()}
        return Evaluated(job=work.job.id, group=work.job.group, token=work.job.token, values=named, best=best)
    result = EvalResult(
        identity=work.seen.identity,
        task_identity=work.job.identity,
        replicate=work.job.replicate,
        shard=work.job.shard,
        shards=work.job.shards,
        study=work.job.study,
        statistics={"x": encode(Moments.of([value]), lambda kind: kind.__name__)},
        worker=worker,
        created_at=0.0,
    )
    return Evaluated(job=work.job.id, group=work.job.group, token=work.job.token, result=result)


def failed(
    work: ClaimedEvaluation, error: str = "boom", *, gone: str | None = None, retryable: bool = True
) -> Failure:
    """Return the report of a failed attempt."""
    return Failure(job=work.job.id, token=work.job.token, error=error, retryable=retryable, gone=gone)


@dataclass
class WatchedRun:
    """A directory's run in memory."""

    suites: Sequence[Suite]
    clock: VirtualClock = field(default_factory=VirtualClock)
    lease_s: float = 60.0
    store: Store = field(init=False)
    stories: Stories = field(init=False)
    run: StudyRecord = field(init=False)
    controller: Controller = field(init=False)
    sightings: Sightings = field(init=False)

    def __post_init__(self) -> None:
        self.store = open_store("memory://", clock=self.clock)
        self.stories = Stories(self.store)
        self.run = self.store.create_study("run", {}, kind=StudyKind.DIRECTORY, location="/data")
        self.restart()

    def restart(self) -> None:
        rules = WatchRules(suites=tuple(self.suites), lease_s=self.lease_s)
        self.controller = self.stories.listen(Controller(self.store, self.run.id, rules))
        self.sightings = Sightings(self.store, self.run, self.suites)

    def observe(self, *steps: int, rewinds: bool = True, **changes: object) -> None:
        found = [
            Checkpoint(
                study=self.run.id,
                kind=CheckpointKind.SEEN,
                name=f"step-{step}",
                step=step,
                identity=f"id-{step}",
                fingerprint=f"f-{step}",
                path=f"/data/step-{step}",
                written_at=self.clock.now,
            )
            for step in steps
        ]
        changed = [replace(each, **changes) for each in found]  # type: ignore[arg-type]
        self.sightings.observe(changed, rewinds=rewinds)

    def claim(self, worker: str = "w", holding: int | None = None) -> ClaimedEvaluation | None:
        _, claimed, _ = self.controller.complete((), worker, 1, kinds=EVALUATE_ONLY, holding=holding)
        found = claimed[0] if claimed else None
        assert not isinstance(found, Claimed)
        return found

    def hand_in(self, *done: Evaluated) -> list[object]:
        with self.store.reader(self.run.id) as reader:
            former = {suite.name: reader.best_group(suite.name) for suite in self.suites}
            suites = {one.group: reader.group(one.group).suite for one in done}
        best = {name: None if group is None else group.id for name, group in former.items()}
        answers, _, _ = self.controller.complete([replace(one, former=best[suites[one.group]]) for one in done])
        return list(answers)

    def work(self, count: int | None = None) -> list[str]:
        """Do all that can be done; return `step/task` in the order of the claims."""
        order: list[str] = []
        while count is None or len(order) < count:
            work = self.claim()
            if work is None:
                break
            order.append(f"{work.seen.step}/{work.job.task or 'aggregate'}")
            self.hand_in(evaluated(work, 1.0))
        return order

    def reader(self) -> Reader:
        with self.store.reader(self.run.id) as reader:
            return reader

    def groups(self, step: int | None = None) -> list[Group]:
        reader = self.reader()
        return [group for group in reader.groups() if step is None or reader.seen(group.seen).step == step]

    def status(self, step: int) -> tuple[GroupState, str | None]:
        group = self.groups(step)[-1]
        return group.state, group.why


@dataclass
class EvaluatedStudy:
    """A study in memory whose fitness comes from a suite; weights are numbers, kept by checkpoint name."""

    rules: TrainRules
    train: Callable[[float, TrialRecord], float]
    measure: Callable[[float, ClaimedEvaluation], float]
    seed: int = 0
    clock: VirtualClock = field(default_factory=VirtualClock)
    weights: dict[str, float] = field(default_factory=dict)
    fails: Callable[[ClaimedEvaluation], bool] = lambda work: False
    also: Callable[[float], Mapping[str, float]] = lambda value: {}

    def __post_init__(self) -> None:
        self.store = open_store("memory://", clock=self.clock)
        self.stories = Stories(self.store)
        size = self.rules.strategy.population_size
        self.study = self.store.create_study("simulated", stored_final(self.rules), self.seed, size)
        self.controller = self.stories.listen(Controller(self.store, self.study.id, self.rules))
        self.measured: dict[int, float] = {}

    def claim(self, *kinds: WorkKind, worker: str = "h:0:1:1") -> Claimed | ClaimedEvaluation | Ended | None:
        wanted = frozenset(kinds or (WorkKind.TRAIN, WorkKind.EVALUATE))
        _, claimed, rest = self.controller.complete((), worker, 1, kinds=wanted)
        if claimed:
            return claimed[0]
        return rest if isinstance(rest, Ended) else None

    def do(self, work: Claimed | ClaimedEvaluation) -> None:
        if isinstance(work, Claimed):
            self.controller.complete([self.trained(work.trial)])
        elif self.fails(work):
            self.controller.fail(failed(work))
        else:
            self.controller.complete([self.scored(work)])

    def trained(self, trial: TrialRecord) -> Completion:
        weights = self.train(self.weights.get(trial.parent_checkpoint or "", 0.0), trial)
        name = f"{trial.id}.{trial.token}"
        self.weights[name] = weights
        checkpoint = Checkpoint(
            name=name,
            study=trial.study,
            trial=trial.id,
            step=trial.end_step,
            identity=f"d{trial.id}",
            size_bytes=1,
            created_at=self.clock.now,
        )
        return Completion(
            trial=trial.id,
            token=trial.token,
            reached_step=trial.end_step,
            values={},
            metrics={},
            checkpoint=checkpoint,
        )

    def scored(self, work: ClaimedEvaluation) -> Evaluated:
        if work.job.kind is JobKind.AGGREGATE:
            value = self.measured[work.group.id]
            return evaluated(work, values={"x_mean": value, **self.also(value)})
        self.measured[work.group.id] = self.measure(self.weights[work.seen.name], work)
        return evaluated(work, self.measured[work.group.id])

    def run_serially(self, limit: int = 100_000) -> Ended:
        for _ in range(limit):
            work = self.claim()
            if isinstance(work, Ended):
                return work
            assert work is not None, "nothing to do, and not ended"
            self.do(work)
        raise AssertionError("the study does not end")

    def run_at_random(self, workers: int, rng: np.random.Generator, kinds: Sequence[frozenset[WorkKind]]) -> Ended:
        """Several workers at once, whose work ends in random order; `kinds` per worker."""
        held: dict[int, Claimed | ClaimedEvaluation] = {}
        for _ in range(100_000):
            for worker in range(workers):
                if worker not in held:
                    work = self.claim(*kinds[worker], worker=f"h:{worker}:1:1")
                    if isinstance(work, Ended):
                        return work
                    if work is not None:
                        held[worker] = work
            assert held, "nobody has anything to do, and the study has not ended"
            self.do(held.pop(int(rng.choice(list(held)))))
        raise AssertionError("the study does not end")

    def trials(self) -> list[TrialRecord]:
        with self.store.reader(self.study.id) as reader:
            return [trial for trial in reader.trials() if trial.state is JobState.COMPLETED]

    def groups(self) -> list[Group]:
        with self.store.reader(self.study.id) as reader:
            return list(reader.groups())
