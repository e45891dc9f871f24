"""A watched run for tests of results: the real controller and evaluator; its checkpoints have no files."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np

import phyla
from phyla import plugins, worker
from phyla.client import Client
from phyla.controller import EVALUATE_ONLY, Controller, Sightings
from phyla.errors import CheckpointMissing
from phyla.evaluation import Policy, Suite
from phyla.machine import Claimed, ClaimedEvaluation, Evaluated, Failure, WatchRules
from phyla.records import Checkpoint, CheckpointKind, StudyKind
from phyla.store import Store, open_store
from phyla.study import Evaluations, Places
from phyla.worker import Evaluator

START = 1_767_600_000.0


class VirtualClock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@final
class NoFiles:
    """Sources whose checkpoints are all there, except for those that were taken away."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def path(self, seen: Checkpoint) -> Path:
        self.check(seen)
        return Path(seen.path)

    def check(self, seen: Checkpoint, *, again: bool = False) -> None:
        if seen.name in self.taken:
            raise CheckpointMissing(f"{seen.name} was deleted")


@phyla.eval_task(tags=["in"], shards=2)
def clean(evaluation: phyla.Evaluation) -> None:
    rng = np.random.default_rng([evaluation.seed, evaluation.shard.index])
    better = 1 - math.exp(-evaluation.checkpoint.step / 2000)
    wrong = 0.3 if evaluation.checkpoint.name.endswith("bad") else 0.0
    samples = better - wrong + 0.05 * rng.normal(size=20)
    evaluation.record(accuracy=samples, surprise=phyla.evaluation.Perplexity.of(1 - samples.clip(0, 1)))
    evaluation.save(samples=samples, note="text is no array")


@phyla.eval_task(tags=["out"])
def noisy(evaluation: phyla.Evaluation) -> None:
    if "broken" in evaluation.checkpoint.name:
        raise ValueError("the model gave [nan]")
    rng = np.random.default_rng(evaluation.seed)
    better = 0.8 - 0.7 * math.exp(-evaluation.checkpoint.step / 1000)
    evaluation.record(accuracy=better + 0.1 * rng.normal(size=30))


@phyla.eval_task(tags=["out"], max_attempts=1)
def shifted(evaluation: phyla.Evaluation) -> None:
    evaluation.record(accuracy=0.6 - 0.5 * math.exp(-evaluation.checkpoint.step / 3000), n=50)


@phyla.eval_task(tags=["out"])
def labels(evaluation: phyla.Evaluation) -> None:
    right = min(9, evaluation.checkpoint.step // 400)
    evaluation.record(accuracy=[float(i < right) for i in range(10)])


HELDOUT = Suite(
    "heldout",
    (clean, noisy, shifted, labels),
    objective=phyla.Maximize("accuracy_mean"),
    aggregates=(
        phyla.evaluation.Mean("accuracy"),
        phyla.evaluation.Mean("accuracy", "out"),
        phyla.evaluation.Worst("accuracy"),
    ),
)
SPARSE = Suite("sparse", (clean,), policy=Policy(every=3))


@final
class EvaluatedRun:
    """A run whose checkpoints come, and are evaluated, as a test says."""

    def __init__(
        self,
        folder: Path,
        suites: Sequence[Suite] = (HELDOUT, SPARSE),
        *,
        store: Store | None = None,
        name: str = "watched",
        clock: VirtualClock | None = None,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.places = Places.of(folder)
        self.store = store or open_store("memory://", clock=self.clock)
        config = {"suites": [plugins.encode(suite, plugins.reference_here) for suite in suites]}
        location = str(folder / "checkpoints")
        self.run = self.store.create_study(name, config, kind=StudyKind.DIRECTORY, location=location)
        self.controller = Controller(self.store, self.run.id, WatchRules(suites=tuple(suites)))
        self.sightings = Sightings(self.store, self.run, suites)
        self.sources = NoFiles()
        self.evaluations = Evaluations(self.store, self.run, self.places)
        needed = worker.EvaluatedStudy(
            suites=tuple(suites), sources=self.sources, outputs=self.places.folder("outputs", name)
        )
        self._evaluator = Evaluator(
            Client(self.store, self.run, WatchRules(suites=tuple(suites))),
            {self.run.id: needed},
            work_root=folder / "work",
            name="host:0:1:1",
            clock=self.clock,
            timer=self.clock,
        )

    def sees(self, name: str, step: int, *, error: str | None = None, identity: str | None = None) -> None:
        """A checkpoint comes into sight."""
        self.clock.now += 30
        self.sightings.observe(
            [
                Checkpoint(
                    study=self.run.id,
                    kind=CheckpointKind.SEEN,
                    name=name,
                    step=step,
                    identity=identity or f"{name}:{self.clock.now}",
                    fingerprint=identity or f"{name}:{self.clock.now}",
                    path=f"/nowhere/{name}",
                    written_at=self.clock.now - 5,
                    error=error,
                )
            ]
        )

    def claim(self) -> ClaimedEvaluation | None:
        """A worker takes the next eval task."""
        _, claimed, _ = self.controller.complete([], "host:0:1:1", 1, kinds=EVALUATE_ONLY)
        found = claimed[0] if claimed else None
        assert not isinstance(found, Claimed)
        return found

    def work(self, count: int = 1_000_000) -> int:
        """Do up to so many eval tasks and aggregations; return how many there were."""
        for done in range(count):
            work = self.claim()
            if work is None:
                return done
            self.clock.now += 2
            answer = self._evaluator.run(work)
            if isinstance(answer, Failure):
                self.controller.fail(answer)
            else:
                assert isinstance(answer, Evaluated)
                self.controller.complete([answer])
        return count


def eventful(folder: Path, *, store: Store | None = None) -> EvaluatedRun:
    """Return a run in which everything happened once."""
    run = EvaluatedRun(folder, store=store)
    for step in range(200, 3001, 200):
        run.sees(f"step_{step}", step)
        run.work()
    run.sees("step_3200_bad", 3200)
    run.work()
    run.sees("step_3400_broken", 3400)
    run.work()
    run.sees("step_3600_torn", 3600, error="the file ends early")
    run.sees("step_3800", 3800)
    run.sources.taken.add("step_3800")
    run.work()
    run.sees("step_2000_again", 2000)
    run.sees("step_2200_again", 2200)
    run.work()
    run.sees("step_2400_again", 2400)
    run.work(2)
    run.claim()
    run.sees("step_2600_again", 2600)
    return run
