"""Studies with a final on a store, driven at random through claims, failures, lost leases and damage."""

import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from evaluation_simulation import evaluated, nothing
from phyla.controller import Controller
from phyla.errors import LeaseLost
from phyla.evaluation import EvalTask, Suite
from phyla.machine import (
    Claimed,
    ClaimedEvaluation,
    Completion,
    Ended,
    Failure,
    Idle,
    TrainRules,
    Winner,
    find_winner,
)
from phyla.records import (
    Checkpoint,
    GroupState,
    JobKind,
    Maximize,
    Member,
    MemberState,
    StudyState,
    TrialRecord,
    WorkKind,
)
from phyla.space import Float, Space
from phyla.store import Store
from phyla.strategies import PBT, Final, FromSuite, Perturb, Truncation
from phyla.strategies.fitness import Last
from simulation import stored_final

BOTH = frozenset({WorkKind.TRAIN, WorkKind.EVALUATE})
Work: TypeAlias = Claimed | ClaimedEvaluation


def rules(
    *, size: int = 4, trials: int = 3, suite: bool = False, final: Final | None = None, **more: Any
) -> TrainRules:
    """Return rules of a synchronous study with a final; eval tasks have as many attempts as trials."""
    attempts = {"max_attempts": more["max_attempts"]} if "max_attempts" in more else {}
    return TrainRules(
        space=Space(h=Float(0.1, 1.0)),
        objective=Maximize("x"),
        strategy=PBT(
            population_size=size,
            steps_per_trial=1,
            total_steps=trials,
            exploit=Truncation(0.25),
            explore=Perturb(),
            quorum=1.0,
            fitness=FromSuite("s", "x_mean", max_lag=0) if suite else Last(),
        ),
        suites=(Suite("s", (EvalTask("a", nothing, **attempts),)),) if suite else (),
        final=final or Final(candidates=size, measurements=4 * size),
        **more,
    )


def measures(work: Work) -> bool:
    """Return whether it is a measurement of a final."""
    if isinstance(work, Claimed):
        return work.trial.kind is JobKind.FINAL
    return work.group.guaranteed == "finalist"


@dataclass
class Rates:
    """How often a worker does something other than to finish its work."""

    fails: float = 0.0
    breaks: float = 0.0
    """Fails for good."""
    releases: float = 0.0
    dies: float = 0.0
    damages: float = 0.0
    diverges: float = 0.0
    spoils: bool = False
    """Measures nan in the final."""
    spared: int | None = None
    """The trial whose measurements are not spoiled."""


def noise(seed: int) -> float:
    return 2 * random.Random(seed).gauss(0, 1)


@dataclass
class HeldStudy:
    """A study whose scores are the weights plus noise that the seed of a trial or of a repetition determines."""

    store: Store
    rules: TrainRules
    seed: int
    workers: int = 3
    rates: Rates = field(default_factory=Rates)
    name: str = "study"
    score: Callable[[TrialRecord, float], float] = lambda trial, weights: weights + noise(trial.seed)

    def __post_init__(self) -> None:
        size = self.rules.strategy.population_size
        study = self.store.create_study(self.name, stored_final(self.rules), self.seed, size)
        self.id = study.id
        self.random = random.Random(self.seed)
        self.controller = Controller(self.store, self.id, self.rules)
        self.weights: dict[str, float] = {}
        self.held: dict[str, Work] = {}
        self.values: dict[int, float] = {}
        self.planned = 0 if self.rules.final is None else self.rules.final.measurements

    def run(self, until: Callable[["HeldStudy"], bool] = lambda _study: False) -> Ended | None:
        """Run to the end, or until something is the case after a step."""
        for _ in range(20_000):
            worker = f"host:{self.random.randrange(self.workers)}:1"
            if worker in self.held:
                self.end(worker, self.held.pop(worker))
            else:
                ended = self._claim(worker)
                if ended is not None and not self.held:
                    self._check_ended(ended)
                    return ended
            if until(self):
                return None
        raise AssertionError("the study does not end")

    def _claim(self, worker: str) -> Ended | None:
        _, claimed, rest = self.controller.complete((), worker, 1, kinds=BOTH)
        for work in claimed:
            self.held[worker] = work
            self._check_claimed(work)
        if isinstance(rest, Ended):
            # An evaluation may still run for a candidate that is out.
            assert not any(isinstance(work, Claimed) and measures(work) for work in self.held.values())
            return rest
        assert claimed or self.held, f"nothing runs, and nothing can be claimed: {rest}"
        assert claimed or isinstance(rest, Idle), rest
        return None

    def _check_claimed(self, work: Work) -> None:
        if not measures(work):
            return
        assert not any(member.state is MemberState.RUNNING for member in self.members())
        with self.store.reader(self.id) as reader:
            assert all(trial.kind is JobKind.FINAL for trial in reader.unfinished())
            queued = [group for group in reader.groups() if group.state is GroupState.QUEUED]
            assert all(group.guaranteed == "finalist" for group in queued)

    def end(self, worker: str, work: Work) -> None:
        rates, draw = self.rates, self.random.random()
        job = work.trial if isinstance(work, Claimed) else work.job
        before = self.members()
        name = work.trial.parent_checkpoint if isinstance(work, Claimed) else work.seen.name
        if self.random.random() < rates.damages and measures(work):
            damage = self.random.choice((None, "a byte differs"))
            self.controller.fail(
                Failure(job=job.id, token=job.token, error="unreadable", gone=name, damage=damage)
            )
            return
        if draw < rates.fails:
            self.controller.fail(Failure(job=job.id, token=job.token, error="boom"))
        elif (draw := draw - rates.fails) < rates.breaks:
            self.controller.fail(Failure(job=job.id, token=job.token, error="boom", retryable=False))
        elif (draw := draw - rates.breaks) < rates.releases:
            self.controller.release(job.id, job.token)
        elif (draw := draw - rates.releases) < rates.dies:
            self.controller.lose_worker(worker, "it is gone", counts=False)
        else:
            done = self.completion(work.trial) if isinstance(work, Claimed) else self._evaluated(work)
            answers, _, _ = self.controller.complete([done])
            assert not isinstance(answers[0], LeaseLost)
        if measures(work):
            assert self.members() == before, "a measurement changed a member"

    def completion(self, trial: TrialRecord) -> Completion:
        weights = self.weights.get(trial.parent_checkpoint or "", 0.0)
        if not trial.measures:
            weights += float(trial.params["h"])  # type: ignore[arg-type]
        value = self.score(trial, weights)
        if random.Random(trial.seed).random() < self.rates.diverges or (
            trial.measures and self._spoils(trial.parent)
        ):
            value = math.nan
        name = f"{trial.id}.{trial.token}"
        self.weights[name] = weights
        row = Checkpoint(
            name=name,
            study=trial.study,
            trial=trial.id,
            step=trial.end_step,
            identity=f"d{trial.id}",
            size_bytes=1,
            created_at=0.0,
        )
        return Completion(
            trial=trial.id,
            token=trial.token,
            reached_step=trial.end_step,
            values={} if self.rules.suites else {"x": [value]},
            metrics={} if self.rules.suites else {"x": value},
            checkpoint=None if trial.measures else row,
        )

    def _evaluated(self, work: ClaimedEvaluation) -> Any:
        if work.job.kind is JobKind.AGGREGATE:
            return evaluated(work, values={"x_mean": self.values[work.group.id]})
        weights = self.weights[work.seen.name]
        value = weights + noise(round(1e9 * weights) + work.group.replicate)
        self.values[work.group.id] = math.nan if measures(work) and self._spoils(work.seen.trial) else value
        return evaluated(work, self.values[work.group.id])

    def _spoils(self, candidate: int | None) -> bool:
        return self.rates.spoils and candidate != self.rates.spared

    def _check_ended(self, ended: Ended) -> None:
        before = self.trials()
        assert self.controller.claim("late")[0] == []
        assert self.trials() == before
        assert all(trial.ended_at is not None for trial in before)
        if ended.state is StudyState.COMPLETED:
            measured = self.measurements()
            lost = {trial.parent for trial in measured if trial.order is None or not math.isfinite(trial.order)}
            with self.store.reader(self.id) as reader:
                damaged = {group.seen for group in reader.groups() if group.state is GroupState.GONE}
            # Retries are no other trials. Another one may take the place of each that drops out.
            assert len(measured) <= self.planned * (1 + len(lost) + len(damaged))

    def members(self) -> list[Member]:
        with self.store.reader(self.id) as reader:
            return list(reader.members())

    def trials(self) -> list[TrialRecord]:
        with self.store.reader(self.id) as reader:
            return list(reader.trials())

    def measurements(self) -> list[TrialRecord]:
        return [trial for trial in self.trials() if trial.kind is JobKind.FINAL]

    def winner(self) -> Winner | None:
        with self.store.reader(self.id) as reader:
            return find_winner(reader, maximize=True)

    def named(self) -> tuple[object, ...]:
        """Return who won, and with which measurements, by names that do not depend on the order of trials."""
        winner = self.winner()
        assert winner is not None
        trial = winner.trial
        return trial.member, trial.generation, trial.fitness, winner.measurements, winner.expected


def change_final(study: HeldStudy, final: Final) -> None:
    """Give a study another final, as `phyla final` does."""
    from phyla.controller import StudyRecords

    study.rules = replace(study.rules, final=final)
    study.planned += final.measurements
    with study.store.reader(study.id) as reader:
        config = reader.study().config
    StudyRecords(study.store, study.id).store_config({**config, "final": asdict(final)}, config)
    study.controller = Controller(study.store, study.id, study.rules)
