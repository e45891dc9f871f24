"""Is selection greedy? `python bench/quality/greed.py`, ten minutes of one processor.

Selection after short trials prefers what helps at once. On these problems that is the wrong thing:

- quadratic: the noisy quadratic model of Wu et al. 2018 (arXiv 1803.02021) in 1,000 dimensions, as exact expected
  loss. A learning rate that falls early removes noise at once, and leaves the directions of low curvature.
- deceptive: the deceptive toy of PBT-Zoo (Chebykin et al. 2025). A small h helps at once; each deviation from
  the linear decay of h costs speed for the rest of the training. The score is at most 1.2.
- momentum: the same quadratic in 50 dimensions with sampled gradients, a learning rate and a momentum.

Decisions are those of phyla's strategies, all members in step as with `quorum=1.0`, but without a store and files:
a study with the same seed decides the same. `--real` runs such studies with phyla's own workers instead.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from comparing import memory
from in_step import advance
from numpy.typing import NDArray
from scipy.stats import wilcoxon

import phyla
from phyla.records import JobKind, JobState, Member, MemberState, Scored
from phyla.strategies import Context, MultiFrequency, Start, Strategy, Truncation, decision_rng, trial_seed

Array = NDArray[np.float64]
State = dict[str, Array]
"""Arrays with a row for each model."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A problem whose models are trained together.

    Attributes:
        space: hyperparameters.
        steps: of the whole training.
        fresh: the state of so many models, and of a seed.
        train: from a state, the hyperparameters, the step so far, how many steps, and the generator of each model.
        score: of each model; higher is better.
    """

    space: phyla.Space
    steps: int
    fresh: Callable[[int, int], State]
    train: Callable[[State, Mapping[str, Array], int, int, Sequence[np.random.Generator]], State]
    score: Callable[[State], Array]


Decay = Callable[[float], float]
"""Factor of the learning rate at a share of the training."""

CURVATURE = 1 / np.arange(1.0, 1001.0)


def constant(_: float) -> float:
    """No decay."""
    return 1.0


def linear(share: float) -> float:
    """Down to 0."""
    return 1.0 - share


def cosine(share: float) -> float:
    """Down to 0."""
    return float((1 + np.cos(np.pi * share)) / 2)


def quadratic(decay: Decay = constant) -> Task:
    """The noisy quadratic: the second moment of each coordinate, in closed form for steps at the same rate."""
    steps = 2000

    def train(state: State, params: Mapping[str, Array], start: int, count: int, rngs: Any) -> State:
        moments, part = state["w"], count if decay is constant else min(10, count)
        for at in range(start, start + count, part):
            rate = (params["lr"] * decay(at / steps))[:, None]
            left, noise = (1 - rate * CURVATURE) ** 2, rate**2 * CURVATURE
            slow = 1 - left < 1e-14
            grown = np.where(slow, part, (1 - left**part) / np.where(slow, 1.0, 1 - left))
            moments = left**part * moments + noise * grown
        return {"w": moments}

    return Task(
        space=phyla.Space(lr=phyla.Float(1e-4, 1.9, log=True, initial=(1e-3, 1.0 if decay is constant else 1.9))),
        steps=steps,
        fresh=lambda models, seed: {"w": np.ones((models, len(CURVATURE)))},
        train=train,
        score=lambda state: -0.5 * (state["w"] * CURVATURE).sum(axis=1),
    )


def deceptive() -> Task:
    """The deceptive toy, whose state has what the lineage will pay for its deviations so far."""
    steps, grid = 1000, 20

    def train(state: State, params: Mapping[str, Array], start: int, count: int, rngs: Any) -> State:
        theta, owed, h = state["theta"], state["owed"], params["h"]
        for at in range(start, start + count, grid):
            owed = owed + 0.2 * np.abs(h - (1 - at / steps))
            theta = theta * (1 - 0.002 * np.maximum(2 - h - owed, 0.0)) ** grid
        return {"theta": theta, "owed": owed}

    return Task(
        space=phyla.Space(h=phyla.Float(1e-4, 1.1, initial=(0.9, 1.1))),
        steps=steps,
        fresh=lambda models, seed: {"theta": np.full(models, 0.9), "owed": np.zeros(models)},
        train=train,
        score=lambda state: 1.2 - state["theta"] ** 2,
    )


def momentum() -> Task:
    """The noisy quadratic in 50 dimensions, with a gradient that is drawn at each step."""
    curvature = CURVATURE[:50]

    def fresh(models: int, seed: int) -> State:
        w = np.random.default_rng([seed, 1]).normal(size=50) * 3
        return {"w": np.tile(w, (models, 1)), "v": np.zeros((models, 50))}

    def train(
        state: State, params: Mapping[str, Array], start: int, count: int, rngs: Sequence[np.random.Generator]
    ) -> State:
        w, v = state["w"], state["v"]
        noise = np.sqrt(curvature) * np.stack([rng.normal(size=(count, 50)) for rng in rngs], axis=1)
        for at in range(count):
            v = params["momentum"][:, None] * v + curvature * w + noise[at]
            w = w - params["lr"][:, None] * v
            lost = np.abs(w).max(axis=1) > 1e6
            w[lost], v[lost] = 1e6, 0.0
        return {"w": w, "v": v}

    return Task(
        space=phyla.Space(lr=phyla.Float(1e-3, 1.0, log=True), momentum=phyla.Float(0.0, 0.99)),
        steps=1000,
        fresh=fresh,
        train=train,
        score=lambda state: -0.5 * (state["w"] ** 2 * curvature).sum(axis=1),
    )


@dataclass(kw_only=True)
class _Trial:
    """What PB2 reads of a trial record."""

    id: int
    parent: int | None
    params: Mapping[str, Any]
    start_step: int
    end_step: int
    generation: int
    member: int
    order: float | None = None
    reached_step: int | None = None
    state: JobState = JobState.RUNNING
    kind: JobKind = JobKind.TRAIN

    def complete(self, score: float) -> None:
        self.order, self.reached_step, self.state = score, self.end_step, JobState.COMPLETED

    @property
    def ended_at(self) -> int:
        return self.end_step


class _Trials:
    """The history of a population that trains in step, as far as PB2 asks for it."""

    def __init__(self) -> None:
        self.running = list[_Trial]()
        self.completed = list[_Trial]()

    def start(self, member: Member, start: Start, size: int) -> None:
        parent = None if start.weights is None else start.weights.trial
        trial = _Trial(
            id=member.generation * size + member.index,
            parent=parent,
            params=start.params,
            start_step=member.progress,
            end_step=member.progress + start.steps,
            generation=member.generation,
            member=member.index,
        )
        self.running.append(trial)

    def complete(self, scores: Sequence[float]) -> None:
        for trial, score in zip(self.running, scores, strict=True):
            trial.complete(score)
        self.completed += self.running
        self.running = []

    def trial(self, trial: int) -> _Trial:
        return self.completed[trial]

    def last_completed(self, count: int) -> list[_Trial]:
        return self.completed[::-1][:count]

    def ended(self, step: int | None) -> list[_Trial]:
        return []

    def unfinished(self) -> list[_Trial]:
        return self.running


def record(task: Task, strategy: Strategy, seed: int) -> list[list[Scored]]:
    """Train a population, and return what its members published, generation by generation."""
    size = strategy.population_size
    population = [Member(study=0, index=index, state=MemberState.READY) for index in range(size)]
    state, published, trials = task.fresh(size, seed), list[list[Scored]](), _Trials()
    while not all(map(strategy.finished, population)):
        rngs = [decision_rng(seed, member.index, member.generation, 0) for member in population]
        seeds = [trial_seed(rng) for rng in rngs]  # drawn first in a study
        starts = []
        for member, rng in zip(population, rngs, strict=True):
            starts.append(_decide(strategy, task, member, rng, population, trials))
            trials.start(member, starts[-1], size)
        origins = [at if start.weights is None else start.weights.trial % size for at, start in enumerate(starts)]
        params = {name: np.array([start.params[name] for start in starts]) for name in task.space.parameters}
        given = {name: values[origins] for name, values in state.items()}
        drawn = [np.random.default_rng(one) for one in seeds]
        state = task.train(given, params, population[0].progress, starts[0].steps, drawn)
        scores = task.score(state).tolist()
        trials.complete(scores)
        population = [advance(*row, size) for row in zip(population, starts, scores, strict=True)]
        published.append([member.states[0] for member in population])
    return published


def _decide(
    strategy: Strategy,
    task: Task,
    member: Member,
    rng: np.random.Generator,
    population: Sequence[Member],
    history: Any,
) -> Start:
    objective = phyla.Maximize("score")
    context = Context(space=task.space, objective=objective, rng=rng, now=0.0, history=history)
    start = strategy.decide(member, population, context)
    assert isinstance(start, Start)
    return start


def best(task: Task, strategy: Strategy, seed: int) -> float:
    """Return the best score of a study."""
    return max(state.order or 0.0 for states in record(task, strategy, seed) for state in states)


def run(task: Task, strategy: Strategy, seed: int) -> phyla.Results:
    """Return the same study, run by phyla's own worker in this process."""

    def train(trial: phyla.Trial) -> None:
        if trial.source is None:
            state = task.fresh(1, seed)
        else:
            state = {file.stem: np.load(file) for file in trial.source.path.glob("*.npy")}
        params = {name: np.array([value]) for name, value in trial.params.flat().items()}
        count, rngs = trial.end_step - trial.start_step, [np.random.default_rng(trial.seed)]
        state = task.train(state, params, trial.start_step, count, rngs)
        for name, values in state.items():
            np.save(trial.checkpoint_dir / f"{name}.npy", values)
        trial.report(score=float(task.score(state)[0]), step=trial.end_step)

    with tempfile.TemporaryDirectory(dir=memory()) as home:
        goal, store = phyla.Maximize("score"), "memory://"
        study = phyla.Study("greed", task.space, goal, strategy, train, seed=seed, home=home, storage=store)
        return study.run(workers=0)


TRUNCATION = Truncation(0.25)


def pbt(task: Task, members: int, steps: int, exploit: Any = TRUNCATION, factor: float = 1.25) -> phyla.PBT:
    """PBT whose factors are multiplied and clipped, as in the published results."""
    return phyla.PBT(
        population_size=members,
        steps_per_trial=steps,
        total_steps=task.steps,
        exploit=exploit,
        explore=phyla.Perturb(factors=(1 / factor, factor), clip=True),
        quorum=1.0,
    )


def on_quadratic() -> dict[str, tuple[Task, Strategy]]:
    """Strategies on the quadratic, 32 members each."""
    plain, decayed, peaks = quadratic(), quadratic(linear), phyla.RandomSearch(32, 2000)
    rules = {(20, (1, 5, 10, 25)): plain, (50, (1, 2, 5, 10)): plain, (20, (1, 10)): plain}
    return {
        **{f"PBT every {steps}": (plain, pbt(plain, 32, steps)) for steps in (10, 20, 50, 100, 200, 500)},
        **{
            f"MF-PBT {frequencies} every {steps}": (task, pbt(task, 32, steps, MultiFrequency(frequencies)))
            for (steps, frequencies), task in rules.items()
        },
        "random, constant": (plain, peaks),
        "random peak of a cosine decay": (quadratic(cosine), peaks),
        "random peak of a linear decay": (decayed, peaks),
        "PBT every 20, peak of a linear decay": (decayed, pbt(decayed, 32, 20)),
        "PBT every 200, peak of a linear decay": (decayed, pbt(decayed, 32, 200)),
        "MF-PBT (1, 5, 10, 25) every 20, peak of a linear decay": (
            decayed,
            pbt(decayed, 32, 20, MultiFrequency()),
        ),
    }


def on_deceptive() -> dict[str, tuple[Task, Strategy]]:
    """Strategies on the deceptive toy, 24 members each."""
    task, rule = deceptive(), MultiFrequency((1, 5, 10))
    return {
        **{
            f"PBT x{factor:g} every {steps}": (task, pbt(task, 24, steps, factor=factor))
            for steps in (20, 100, 200)
            for factor in (2.0, 1.25)
        },
        **{
            f"MF-PBT (1, 5, 10) x{factor:g} every 20": (task, pbt(task, 24, 20, rule, factor))
            for factor in (2.0, 1.25)
        },
        "random, constant": (task, phyla.RandomSearch(24, task.steps)),
    }


def on_momentum() -> dict[str, tuple[Task, Strategy]]:
    """Strategies on the quadratic with momentum, 16 members each; the last one is the baseline."""
    task = momentum()
    plain = phyla.PBT(population_size=16, steps_per_trial=50, total_steps=task.steps, quorum=1.0)
    return {
        "PBT every 50": (task, plain),
        "MF-PBT (1, 5) every 50": (task, replace(plain, exploit=MultiFrequency((1, 5)))),
        "PB2 every 50": (task, replace(plain, explore=phyla.strategies.PB2())),
        "PB2 without a radius every 50": (task, replace(plain, explore=phyla.strategies.PB2(radius=1.0))),
        "random": (task, phyla.RandomSearch(16, task.steps)),
    }


PROBLEMS = {"quadratic": on_quadratic, "deceptive": on_deceptive, "momentum": on_momentum}


def main() -> None:
    """Print a table of each problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=[*PROBLEMS], help=", ".join(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--only", default="", help="strategies whose name has this")
    parser.add_argument("--real", action="store_true", help="studies with a worker, a store and checkpoints")
    options = parser.parse_args()
    for problem in options.problems:
        contenders = {name: pair for name, pair in PROBLEMS[problem]().items() if options.only in name}
        score = _score_of_study if options.real else best
        values = {
            name: np.array([score(*pair, seed) for seed in range(options.seeds)])
            for name, pair in contenders.items()
        }
        print(f"\n{problem}, {options.seeds} seeds\n\n| strategy | median | quartiles |\n|---|---|---|")
        sign = 1 if problem == "deceptive" else -1
        for name, scores in values.items():
            low, middle, high = sorted(sign * np.percentile(scores, (25, 50, 75)))
            print(f"| {name} | {middle:.4g} | {low:.4g} to {high:.4g} |")
        if problem == "momentum" and len(values) > 1:
            *others, baseline = values
            for name in others:
                p = wilcoxon(values[name], values[baseline]).pvalue
                print(f"{name} against {baseline}, paired: p = {p:.2g}")


def _score_of_study(task: Task, strategy: Strategy, seed: int) -> float:
    winner = run(task, strategy, seed).best
    assert winner is not None
    return float(winner.fitness)


if __name__ == "__main__":
    main()
