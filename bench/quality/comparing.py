"""Comparing strategies on a problem: many studies, each with a seed of its own, and what each came to.

A *cell* is one study: a problem, a strategy, a seed. Cells are run in processes of their own, through the same
`phyla.Study` that anybody uses, with the store in memory. What a cell came to is appended, as one line of JSON,
to the problem's file; a cell whose settings and whose problem's source are there already is not run again. So a
run that was interrupted goes on where it was.
"""

import concurrent.futures
import hashlib
import inspect
import itertools
import json
import math
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "examples")]

import phyla
from phyla import plugins
from phyla.records import Objective, TrialRecord
from phyla.strategies import StoppingRule, Strategy

RESULTS = Path(__file__).resolve().parents[1] / "results" / "quality"
POINTS = 60
"""Points of a curve that are kept at most."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What every strategy may spend, and the grid of a grid search, one point a member.

    Attributes:
        members: members of a population.
        steps_per_trial: training steps between two decisions.
        total_steps: training steps of a member.
        grid: values by parameter; as many combinations as there are members.
    """

    members: int
    steps_per_trial: int
    total_steps: int
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def all_steps(self) -> int:
        """Training steps of all members together."""
        return self.members * self.total_steps


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is trained, for one seed.

    Attributes:
        space: hyperparameters.
        objective: what selection goes by.
        train: the training function.
        final: what the best checkpoint is worth, given its directory: `report` is what the tables compare, and
            `tune` what knobs are tuned by. Neither is seen by selection.
        setup: called once; what it returns is `trial.worker`.
        details: what else is kept of a study, as JSON.
    """

    space: phyla.Space
    objective: Objective
    train: Callable[[phyla.Trial], None]
    final: Callable[[Path], Mapping[str, float]]
    setup: Callable[[phyla.WorkerContext], object] | None = None
    details: Callable[[phyla.Results], Any] | None = None


class ProblemModule(Protocol):
    """A module that describes a problem.

    Attributes:
        NAME: its name; the module is `NAME_problem`.
        TITLE: heading of its results.
        REPORT: what `report` of its final values is, with its unit.
        MAXIMIZE: whether high values of it are good.
        BUDGET: what every strategy may spend.
        QUICK: the same for a quick look.
        COST_S: about how long a study takes, in seconds of one core.
        USES: other modules that it trains with.
    """

    NAME: str
    TITLE: str
    REPORT: str
    MAXIMIZE: bool
    BUDGET: Budget
    QUICK: Budget
    COST_S: float
    USES: Sequence[ModuleType]

    def problem(self, seed: int) -> Problem:
        """Make the problem; the seed settles data and environments, not hyperparameters."""
        ...


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One study.

    Attributes:
        problem: name of the problem's module.
        label: what tables call the strategy.
        strategy: it.
        seed: of the problem.
        study_seed: of the study; the problem's unless given.
        objective: of the study; the problem's unless given.
        stopping: rules that stop running trials.
    """

    problem: str
    label: str
    strategy: Strategy
    seed: int
    study_seed: int | None = None
    objective: Objective | None = None
    stopping: Sequence[StoppingRule] = ()

    @property
    def key(self) -> str:
        """Digest of everything that the result depends on, but the version of phyla."""
        module = module_of(self.problem)
        source = "".join(inspect.getsource(each) for each in (module, *module.USES))
        settings = {
            "problem": self.problem,
            "source": hashlib.sha256(source.encode()).hexdigest(),
            "strategy": plugins.encode(self.strategy),
            "seed": self.seed,
            "study_seed": self.study_seed,
        }
        if self.objective is not None:
            settings["objective"] = plugins.encode(self.objective)
        if self.stopping:
            settings["stopping"] = [plugins.encode(rule) for rule in self.stopping]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:24]


Outcome = dict[str, Any]


def module_of(problem: str) -> Any:
    """Return the module of a problem, a `ProblemModule`."""
    return __import__(f"{problem}_problem")


def run_cell(cell: Cell, where: Path | None = None) -> Outcome:
    """Run one study, and return what it came to.

    Args:
        cell: the study.
        where: a folder for its files, which are removed in the end; in memory is fastest.
    """
    began = time.process_time()
    problem: Problem = module_of(cell.problem).problem(cell.seed)
    objective = cell.objective or problem.objective
    with tempfile.TemporaryDirectory(dir=where or memory()) as home:
        results = phyla.Study(
            "cell",
            problem.space,
            objective,
            cell.strategy,
            problem.train,
            setup=problem.setup,
            seed=cell.seed if cell.study_seed is None else cell.study_seed,
            stopping=cell.stopping,
            home=home,
            storage="memory://",
        ).run()
        best = results.best
        if best is None:
            raise RuntimeError(f"{cell.label}, seed {cell.seed}: no trial has a finite fitness")
        final = dict(problem.final(best.checkpoint.path))
        trials = results.trials()
        schedule = results.schedule().to_json()
        details = None if problem.details is None else {"details": problem.details(results)}
    spent, curve = _curve(trials, maximize=objective.maximize)
    area = sum(best * (at - before) for (before, best), (at, _) in itertools.pairwise(curve))
    area = area / (spent - curve[0][0]) if spent > curve[0][0] else curve[-1][1]
    return {
        "key": cell.key,
        "problem": cell.problem,
        "label": cell.label,
        "seed": cell.seed,
        "strategy": plugins.encode(cell.strategy),
        "final": {**final, "area": area},
        "fitness": best.fitness,
        "age": best.checkpoint.step,
        "params": dict(best.params.flat()),
        "schedule": schedule,
        "spent": spent,
        "curve": _thinned(curve),
        "trials": len(trials),
        "process_s": time.process_time() - began,
        **(details or {}),
    }


def steps_trained(trial: TrialRecord) -> int:
    """Return the steps that a trial that has ended was trained, up to the report that stopped it."""
    at: Any = trial.start_step if trial.stop_reason is None else trial.stop_reason["step"]
    return int(at if trial.reached_step is None else trial.reached_step) - trial.start_step


def ended_and_stopped(results: phyla.Results, test: str) -> dict[str, Any]:
    """Return what became of the trials of a study with stopping rules, in the order in which they ended.

    Args:
        results: of the study.
        test: the metric that selection does not see.

    Returns:
        `ended`: of each trial that completed the steps of all trials until then, its fitness, the metric, and the
            age of its weights.
        `stopped`: of each other the steps until then, its own, and those that it was spared.
    """
    spent, ended, stopped = 0, list[list[Any]](), list[list[int]]()
    for trial in sorted((t for t in results.trials() if t.ended_at is not None), key=lambda t: (t.ended_at, t.id)):
        trained = steps_trained(trial)
        spent += trained
        if trial.stop_reason is not None:
            stopped.append([spent, trained, trial.end_step - trial.start_step - trained])
        elif trial.fitness is not None:
            ended.append([spent, trial.fitness, trial.metrics[test], trial.reached_step])
    return {"ended": ended, "stopped": stopped}


def _curve(trials: Sequence[Any], *, maximize: bool) -> tuple[int, list[tuple[int, float]]]:
    """Return the steps that were spent, and the best fitness so far over them."""
    spent, best, curve = 0, math.nan, list[tuple[int, float]]()
    for trial in sorted((t for t in trials if t.ended_at is not None), key=lambda t: (t.ended_at, t.id)):
        spent += steps_trained(trial)
        fitness = trial.fitness
        if fitness is not None and math.isfinite(fitness):
            better = math.isnan(best) or (fitness > best if maximize else fitness < best)
            best = fitness if better else best
        if not math.isnan(best):
            curve.append((spent, best))
    return spent, curve


def _thinned(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    every = max(1, math.ceil(len(curve) / POINTS))
    return [*curve[:-1:every], curve[-1]]


def memory() -> Path | None:
    """Return a folder that is kept in memory, where there is one."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else None


def finished(problem: str, folder: Path = RESULTS) -> dict[str, Outcome]:
    """Return what was found before, by key; a line that is cut off is left out."""
    path = folder / f"{problem}.jsonl"
    found: dict[str, Outcome] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            outcome = json.loads(line)
        except ValueError:
            continue
        found[outcome["key"]] = outcome
    return found


def run_cells(cells: Sequence[Cell], *, processes: int = 2, folder: Path = RESULTS) -> list[Outcome]:
    """Run the cells that are missing, and return what all of them came to, in their order.

    Raises:
        SystemExit: some cells failed; the others are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = {name: finished(name, folder) for name in {cell.problem for cell in cells}}
    waiting = {cell.key: cell for cell in cells if cell.key not in known[cell.problem]}
    _announce(list(waiting.values()), len(cells), known, processes)
    failed: list[str] = []
    if waiting:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, "1")  # read by the processes that are started now
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(
            min(processes, len(waiting)), mp_context=context, initializer=_end_with_parent
        ) as pool:
            running = {pool.submit(run_cell, cell): cell for cell in waiting.values()}
            for number, future in enumerate(concurrent.futures.as_completed(running), 1):
                cell = running[future]
                error = future.exception()
                if error is not None:
                    failed.append(f"{cell.problem}, {cell.label}, seed {cell.seed}: {error!r}")
                    print(failed[-1], file=sys.stderr, flush=True)
                    continue
                outcome = json.loads(json.dumps(future.result()))
                known[cell.problem][cell.key] = outcome
                # In one piece, so that two scripts may write at once, and after a line that was cut off.
                with open(folder / f"{cell.problem}.jsonl", "ab", buffering=0) as file:
                    file.write(b"\n" + json.dumps(outcome).encode() + b"\n")
                if number % 25 == 0:
                    print(f"{number} of {len(waiting)}", flush=True)
    if failed:
        raise SystemExit(f"{len(failed)} of {len(cells)} studies failed; the others are kept in {folder}")
    # A cell may have been run before under another label.
    return [{**known[cell.problem][cell.key], "label": cell.label} for cell in cells]


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, in whatever way."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _announce(
    waiting: Sequence[Cell], cells: int, known: Mapping[str, Mapping[str, Outcome]], processes: int
) -> None:
    seconds = 0.0
    for cell in waiting:
        like = [one["process_s"] for one in known[cell.problem].values() if one["label"] == cell.label]
        seconds += sum(like) / len(like) if like else module_of(cell.problem).COST_S
    minutes = seconds / processes / 60
    print(
        f"{cells} studies, {len(waiting)} to run, about {minutes:.1f} min on {processes} quiet cores", flush=True
    )
