"""Is population based training worth it? `python bench/quality/schedules.py`, 47 minutes of one processor.

Compared are populations, and what a sceptic asks for first: decayed learning rates, whose peak (with all other
hyperparameters) is searched with the same number of steps. A run that was interrupted goes on where it was.

`--pilot` finds on other seeds how many seeds each task needs, for 90 % power at the smallest difference that is
worth having.
"""

import argparse
import concurrent.futures
import hashlib
import inspect
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import control_tasks
import lockstep
import numpy as np
import schedule_tasks
from comparing import RESULTS, Budget
from contenders import asha
from lockstep import Task, Way, constant
from scipy.stats import norm, rankdata, studentized_range
from tables import rows as table_rows
from tables import sign

import phyla
from machine import facts
from phyla import Perturb, Truncation, plugins
from phyla.strategies import PB2, ExplorePipeline, MultiFrequency, Resample, Strategy

FIRST_SEED, PILOT_SEEDS = 1000, range(20)
SEEDS = 50
"""How many, of those that the pilot asks for; see `pilot`."""
GROUPS = {"schedules": schedule_tasks, "control": control_tasks}
"""Modules of tasks that are summarised together."""
TASKS: dict[str, Task] = {**schedule_tasks.TASKS, **control_tasks.TASKS}
LEAST, MOST = 50, 100
BATCH = 25
"""Seeds that are trained together."""
PBT, COSINE, CONSTANT = "PBT", "random peak, cosine", "random, constant"


def linear(share: Any) -> Any:
    """Down to 0."""
    return 1.0 - share


def cosine(share: Any) -> Any:
    """Down to 0."""
    return 0.5 * (1 + np.cos(np.pi * share))


def wsd(share: Any) -> Any:
    """Up for a twentieth, then stable, and down to 0 in the last fifth."""
    return np.clip(np.minimum((share + 0.005) / 0.05, (1 - share) / 0.2), 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A strategy for a task, and how it trains.

    Attributes:
        strategy: from the task; None where a sampler chooses.
        sampler: of Optuna's, which trains one member after the other.
        decay: factor of the learning rates.
        averaged: whether schedule-free SGD trains.
        only: names of the tasks that it takes part in; all if empty.
        batches: how many batches of seeds it takes part in, if it is expensive.
    """

    strategy: Callable[[Task], Strategy] | None = None
    sampler: str = ""
    decay: lockstep.Decay = constant
    averaged: bool = False
    only: tuple[str, ...] = ()
    batches: int = MOST

    def fits(self, task: Task) -> bool:
        """Return whether it takes part in a task."""
        return (not self.only or task.name in self.only) and (task.averaged is not None or not self.averaged)

    def way(self, task: Task) -> Way:
        """Return how it trains on a task."""
        make = search if self.strategy is None else self.strategy
        return Way(strategy=make(task), decay=self.decay, averaged=self.averaged)


def search(task: Task) -> Strategy:
    """Random search."""
    return phyla.RandomSearch(task.members, task.steps)


def pbt(task: Task, interval: int = 1, **settings: Any) -> phyla.PBT:
    """PBT that selects after few steps (0), by default (1), or after many (2)."""
    sizes: dict[str, Any] = {"population_size": task.members, "total_steps": task.steps}
    return phyla.PBT(**sizes, steps_per_trial=task.intervals[interval], quorum=1.0, **settings)


def _initiator(task: Task) -> Strategy:
    return phyla.InitiatorPBT(
        population_size=task.members, steps_per_trial=task.intervals[1], total_steps=task.steps
    )


def _halving(task: Task) -> Strategy:
    return asha(Budget(members=task.members, steps_per_trial=task.intervals[1], total_steps=task.steps), 3)


def mf_pbt(task: Task, interval: int) -> Strategy:
    """MF-PBT, with sub-populations of eight."""
    frequencies = {16: (1, 5), 24: (1, 5, 10), 32: (1, 5, 10, 25)}[task.members]
    return pbt(task, interval, exploit=MultiFrequency(frequencies))


RAY: dict[str, Any] = {"exploit": Truncation(0.25), "explore": Perturb(resample=0.25, clip=True)}
ORION: dict[str, Any] = {
    "explore": ExplorePipeline([Resample(0.2), Perturb(factors=(1 / 1.2, 1.2), clip=True)]),
}

CONTENDERS: dict[str, Contender] = {
    CONSTANT: Contender(strategy=search),
    COSINE: Contender(strategy=search, decay=cosine),
    "random peak, linear": Contender(strategy=search, decay=linear),
    "random peak, WSD": Contender(strategy=search, decay=wsd),
    "random, schedule-free": Contender(strategy=search, averaged=True),
    "TPE, cosine": Contender(sampler="TPESampler", decay=cosine),
    "Gaussian process, cosine": Contender(sampler="GPSampler", decay=cosine),
    "ASHA, cosine": Contender(strategy=_halving, decay=cosine),
    PBT: Contender(strategy=pbt),
    "PBT, short interval": Contender(strategy=lambda task: pbt(task, 0)),
    "PBT, long interval": Contender(strategy=lambda task: pbt(task, 2)),
    "MF-PBT": Contender(strategy=lambda task: mf_pbt(task, 1)),
    "MF-PBT, short interval": Contender(strategy=lambda task: mf_pbt(task, 0)),
    "PBT on a cosine": Contender(strategy=pbt, decay=cosine),
    "PBT on a cosine, long interval": Contender(strategy=lambda task: pbt(task, 2), decay=cosine),
    "PBT, defaults of Ray Tune": Contender(strategy=lambda task: pbt(task, **RAY)),
    "PBT, defaults of Orion": Contender(strategy=lambda task: pbt(task, **ORION)),
    "initiator PBT": Contender(strategy=_initiator),
    "PB2": Contender(strategy=lambda task: pbt(task, explore=PB2()), only=("momentum",), batches=1),
}
"""All that are compared. Another one is one more line."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Some studies that are trained together.

    Attributes:
        task: name of the task.
        label: name of the contender.
        seeds: of the studies.
    """

    task: str
    label: str
    seeds: tuple[int, ...]

    @property
    def key(self) -> str:
        """Digest of everything that the results depend on, but the version of phyla."""
        contender, task = CONTENDERS[self.label], TASKS[self.task]
        sources: list[Any] = [
            lockstep,
            *(module for module in GROUPS.values() if self.task in module.TASKS),
            *([] if contender.decay is constant else [contender.decay]),
            *([sampled] if contender.strategy is None else []),
        ]
        settings = {
            "source": [hashlib.sha256(inspect.getsource(part).encode()).hexdigest() for part in sources],
            "strategy": plugins.encode(contender.way(task).strategy),
            "sampler": contender.sampler,
            "averaged": contender.averaged,
            "task": self.task,
            "seeds": self.seeds,
        }
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:24]

    def run(self) -> list[dict[str, Any]]:
        """Return what the studies came to."""
        began, contender, task = time.process_time(), CONTENDERS[self.label], TASKS[self.task]
        with np.errstate(all="ignore"):
            if contender.strategy is None:
                found = sampled(task, contender.way(task), self.seeds, contender.sampler)
            else:
                found = lockstep.run(task, contender.way(task), self.seeds)
        seconds = (time.process_time() - began) / len(self.seeds)
        return [{"task": self.task, "label": self.label, "process_s": seconds, **row} for row in found]


def sampled(task: Task, way: Way, seeds: Sequence[int], sampler: str) -> list[dict[str, Any]]:
    """Let a sampler of Optuna's choose, one member after the other."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    make = getattr(optuna.samplers, sampler)
    studies = [optuna.create_study(direction="maximize", sampler=make(seed=seed)) for seed in seeds]
    asked = dict[int, Any]()

    def propose(place: int) -> dict[str, float]:
        asked[place] = trial = studies[place].ask()
        found = dict[str, float]()
        for name, parameter in task.space.parameters.items():
            settings: Any = parameter
            low, high = settings.initial if isinstance(settings.initial, tuple) else (settings.low, settings.high)
            found[name] = trial.suggest_float(name, low, high, log=settings.log)
        return found

    def tell(place: int, order: float) -> None:
        studies[place].tell(asked[place], max(order, -1e12))

    return lockstep.alone(task, way, seeds, propose, tell)


class Batch(Protocol):
    """Studies that are run together, and recorded by a digest of everything that they depend on."""

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds."""

    @property
    def key(self) -> str:
        """The digest."""

    def run(self) -> list[dict[str, Any]]:
        """Return what the studies came to."""


def outcomes(jobs: Sequence[Batch], path: Path, processes: int) -> list[dict[str, Any]]:
    """Return what all jobs came to; those that the file lacks are run and added, or left out with 0 processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    known = {row["key"]: row["found"] for row in map(json.loads, filter(None, lines))}
    waiting = {job.key: job for job in jobs if job.key not in known}
    print(f"{len(jobs)} batches, {len(waiting)} to run", flush=True)
    for number, (key, found) in enumerate(_completed(waiting, processes) if processes else (), 1):
        known[key] = found
        with path.open("a") as file:
            file.write(json.dumps({"key": key, "found": found}) + "\n")
        if number % 25 == 0:
            print(f"{number} of {len(waiting)}", flush=True)
    return [row for job in jobs for row in known.get(job.key, ())]


def complete(jobs: Sequence[Batch], path: Path, processes: int) -> list[dict[str, Any]]:
    """Return what all jobs came to, or say how many studies are missing, and leave what was written as it is."""
    found = outcomes(jobs, path, processes)
    missing = sum(len(job.seeds) for job in jobs) - len(found)
    if missing:
        raise SystemExit(f"{missing} studies have not been run: use --processes 1 or more")
    return found


def make_parser(description: str | None, seeds: int) -> argparse.ArgumentParser:
    """Return a parser with the options of all scripts that record batches."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_count, default=seeds, help="how many")
    parser.add_argument("--processes", type=int, default=1, help="0 only summarises what was run before")
    parser.add_argument("--quick", action="store_true", help="two seeds, to see that everything runs")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where results are kept")
    return parser


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seeds, such as 25")
    return int(text)


def seeds_from(first: int, options: argparse.Namespace) -> range:
    """Return the seeds that the options ask for."""
    return range(first, first + (2 if options.quick else options.seeds))


def _completed(waiting: Mapping[str, Batch], processes: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    if processes == 1:
        yield from ((key, job.run()) for key, job in waiting.items())
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # read by the processes that are started now
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        running = {pool.submit(job.run): key for key, job in waiting.items()}
        for future in concurrent.futures.as_completed(running):
            yield running[future], future.result()


def jobs_for(seeds: Sequence[int], labels: Sequence[str] = (), tasks: Sequence[str] = ()) -> list[Job]:
    """Return the jobs of some contenders on some tasks, all by default, for the first seeds first."""
    return [
        Job(task=task, label=label, seeds=tuple(batch))
        for number, batch in enumerate(lockstep.batches(seeds, BATCH))
        for task in tasks or TASKS
        for label in labels or CONTENDERS
        if CONTENDERS[label].fits(TASKS[task]) and number < CONTENDERS[label].batches
    ]


def pilot(tasks: Sequence[str], folder: Path, processes: int) -> dict[str, Any]:
    """Return how many seeds each task needs: 90 % power at its unit, PBT against both baselines, two-sided 5 %."""
    jobs = jobs_for(PILOT_SEEDS, (PBT, COSINE, CONSTANT), tasks)
    rows = outcomes(jobs, folder / "schedules-pilot.jsonl", processes)
    quantiles = float(norm.ppf(0.975) + norm.ppf(0.9))
    found = dict[str, Any]()
    for task in (TASKS[name] for name in tasks):
        values = {
            label: np.array([row["value"] for row in rows if (row["task"], row["label"]) == (task.name, label)])
            for label in (PBT, COSINE, CONSTANT)
        }
        spread = {label: float(np.std(values[PBT] - values[label], ddof=1)) for label in (COSINE, CONSTANT)}
        seeds = {
            label: math.ceil(math.pi / 3 * (quantiles * deviation / task.unit) ** 2)
            for label, deviation in spread.items()
        }
        found[task.name] = {"unit": task.unit, "deviation": spread, "seeds": seeds}
    return found


def summary(names: Sequence[str], found: Sequence[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """Return the tables: each task's rows against PBT and against the tuned cosine, and the ranks over tasks."""
    tasks = [_task_table(TASKS[name], [row for row in found if row["task"] == name]) for name in names]
    everywhere = [label for label in CONTENDERS if all(label in table["rows"] for table in tasks)]
    ranks = np.array([
        rankdata([(-1 if table["maximize"] else 1) * table["rows"][label]["median"] for label in everywhere])
        for table in tasks
    ])  # fmt: skip
    count = len(everywhere)
    width = float(studentized_range.ppf(0.95, count, np.inf)) / math.sqrt(2) if count > 1 else 0.0
    return {
        "machine": facts(),
        "seeds": list(seeds),
        "process_s": sum(row["process_s"] for row in found),
        "tasks": tasks,
        "ranks": dict(zip(everywhere, ranks.mean(axis=0).tolist(), strict=True)),
        "critical_difference": width * math.sqrt(count * (count + 1) / (6 * len(tasks))),
    }


def _task_table(task: Task, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    outcomes = [{**row, "final": {"report": row["value"]}} for row in found]
    against = {
        baseline: {row["label"]: row for row in table_rows(outcomes, baseline, maximize=task.maximize)}
        for baseline in (PBT, COSINE)
    }
    rows = {
        label: {
            **{name: row[name] for name in ("median", "low", "high", "n", "age", "spent")},
            "against": {
                baseline: {name: by_label[label][name] for name in ("won", "lost", "p_holm")}
                for baseline, by_label in against.items()
                if label != baseline
            },
        }
        for label, row in against[PBT].items()
    }
    names = {
        name: getattr(task, name) for name in ("name", "title", "report", "unit", "maximize", "members", "steps")
    }
    return {**names, "intervals": task.intervals, "rows": rows}


def show(document: dict[str, Any]) -> None:
    """Print medians, and whether they are above (+) or below (-) PBT and the tuned cosine."""
    for table in document["tasks"]:
        print(f"\n{table['title']}; {table['report']}; unit {table['unit']:g}")
        for label, row in table["rows"].items():
            against = "".join(f"{mark(row, baseline):>3}" for baseline in (PBT, COSINE))
            print(f"  {label:<32}{row['median']:>10.4f}{row['low']:>10.4f} - {row['high']:<10.4f}{against}")
    print()
    for label, rank in sorted(document["ranks"].items(), key=lambda pair: pair[1]):
        print(f"{label:<34}{rank:>6.2f}")
    print(f"critical difference {document['critical_difference']:.2f}, {document['process_s']:.0f} s")


def mark(row: dict[str, Any], baseline: str) -> str:
    """Return + where a row is better than a baseline, - where worse, = where 5 % level shows neither."""
    return sign(row["against"].get(baseline, {}))


def main() -> None:
    """Run what is missing, print the tables, and write the JSON."""
    parser = make_parser(__doc__, SEEDS)
    parser.add_argument("--pilot", action="store_true", help="how many seeds are needed")
    parser.add_argument("--tasks", nargs="*", default=[], choices=list(TASKS), help="names of tasks")
    parser.add_argument("--labels", nargs="*", default=[], choices=list(CONTENDERS), help="names of contenders")
    options = parser.parse_args()
    for group, module in GROUPS.items():
        tasks = [name for name in module.TASKS if not options.tasks or name in options.tasks]
        if tasks:
            run_group(group, tasks, options)


def run_group(group: str, tasks: Sequence[str], options: argparse.Namespace) -> None:
    """Run what is missing of a group of tasks; the JSON needs all of its tasks and contenders."""
    whole = len(tasks) == len(GROUPS[group].TASKS) and not options.labels
    if options.pilot:
        needed = pilot(tasks, options.folder, options.processes)
        print(json.dumps(needed, indent=1))
        if whole:
            document = {"machine": facts(), "tasks": needed}
            (options.folder / f"{group}-pilot.json").write_text(json.dumps(document))
        return
    seeds = seeds_from(FIRST_SEED, options)
    jobs, path = jobs_for(seeds, options.labels, tasks), options.folder / "schedules.jsonl"
    found = (complete if whole else outcomes)(jobs, path, options.processes)
    if whole:
        document = summary(tasks, found, seeds)
        show(document)
        (options.folder / f"{group}.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
