"""Drive a controller on a store with simulated workers: no processes, no files, no clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from phyla.controller import Controller
from phyla.errors import LeaseLost
from phyla.machine import Claimed, Completion, Ended, Failure, Idle, TrainRules
from phyla.records import Checkpoint, JsonObject, StudyRecord, TrialRecord
from phyla.store import Store, open_store
from stories import Stories

Train = Callable[[object, TrialRecord], tuple[object, float | Mapping[str, float]]]
"""(weights of the parent or None, trial) -> (weights, the metric Q or several metrics)."""


class VirtualClock:
    """A clock that only moves when told to."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def stored_final(rules: TrainRules) -> JsonObject:
    """Return a configuration that has the final of a study, and nothing else."""
    return {} if rules.final is None else {"final": asdict(rules.final)}


@dataclass
class Simulation:
    """A study in memory, with weights kept by checkpoint name."""

    rules: TrainRules
    train: Train
    seed: int = 0
    reached: Callable[[TrialRecord], int] = lambda trial: trial.end_step
    clock: VirtualClock = field(default_factory=VirtualClock)
    store: Store = field(init=False)
    stories: Stories = field(init=False)
    weights: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = self.rules.strategy.population_size
        self.store = open_store("memory://", clock=self.clock)
        self.stories = Stories(self.store)
        self.study: StudyRecord = self.store.create_study("simulated", stored_final(self.rules), self.seed, size)
        self.controller = self.new_controller()

    def new_controller(self) -> Controller:
        return self.stories.listen(Controller(self.store, self.study.id, self.rules))

    def completion(self, trial: TrialRecord) -> Completion:
        parent = None if trial.parent_checkpoint is None else self.weights[trial.parent_checkpoint]
        weights, found = self.train(parent, trial)
        metrics = dict(found) if isinstance(found, Mapping) else {"Q": found}
        name = f"{trial.id}.{trial.token}"
        self.weights[name] = weights
        return Completion(
            trial=trial.id,
            token=trial.token,
            reached_step=self.reached(trial),
            values={metric: [value] for metric, value in metrics.items()},
            metrics=metrics,
            checkpoint=Checkpoint(
                name=name,
                study=trial.study,
                trial=trial.id,
                step=self.reached(trial),
                identity="d" * 8,
                size_bytes=1,
                created_at=self.clock.now,
            ),
        )

    def run_serially(self) -> Ended:
        """One worker, to the end."""
        done: Sequence[Completion] = ()
        while True:
            _, claimed, rest = self.controller.complete(done, "worker", 1)
            if not claimed:
                assert isinstance(rest, Ended), rest
                return rest
            (work,) = claimed
            assert isinstance(work, Claimed)
            done = [self.completion(work.trial)]

    def run(self, workers: int, rng: np.random.Generator, *, failure_rate: float = 0.0) -> Ended:
        """Several workers that take turns at random, to the end."""
        busy: dict[str, Claimed] = {}
        names = [f"worker-{index}" for index in range(workers)]
        while True:
            name = str(rng.choice(names))
            work = busy.pop(name, None)
            if work is not None:
                if rng.random() < failure_rate:
                    failure = Failure(job=work.trial.id, token=work.trial.token, error="simulated")
                    self.controller.fail(failure)
                else:
                    answers, _, _ = self.controller.complete([self.completion(work.trial)])
                    assert not isinstance(answers[0], LeaseLost)
                continue
            claimed, rest = self.controller.claim(name)
            if claimed:
                work = claimed[0]
                assert isinstance(work, Claimed)
                busy[name] = work
            elif isinstance(rest, Ended):
                if not busy:
                    return rest
            else:
                assert isinstance(rest, Idle)
                assert busy, f"nothing runs and nothing can be claimed: {rest.why}"
