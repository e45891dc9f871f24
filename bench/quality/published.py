"""Published curves, scaled down: `python bench/quality/published.py`, about four minutes of one processor.

Each experiment takes a figure of a paper, and asks whether its shape shows on a task that trains for seconds. What
the papers show, and where the shapes differ, is in `published_page.py`.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from comparing import RESULTS
from lockstep import Array, Arrays, Rows, Task
from published_page import caption, table
from recorded import Contender, record
from schedule_tasks import TASKS, noisy_quadratic
from schedules import cosine, mf_pbt, pbt, search
from tables import rows as table_rows

import phyla
from machine import facts
from phyla.strategies import ExploreWith, Truncation

FIRST_SEED, SEEDS = 2000, 25


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A figure.

    Attributes:
        contenders: the lines; others are compared with the first.
        at: steps of a member, or of all members, at which the table has medians.
        of_all: whether the steps of all members count, as where sizes of populations differ.
        followed: hyperparameters whose values along the best lineages are wanted.
        labels: the lines for which they are.
    """

    contenders: Mapping[str, Contender]
    at: Sequence[int]
    of_all: bool = False
    followed: Sequence[str] = ()
    labels: Sequence[str] = ()


def toy() -> Experiment:
    """Figure 2 of Jaderberg et al. 2017, with 3/4 in Q, so that the two members never tie exactly."""
    scale = np.array([0.75, 1.0])

    def train(state: Arrays, rows: Rows) -> Arrays:
        h = np.stack([rows.params["h0"], rows.params["h1"]], axis=1)
        return {"w": state["w"] * (1 - 0.02 * h * scale) ** rows.count}

    def quality(state: Arrays, rows: Rows) -> Array:
        found: Array = 1.2 - (scale * state["w"] ** 2).sum(axis=1)
        return found

    def gaussian(params: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {name: float(np.clip(params[name] + rng.normal(0.0, 0.1), -10.0, 10.0)) for name in ("h0", "h1")}

    task = Task(
        name="toy",
        title="two members, each of which can see one of two directions",
        report="Q, at most 1.2",
        unit=0.01,
        maximize=True,
        space=phyla.Space(
            h0=phyla.Float(-10.0, 10.0),
            h1=phyla.Float(-10.0, 10.0),
            initial=[{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}],
        ),
        members=2,
        steps=200,
        intervals=(4, 4, 4),
        fresh=lambda world, rng, count: {"w": np.full((count, 2), 0.9)},
        train=train,
        score=quality,
        value=quality,
    )
    explore = ExploreWith(gaussian, after=None)

    def contender(exploit: Any, explore: Any) -> Contender:
        return Contender(task=task, strategy=pbt(task, exploit=exploit, explore=explore, copy="weights"))

    contenders = {
        "PBT": contender(Truncation(0.5), explore),
        "explore only": contender(None, explore),
        "exploit only": contender(Truncation(0.5), None),
        "grid": contender(None, None),
    }
    return Experiment(contenders=contenders, at=(40, 80, 120, 200))


def learned(name: str, followed: Sequence[str]) -> Experiment:
    """Curves of a policy, or of two players, after the figures of RL and GANs in Jaderberg et al. 2017."""
    task = TASKS[name]
    contenders = {
        "random, constant": Contender(task=task, strategy=search(task)),
        "random peak, cosine": Contender(task=task, strategy=search(task), decay=cosine),
        "PBT": Contender(task=task, strategy=pbt(task)),
        "PBT, short interval": Contender(task=task, strategy=pbt(task, 0)),
    }
    at = [task.steps * share // 20 for share in (2, 5, 10, 20)]
    return Experiment(contenders=contenders, at=at, followed=followed, labels=("PBT", "PBT, short interval"))


def sizes() -> Experiment:
    """The WaveNet figures of Li et al. 2019: few members that train long against many that train briefly."""
    letters = TASKS["letters"]
    few, many = replace(letters, members=5, steps=1600), replace(letters, members=20, steps=400)

    def initiator(task: Task) -> Contender:
        size, steps = task.members, task.steps
        strategy = phyla.InitiatorPBT(population_size=size, steps_per_trial=task.intervals[1], total_steps=steps)
        return Contender(task=task, strategy=strategy)

    contenders = {
        "initiator PBT, 5 members": initiator(few),
        "initiator PBT, 20 members": initiator(many),
        "random, 5 members": Contender(task=few, strategy=search(few)),
        "random, 20 members": Contender(task=many, strategy=search(many)),
        "TPE, 20 members": Contender(task=many, strategy="TPESampler"),
        "CMA-ES, 20 members": Contender(task=many, strategy="CmaEsSampler"),
    }
    return Experiment(contenders=contenders, at=(1000, 2000, 4000, 8000), of_all=True)


def longer(steps: int = 8000, dims: int = 1000) -> Experiment:
    """The long runs of Doulazmi et al. 2025, on the noisy quadratic."""
    task = noisy_quadratic(
        "long",
        "the noisy quadratic model",
        lambda curvature: curvature,
        dims=dims,
        steps=steps,
        members=32,
        unit=0.01,
    )
    task = replace(task, intervals=(20, 100, 500))
    contenders = {
        "random, constant": Contender(task=task, strategy=search(task)),
        "PBT, every 20 steps": Contender(task=task, strategy=pbt(task, 0)),
        "PBT, every 100 steps": Contender(task=task, strategy=pbt(task, 1)),
        "PBT, every 500 steps": Contender(task=task, strategy=pbt(task, 2)),
        "MF-PBT, every 20 steps": Contender(task=task, strategy=mf_pbt(task, 0)),
        "MF-PBT, every 100 steps": Contender(task=task, strategy=mf_pbt(task, 1)),
    }
    return Experiment(contenders=contenders, at=[steps * share // 16 for share in (1, 2, 4, 8, 16)])


EXPERIMENTS = {
    "toy": toy,
    "policy": lambda: learned("policy", ("lr", "entropy")),
    "game": lambda: learned("game", ("descent", "ascent")),
    "sizes": sizes,
    "longer": longer,
}


def measured(experiment: Experiment, seeds: Sequence[int]) -> dict[str, Any]:
    """Return an experiment's curves, the values at its steps, p, and the schedules along the best lineages."""
    first, outcomes, curves, schedules = next(iter(experiment.contenders.values())), [], {}, {}
    traces = dict[str, Any]()
    for label, contender in experiment.contenders.items():
        followed = experiment.followed if label in experiment.labels else ()
        found, members = record(contender, seeds, followed), _members(contender, experiment.of_all)
        values = np.array(found.values)
        low, middle, high = np.percentile(values, (25, 50, 75), axis=1)
        steps = [step * members for step in found.steps]
        curves[label] = {"steps": steps, "low": low.tolist(), "median": middle.tolist(), "high": high.tolist()}
        schedules[label] = {name: np.nanmedian(path, axis=0).tolist() for name, path in found.paths.items()}
        outcomes += [{**row, "label": label, "final": {"report": row["value"]}} for row in found.finals]
        if contender.task.name == "toy":
            traces[label] = np.array(found.weights).tolist()
    rows = table_rows(outcomes, outcomes[0]["label"], maximize=first.task.maximize)
    return {
        "title": first.task.title,
        "report": first.task.report,
        "maximize": first.task.maximize,
        "at": list(experiment.at),
        "of_all": experiment.of_all,
        "curves": curves,
        "rows": {row["label"]: row for row in rows},
        "schedules": {label: found for label, found in schedules.items() if found},
        "traces": traces,
    }


def _members(contender: Contender, of_all: bool) -> int:
    alone = isinstance(contender.strategy, str)
    return 1 if alone or not of_all else contender.task.members


def run(name: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Return what an experiment came to, and the seconds of the processor that it took."""
    began = time.process_time()
    return {**measured(EXPERIMENTS[name](), seeds), "process_s": time.process_time() - began}


def main() -> None:
    """Run the experiments, print the tables, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help=", ".join(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two seeds, to see that everything runs")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where results are kept")
    options = parser.parse_args()
    if unknown := set(options.only) - EXPERIMENTS.keys():
        parser.error(f"no experiment is called {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    seeds = range(FIRST_SEED, FIRST_SEED + (2 if options.quick else options.seeds))
    names, found = options.only or [*EXPERIMENTS], dict[str, Any]()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        for name, experiment in zip(names, pool.map(run, names, [seeds] * len(names)), strict=True):
            found[name] = experiment
            print(f"\n{name}: {caption(experiment)}\n\n{table(experiment)}", flush=True)
    seconds = sum(experiment["process_s"] for experiment in found.values())
    print(f"\n{seconds:.0f} s of one processor")
    if not options.only:
        document = {"machine": facts(), "seeds": list(seeds), "process_s": seconds, "experiments": found}
        options.folder.mkdir(parents=True, exist_ok=True)
        (options.folder / "published.json").write_text(json.dumps(document))


if __name__ == "__main__":
    main()
