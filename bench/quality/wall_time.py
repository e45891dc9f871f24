"""Equal wall time with one, several and many workers: `python bench/quality/wall_time.py`.

The real controller decides, on a store in memory and a virtual clock; members train for real, one at a time. A
step takes a second, give or take a tenth; with several workers, one takes three. All contenders may spend the same
steps. The time that counts is that in which the workers could train all of them if none ever waited. About ten
minutes of one processor.
"""

import hashlib
import heapq
import inspect
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import schedule_tasks
from comparing import Budget
from contenders import asha
from lockstep import Arrays, Rows, Task, batches, constant, worlds
from schedule_tasks import TASKS
from schedules import complete, make_parser, pbt, search, seeds_from
from tables import rows as table_rows
from wall_time_page import table

import phyla
from machine import facts
from phyla import plugins
from phyla.controller import Controller
from phyla.machine import Claimed, Completion, Ended, TrainRules
from phyla.records import Checkpoint, TrialRecord
from phyla.store import open_store
from phyla.strategies import MultiFrequency, Strategy

FIRST_SEED, SEEDS, BATCH = 3000, 10, 5
WORKERS, SLOW, SPREAD = (1, 4, 16), 3.0, 0.1
PBT = "PBT, quorum 0.8"
TASK_NAMES = ("even noise", "ravine")


def _asha(task: Task) -> Strategy:
    budget = Budget(members=task.members, steps_per_trial=task.intervals[1], total_steps=task.steps)
    return replace(asha(budget, 3), quorum=0.0)


CONTENDERS: dict[str, Callable[[Task], Strategy]] = {
    PBT: lambda task: replace(pbt(task), quorum=0.8),
    "PBT, quorum 1.0": pbt,
    "MF-PBT, quorum 0.8": lambda task: replace(pbt(task, exploit=MultiFrequency((1, 5))), quorum=0.8),
    "initiator PBT": lambda task: phyla.InitiatorPBT(
        population_size=task.members, steps_per_trial=task.intervals[1], total_steps=task.steps
    ),
    "random search": search,
    "ASHA": _asha,
}


class Trainer:
    """Trains the members of one study, one trial at a time."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed = task, seed
        self._world, self._states = worlds(task, [seed]), dict[int, Arrays]()

    def train(self, trial: TrialRecord) -> list[tuple[int, float, float]]:
        """Return steps of the trial, the score, higher is better, and the value, at each interval."""
        task, at, noted = self._task, trial.start_step, list[tuple[int, float, float]]()
        state = self._fresh(trial.member) if trial.parent is None else self._states[trial.parent]
        params = {name: np.array([value]) for name, value in trial.params.items()}
        rng = np.random.default_rng([trial.seed, 1])
        rows = Rows(world=self._world, seeds=np.zeros(1, int), total=task.steps, params=params, decay=constant)
        while at < trial.end_step:
            count = min(trial.end_step - at, task.intervals[1])
            rows = replace(rows, ages=np.array([float(at)]), count=count, drawn=task.draw(rng, count, 1))
            state = task.train(state, rows)
            at += count
            order = float(task.score(state, rows)[0]) * (1 if task.maximize else -1)
            noted.append((at - trial.start_step, order, float(task.value(state, rows)[0])))
        self._states[trial.id] = state
        return noted

    def _fresh(self, member: int) -> Arrays:
        world = {name: values[0] for name, values in self._world.items()}
        return self._task.fresh(world, np.random.default_rng([self._seed, 0, member]), 1)


class Study:
    """One study on a virtual clock that begins at 0."""

    def __init__(self, task: Task, strategy: Strategy, workers: int, seed: int) -> None:
        rules = TrainRules(space=task.space, objective=phyla.Maximize("score"), strategy=strategy, lease_s=1e9)
        self.now, self.noted = 0.0, list[tuple[float, float, float]]()
        store = open_store("memory://", clock=lambda: self.now)
        study = store.create_study("wall time", {}, seed, strategy.population_size).id
        self._controller = Controller(store, study, rules)
        self._trainer, self._rng = Trainer(task, seed), np.random.default_rng([seed, workers])
        self._slow = 0 if workers > 1 else None
        self._running: list[tuple[float, int, Claimed, float]] = []
        self._idle = list(range(workers))

    def run(self) -> None:
        """Run it to the end."""
        self._wake()
        while self._running:
            self.now, worker, work, order = heapq.heappop(self._running)
            if not self._ask(worker, [self._completion(work.trial, order)]):
                self._idle.append(worker)
            self._wake()

    def _wake(self) -> None:
        """Let idle workers ask, until one gets nothing: the others would get nothing, too."""
        while self._idle and self._ask(self._idle[0]):
            self._idle.pop(0)

    def value(self, at: float) -> float:
        """Return what the best score by a time is worth."""
        return max((order, value) for time, order, value in self.noted if time <= at)[1]

    def _ask(self, worker: int, done: Sequence[Completion] = ()) -> bool:
        """Submit a trial and claim the next; return whether the worker need not ask again."""
        _, claimed, rest = self._controller.complete(done, f"host:{worker}:{worker}:1", 1)
        for work in claimed:
            assert isinstance(work, Claimed)
            self._begin(worker, work)
        return bool(claimed) or isinstance(rest, Ended)

    def _begin(self, worker: int, work: Claimed) -> None:
        noted = self._trainer.train(work.trial)
        step_s = self._rng.lognormal(-(SPREAD**2) / 2, SPREAD) * (SLOW if worker == self._slow else 1.0)
        self.noted += [(self.now + steps * step_s, order, value) for steps, order, value in noted]
        steps, order, _ = noted[-1]
        heapq.heappush(self._running, (self.now + steps * step_s, worker, work, order))

    def _completion(self, trial: TrialRecord, order: float) -> Completion:
        name = f"{trial.id}.{trial.token}"
        checkpoint = Checkpoint(
            name=name,
            study=trial.study,
            trial=trial.id,
            step=trial.end_step,
            identity=name,
            size_bytes=1,
            created_at=self.now,
        )
        return Completion(
            trial=trial.id,
            token=trial.token,
            reached_step=trial.end_step,
            values={"score": [order]},
            metrics={"score": order},
            checkpoint=checkpoint,
        )


def deadline(task: Task, workers: int) -> float:
    """Return the seconds in which so many workers could train all steps."""
    speed = workers - 1 + 1 / SLOW if workers > 1 else 1.0
    return task.members * task.steps / speed


@dataclass(frozen=True, kw_only=True)
class Job:
    """Some studies of a contender.

    Attributes:
        task: name of the task.
        label: name of the contender.
        workers: how many.
        seeds: of the studies.
    """

    task: str
    label: str
    workers: int
    seeds: tuple[int, ...]

    @property
    def key(self) -> str:
        """Digest of everything that the results depend on, but the version of phyla."""
        strategy = plugins.encode(CONTENDERS[self.label](TASKS[self.task]))
        parts = [inspect.getsource(part) for part in (schedule_tasks, Trainer, Study, deadline)]
        settings = [self.task, self.label, self.workers, self.seeds, SLOW, SPREAD, strategy, parts]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:24]

    def run(self) -> list[dict[str, Any]]:
        """Return what the studies came to."""
        return [self._outcome(seed) for seed in self.seeds]

    def _outcome(self, seed: int) -> dict[str, Any]:
        """Return the value of the best score at half the time and at the time, and when the study ended."""
        began, task = time.process_time(), TASKS[self.task]
        study, until = Study(task, CONTENDERS[self.label](task), self.workers, seed), deadline(task, self.workers)
        with np.errstate(all="ignore"):
            study.run()
        return {
            "task": self.task,
            "label": self.label,
            "workers": self.workers,
            "seed": seed,
            "half": study.value(until / 2),
            "value": study.value(until),
            "end": study.now / until,
            "process_s": time.process_time() - began,
        }


def tables(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one table for each task and number of workers."""
    cells = [(task, workers) for task in TASK_NAMES for workers in WORKERS]
    return [_table(task, workers, [row for row in found if (row["task"], row["workers"]) == (task, workers)])
            for task, workers in cells]  # fmt: skip


def _table(task: str, workers: int, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    finals = [{**row, "final": {"report": row["value"]}, "age": 0, "spent": 0} for row in found]
    rows = table_rows(finals, PBT, maximize=TASKS[task].maximize)
    for row in rows:
        mine = [other for other in found if other["label"] == row["label"]]
        row |= {name: float(np.median([other[name] for other in mine])) for name in ("half", "end")}
    return {"task": task, "workers": workers, "deadline": deadline(TASKS[task], workers), "rows": rows}


def main() -> None:
    """Run what is missing, print the tables, and write the JSON."""
    options = make_parser(__doc__, SEEDS).parse_args()
    seeds = seeds_from(FIRST_SEED, options)
    jobs = [
        Job(task=task, label=label, workers=workers, seeds=tuple(batch))
        for batch in batches(seeds, BATCH)
        for task in TASK_NAMES
        for workers in WORKERS
        for label in CONTENDERS
    ]
    found = complete(jobs, options.folder / "wall_time.jsonl", options.processes)
    document = {
        "machine": facts(),
        "seeds": list(seeds),
        "process_s": sum(row["process_s"] for row in found),
        "tables": tables(found),
    }
    for task in TASK_NAMES:
        print(f"\n{task}\n\n{table(document, task)}")
    (options.folder / "wall_time.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
