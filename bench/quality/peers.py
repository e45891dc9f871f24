"""The schedulers of Ray Tune and Syne Tune, their own code, on three tasks: `python bench/quality/peers.py`.

Their schedulers decide, and `lockstep` trains, as for phyla's strategies. The tuner around a scheduler is a loop
of this file: a worker for each member, members of equal speed, whose results arrive in a random order.

Syne Tune is not among the dependencies of phyla: `pip install --no-deps syne-tune==0.16.0`. What this needs of its
dependencies comes with phyla's `dev` extra; all of them take 400 MB.
"""

import argparse
import hashlib
import inspect
import json
import logging
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import lockstep
import numpy as np
import schedule_tasks
import summaries
from comparing import RESULTS
from in_step import advance
from lockstep import Task
from schedule_tasks import TASKS
from schedules import BATCH, CONTENDERS, COSINE, FIRST_SEED, PBT, SEEDS, jobs_for, outcomes, pbt
from tables import number
from tables import rows as table_rows

from phyla.records import Member, Scored
from phyla.strategies import Start

Params = dict[str, Any]
AGAINST = (PBT, "PBT, defaults of Ray Tune", "MF-PBT, short interval", COSINE)
"""Contenders of `schedules.py` that the peers are compared with."""
COMPARED = ("momentum", "digits", "policy")
"""Two, three and two hyperparameters; an exact, a held-out and a noisy score."""
TITLE = "Peers' own code"
TEXT = """The tables above run the settings of Ray Tune in phyla. Here the schedulers of Ray Tune {ray} and
Syne Tune {syne} decide themselves, and the same code trains: equal steps, members, seeds, initial weights and
initial hyperparameters, and the interval of `PBT`. Quantiles, factors and chances of resampling are the defaults
of the peers. Every member has a worker; all are equally fast, and their results arrive in a random order. The
three tasks have more than a learning rate to search; one has an exact score, one a held-out and one a noisy score.
*p* is adjusted for fewer contenders than above. `MF-PBT, short interval` decides more often than the others.

- `Ray Tune, PBT` has the defaults. It decides at every result, so new scores are compared with old ones, and it
  may leave the ranges of hyperparameters.
- `Ray Tune, PBT, in step, clipped` waits for all members (`synch=True`) and clips (`custom_explore_fn`), as
  phyla's `PBT, defaults of Ray Tune` does.
- `Syne Tune, PBT` has the defaults. It decides at every result, and clips. A stopped trial leaves the comparison
  until its successor reports, so more members copy.

A member that copies from one that has not reported in this round starts from weights of the round before.

{pb2}

`python bench/quality/peers.py` repeats this, in {minutes:.0f} minutes of one processor."""


PB2_TEXT = """`Ray Tune, PB2` takes {seconds:.0f} seconds a study, too long for a table. On {seeds} seeds of
*momentum* its median is {median}, that of `PBT` on these seeds {pbt}."""


class Peer(Protocol):
    """A peer's scheduler with the trials of one population."""

    def report(self, index: int, state: Scored) -> None:
        """Tell the scheduler what a member's trial came to."""
        ...

    def next(self, index: int) -> tuple[Scored, Params]:
        """Return the weights and hyperparameters that a member goes on with."""
        ...


Make = Callable[[Task, int, Sequence[Params]], Peer]
"""Makes a peer of a task and a seed with the initial hyperparameters of all members."""


class PeerStudy:
    """The study of one seed, whose decisions a peer makes. It starts as phyla's population of that seed does."""

    def __init__(self, task: Task, seed: int, make: Make) -> None:
        self.seed, self.size, self.spent, self._task = seed, task.members, 0, task
        self._begun = lockstep.Recording(task, pbt(task), seed).starts()
        self._peer = make(task, seed, [dict(start.params) for _, start in self._begun])
        self._arrivals = np.random.default_rng([seed, 4])
        self.members = [member for member, _ in self._begun]

    def starts(self) -> list[tuple[Member, Start]]:
        """Return what members do next."""
        if self.members[0].progress == 0:
            return self._begun
        if self.members[0].progress >= self._task.steps:
            return []
        for index in self._arrivals.permutation(self.size).tolist():
            self._peer.report(index, _published(self.members[index]))
        return [(member, self._start(member)) for member in self.members]

    def _start(self, member: Member) -> Start:
        weights, params = self._peer.next(member.index)
        steps = self._task.intervals[1]
        exploited = weights.member != member.index
        return Start(
            weights=weights,
            params=params,
            params_from=weights.trial,
            steps=steps,
            reason={"decision": "exploit" if exploited else "continue"},
            exploited=exploited,
        )

    def complete(self, starts: Sequence[tuple[Member, Start]], orders: Sequence[float]) -> None:
        """Publish the scores, higher is better."""
        self.members = [advance(*pair, order, self.size) for pair, order in zip(starts, orders, strict=True)]
        self.spent += sum(start.steps for _, start in starts)


def _published(member: Member) -> Scored:
    assert member.head is not None
    return member.head


def score(state: Scored) -> float:
    """Return what a peer sees, higher is better; lost weights have a low score, not an infinite one."""
    assert state.order is not None
    return max(state.order, -1e12)


class RayTune:
    """A scheduler of Ray Tune, and what its controller does for it, with a worker for each trial."""

    search_alg = None

    def __init__(self, task: Task, seed: int, params: Sequence[Params], make: Callable[[Task], Any]) -> None:
        from ray.tune.experiment import Trial

        self._random = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()
        self._scheduler = make(task)
        self._trials = [
            Trial("member", stub=True, trial_id=str(index), experiment_tag=str(index), config=dict(config))
            for index, config in enumerate(params)
        ]
        self._running = dict[Any, Scored]()
        with self._seeded():
            for trial in self._trials:
                self._scheduler.on_trial_add(self, trial)
            self._resume()

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """Lend this study's random numbers to the global generators that Ray draws from."""
        numpys: Any = np.random
        outside = random.getstate(), numpys.get_state()
        random.setstate(self._random[0])
        numpys.set_state(self._random[1])
        try:
            yield
        finally:
            self._random = random.getstate(), numpys.get_state()
            random.setstate(outside[0])
            numpys.set_state(outside[1])

    def report(self, index: int, state: Scored) -> None:
        """Let the scheduler decide, do what it decides, and start the trials that wait."""
        trial = self._trials[index]
        self._running[trial] = state
        with self._seeded():
            result = {"score": score(state), "step": state.age, "training_iteration": state.age}
            if self._scheduler.on_trial_result(self, trial, result) == "PAUSE":
                self.pause_trial(trial)
            trial.run_metadata.last_result = result
            self._resume()

    def _resume(self) -> None:
        while trial := self._scheduler.choose_trial_to_run(self):
            self._running[trial] = trial.checkpoint
            trial.set_status(trial.RUNNING)

    def next(self, index: int) -> tuple[Scored, Params]:
        """Return the weights and hyperparameters that a trial runs with."""
        trial = self._trials[index]
        assert trial.status == trial.RUNNING
        return self._running[trial], {name: float(value) for name, value in trial.config.items()}

    # What schedulers call. A checkpoint is where the weights come from.

    def get_trials(self) -> list[Any]:
        """Return all trials."""
        return self._trials

    def get_live_trials(self) -> list[Any]:
        """Return the trials that have not ended."""
        return self._trials

    def pause_trial(self, trial: Any, should_checkpoint: bool = True) -> None:
        """Pause a trial, by default with a checkpoint."""
        if should_checkpoint:
            from ray.train._internal.session import _TrainingResult

            result = _TrainingResult(checkpoint=self._schedule_trial_save(trial), metrics={})
            trial.run_metadata.checkpoint_manager._latest_checkpoint_result = result
        trial.set_status(trial.PAUSED)

    def _schedule_trial_save(self, trial: Any, result: Any = None) -> Any:
        return self._running[trial]


def _ray_settings(task: Task) -> dict[str, Any]:
    """Return what the user has to say; and that no file is written."""
    logging.getLogger("ray.tune").setLevel(logging.WARNING)
    common = {"time_attr": "step", "metric": "score", "mode": "max", "log_config": False}
    return {**common, "perturbation_interval": task.intervals[1]}


def ray_pbt(task: Task, **settings: Any) -> Any:
    """Ray Tune's PBT."""
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    space = {
        name: (tune.loguniform if parameter.log else tune.uniform)(parameter.low, parameter.high)
        for name, parameter in _floats(task).items()
    }
    return PopulationBasedTraining(**_ray_settings(task), hyperparam_mutations=space, **settings)


def ray_pbt_in_step(task: Task) -> Any:
    """Ray Tune's PBT that waits for all members and stays in the ranges."""

    def clip(config: Params) -> Params:
        bounds = _floats(task)
        return {name: min(max(value, bounds[name].low), bounds[name].high) for name, value in config.items()}

    return ray_pbt(task, synch=True, custom_explore_fn=clip)


def ray_pb2(task: Task) -> Any:
    """Ray Tune's PB2."""
    from ray.tune.schedulers.pb2 import PB2

    bounds: dict[str, Any] = {name: [parameter.low, parameter.high] for name, parameter in _floats(task).items()}
    return PB2(**_ray_settings(task), hyperparam_bounds=bounds)


def _floats(task: Task) -> dict[str, Any]:
    return dict(task.space.parameters)


class SyneTune:
    """Syne Tune's PBT, and what its tuner does for it, with a worker for each member."""

    def __init__(self, task: Task, seed: int, params: Sequence[Params]) -> None:
        from syne_tune.config_space import loguniform, uniform
        from syne_tune.optimizer.schedulers.pbt import PopulationBasedTraining

        self._scheduler = PopulationBasedTraining(
            {
                name: (loguniform if parameter.log else uniform)(parameter.low, parameter.high)
                for name, parameter in _floats(task).items()
            },
            metric="score",
            time_attr="step",
            max_t=task.steps,
            do_minimize=False,
            random_seed=seed,
            population_size=task.members,
            perturbation_interval=task.intervals[1],
            searcher_kwargs={"points_to_evaluate": [dict(config) for config in params]},
        )
        self._weights = dict[int, Scored]()
        self._trials = [self._trial(number, self._scheduler.suggest()) for number in range(task.members)]
        self._count = task.members

    def _trial(self, number: int, suggestion: Any) -> Any:
        from syne_tune.backend.trial_status import Trial

        trial = Trial(trial_id=number, config=suggestion.config.copy(), creation_time=datetime.now(UTC))
        if suggestion.checkpoint_trial_id is not None:
            self._weights[number] = self._weights[suggestion.checkpoint_trial_id]
        self._scheduler.on_trial_add(trial)
        return trial

    def report(self, index: int, state: Scored) -> None:
        """Let the scheduler decide; a new trial takes the worker of one that is stopped."""
        trial = self._trials[index]
        self._weights[trial.trial_id] = state
        decision = self._scheduler.on_trial_result(trial, {"score": score(state), "step": state.age})
        if decision == "STOP":
            self._scheduler.on_trial_remove(trial)
            self._trials[index] = self._trial(self._count, self._scheduler.suggest())
            self._count += 1

    def next(self, index: int) -> tuple[Scored, Params]:
        """Return the weights and hyperparameters that a worker's trial runs with."""
        trial = self._trials[index]
        return self._weights[trial.trial_id], {name: float(value) for name, value in trial.config.items()}


@dataclass(frozen=True, kw_only=True)
class PeerContender:
    """A peer's scheduler.

    Attributes:
        make: makes it.
        package: whose code it is.
        sources: of this file, what its results depend on.
        only: names of the tasks that it takes part in.
        seeds: on how many, if it is expensive.
        batch: seeds that are trained together.
    """

    make: Make
    package: str
    sources: tuple[Callable[..., Any], ...]
    only: tuple[str, ...] = COMPARED
    seeds: int = SEEDS
    batch: int = BATCH


def _ray(scheduler: Callable[[Task], Any], **settings: Any) -> PeerContender:
    sources = (RayTune, _ray_settings, ray_pbt, scheduler)
    return PeerContender(make=partial(RayTune, make=scheduler), package="ray", sources=sources, **settings)


PB2, PB2_SEEDS = "Ray Tune, PB2", 3
PEERS = {
    "Ray Tune, PBT": _ray(ray_pbt),
    "Ray Tune, PBT, in step, clipped": _ray(ray_pbt_in_step),
    PB2: _ray(ray_pb2, only=("momentum",), seeds=PB2_SEEDS, batch=1),
    "Syne Tune, PBT": PeerContender(make=SyneTune, package="syne-tune", sources=(SyneTune,)),
}


@dataclass(frozen=True, kw_only=True)
class PeerJob:
    """Some studies of a peer that are trained together.

    Attributes:
        task: name of the task.
        label: name of the peer.
        seeds: of the studies.
    """

    task: str
    label: str
    seeds: tuple[int, ...]

    @property
    def key(self) -> str:
        """Digest of everything that the results depend on, but the version of phyla."""
        peer = PEERS[self.label]
        sources: list[Any] = [lockstep, schedule_tasks, PeerStudy, score, *peer.sources]
        settings = {
            "source": [hashlib.sha256(inspect.getsource(part).encode()).hexdigest() for part in sources],
            "version": version(peer.package),
            "label": self.label,
            "task": self.task,
            "seeds": self.seeds,
        }
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:24]

    def run(self) -> list[dict[str, Any]]:
        """Return what the studies came to."""
        began, task = time.process_time(), TASKS[self.task]
        studies = [PeerStudy(task, seed, PEERS[self.label].make) for seed in self.seeds]
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            ended = lockstep.run(task, CONTENDERS[PBT].way(task), self.seeds, studies)
        seconds = (time.process_time() - began) / len(self.seeds)
        return [{"task": self.task, "label": self.label, "process_s": seconds, **row} for row in ended]


def peer_jobs(seeds: Sequence[int], labels: Sequence[str] = (), tasks: Sequence[str] = ()) -> list[PeerJob]:
    """Return the jobs of some peers on some tasks, all by default."""
    return [
        PeerJob(task=task, label=label, seeds=tuple(batch))
        for task in tasks or COMPARED
        for label in labels or PEERS
        if task in PEERS[label].only
        for batch in lockstep.batches(seeds[: PEERS[label].seeds], PEERS[label].batch)
    ]


def tables(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a table for each task, against phyla's PBT."""
    written = []
    for name in COMPARED:
        task = TASKS[name]
        compared = [{**row, "final": {"report": row["value"]}} for row in rows if row["task"] == name]
        better = "higher" if task.maximize else "lower"
        caption = f"*{name}*: {task.title}. {task.report.capitalize()}; {better} is better."
        written.append(
            {"caption": caption, "rows": table_rows(compared, PBT, maximize=task.maximize), "notes": {}}
        )
    return written


def pb2_text(rows: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]]) -> str:
    """Return what PB2 came to on its few seeds."""
    values = {row["seed"]: row["value"] for row in rows if row["label"] == PB2}
    if not values:
        return ""
    compared = [row["value"] for row in ours if row["seed"] in values and _cell(row) == ("momentum", PBT)]
    seconds = np.median([row["process_s"] for row in rows if row["label"] == PB2])
    medians = {"median": np.median(list(values.values())), "pbt": np.median(compared)}
    shown = {name: number(float(value)) for name, value in medians.items()}
    return PB2_TEXT.format(seconds=seconds, seeds=len(values), **shown)


def _cell(row: dict[str, Any]) -> tuple[str, str]:
    return row["task"], row["label"]


def main() -> None:
    """Run what is missing, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--processes", type=int, default=1, help="0 only summarises what was run before")
    parser.add_argument("--labels", nargs="*", default=[], help="only these peers, and no section")
    parser.add_argument("--tasks", nargs="*", default=[], help="only these tasks, and no section")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where results are kept")
    options = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    jobs = peer_jobs(seeds, options.labels, options.tasks)
    rows = outcomes(jobs, options.folder / "peers.jsonl", options.processes)
    if options.labels or options.tasks:
        return
    ours = outcomes(jobs_for(seeds, AGAINST, COMPARED), options.folder / "schedules.jsonl", options.processes)
    minutes = sum(row["process_s"] for row in [*ours, *rows]) / 60
    versions = {"ray": version("ray"), "syne": version("syne-tune")}
    text = TEXT.format(**versions, pb2=pb2_text(rows, ours), minutes=minutes)
    summaries.write(
        "peers", TITLE, text, tables([*ours, *(row for row in rows if row["label"] != PB2)]), folder=options.folder
    )


if __name__ == "__main__":
    main()
