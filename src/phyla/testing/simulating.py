"""Predict the cost of a study on a virtual clock before it is run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import final

import numpy as np

from phyla.errors import ConfigurationError
from phyla.machine import TrainRules, bound
from phyla.records import WorkKind
from phyla.study.study import Study
from phyla.study.validation import check_kinds
from phyla.testing.conditions import DEFAULT_STEPS, Conditions, Fitness, LearningCurve
from phyla.testing.outcome import SimulatedRun
from phyla.testing.simulator import Simulator
from phyla.validation import check_integer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Predicted cost of a study with a number of workers.

    Attributes:
        workers: workers that were simulated.
        evaluators: further ones that only evaluate.
        runs: each simulated run.
        bound: checkpoints that can be in use or best at most, milestones not counted; others are there until they
            are collected.
        notes: what a reader has to know: what of the study is not simulated, and which arguments mislead.
    """

    workers: int
    evaluators: int
    runs: tuple[SimulatedRun, ...]
    bound: int
    notes: tuple[str, ...] = ()

    @property
    def wall_s(self) -> float:
        """Seconds from the first claim to the end, median over the runs."""
        return median(run.wall_s for run in self.runs)

    @property
    def wall_range_s(self) -> tuple[float, float]:
        """The shortest and the longest run, in seconds."""
        return min(run.wall_s for run in self.runs), max(run.wall_s for run in self.runs)

    @property
    def completes(self) -> bool:
        """Whether the study completed in every run."""
        return all(run.state == "completed" for run in self.runs)

    def shares(self) -> dict[str, float]:
        """Return the shares of the workers' time, each in [0, 1], mean over the runs; see `SimulatedRun`."""
        return _shares([run.seconds for run in self.runs])

    def wasted(self) -> dict[str, float]:
        """Return which share of all trained steps came to nothing, and why, mean over the runs."""
        shares = _shares([run.steps for run in self.runs])
        return {name: share for name, share in shares.items() if name != "kept"}


def _shares(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(run[name] / (sum(run.values()) or 1) for run in runs) for name in runs[0]}


def simulate(
    study: Study,
    workers: int = 1,
    *,
    evaluators: int = 0,
    kinds: Sequence[str] = ("train", "evaluate"),
    step_s: float | None = None,
    trial_s: float | None = None,
    load_s: float = 0.0,
    save_s: float = 0.0,
    eval_s: float = 0.0,
    spread: float = 0.0,
    preempt_per_hour: float = 0.0,
    crash_per_hour: float = 0.0,
    restart_s: float = 60.0,
    fail: float = 0.0,
    fitness: Fitness | None = None,
    seed: int = 0,
    runs: int = 1,
) -> Simulated:
    """Predict what running a study will take. Nothing is trained, and nothing sleeps.

    The study's own strategy, space, suites and options decide, through the real controller and a store in memory;
    only durations, failures and fitness are drawn. Workers take no time to start, and an idle one asks again as
    soon as something changed. Stopping rules have nothing to look at, and stop nothing; `notes` say so.

    Args:
        study: the study. Its functions are not called, and its store is not opened.
        workers: worker processes, all alike.
        evaluators: further worker processes that only evaluate.
        kinds: what the workers do: `train`, `evaluate`, or both.
        step_s: mean seconds of one training step.
        trial_s: mean seconds of one trial's training; instead of `step_s`.
        load_s: mean seconds of loading a checkpoint, for training from it or evaluating it.
        save_s: mean seconds of saving one.
        eval_s: mean seconds of one eval task on one checkpoint, all its shards together.
        spread: standard deviation of the logarithm of each duration, which is log-normal; 0 for equal durations.
        preempt_per_hour: how often each worker is told to leave; exponential times. It returns its work, and what
            it trained since the trial began is lost.
        crash_per_hour: how often each worker vanishes with its machine; its lease has to run out.
        restart_s: seconds until it, or another in its place, is back.
        fail: probability that an attempt at a trial fails, at a uniform moment of its training.
        fitness: `fitness(params, step, rng)`; by default `LearningCurve`, a synthetic one.
        seed: of what is drawn here; decisions are drawn by the study's own seed.
        runs: how often to simulate.

    Raises:
        ConfigurationError: an argument is invalid, or nothing says how long training takes.
    """
    if not isinstance(study, Study):
        raise ConfigurationError(f"simulate({study!r}): give a study: phyla.Study(...)")
    runs, seed = check_integer("runs", runs), check_integer("seed", seed, 0)
    for name, value in (("evaluators", evaluators), ("eval_s", eval_s)):
        if value and not study.rules.suites:
            raise ConfigurationError(f"{name}={value!r}: the study has no suites= to evaluate")
    conditions = Conditions(
        workers=workers,
        evaluators=evaluators,
        kinds=frozenset(WorkKind(kind) for kind in check_kinds(kinds)),
        preempt_per_hour=preempt_per_hour,
        crash_per_hour=crash_per_hour,
        restart_s=restart_s,
        fail=fail,
        step_s=step_s,
        trial_s=trial_s,
        load_s=load_s,
        save_s=save_s,
        eval_s=eval_s,
        spread=spread,
    )
    seeds = [np.random.SeedSequence(seed, spawn_key=(run,)) for run in range(runs)]
    return _simulate_runs(study, conditions, fitness, seeds)


def _simulate_runs(
    study: Study, conditions: Conditions, fitness: Fitness | None, seeds: Sequence[np.random.SeedSequence]
) -> Simulated:
    rules = study.rules
    steps = rules.strategy.member_steps or DEFAULT_STEPS
    measure: Callable[..., float] = fitness or LearningCurve(rules.space, rules.objective, steps)
    runs = []
    for seed in seeds:
        rng = np.random.Generator(np.random.PCG64(seed))
        runs.append(Simulator(rules, study.seed, conditions, fitness=measure, rng=rng).run())
    return Simulated(
        workers=conditions.workers,
        evaluators=conditions.evaluators,
        runs=tuple(runs),
        bound=bound(rules.keeping),
        notes=tuple(_notes(rules, runs, conditions.trial_s)),
    )


def _notes(rules: TrainRules, runs: Sequence[SimulatedRun], trial_s: float | None) -> Iterator[str]:
    if rules.stopping:
        names = ", ".join(type(rule).__name__ for rule in rules.stopping)
        yield (
            f"stopping rules ({names}) are not simulated: every trial trains to its end here, so the figures lack "
            "the steps that they would save or repeat"
        )
    shortest = min(run.trial_steps[0] for run in runs)
    longest = max(run.trial_steps[1] for run in runs)
    if trial_s is not None and shortest < longest:
        yield (
            f"trials of {shortest} and of {longest} steps take the same {trial_s:g} s on average here; where "
            "longer ones take longer, give step_s"
        )
