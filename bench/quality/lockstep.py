"""Studies on cheap tasks, many seeds at once: phyla decides, and NumPy trains the members of all seeds together.

Members keep in step, as with `quorum=1.0`, without a store and files: a study with the same seed decides the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from in_step import advance

import phyla
from phyla.records import JobState, Member, MemberState, TrialRecord
from phyla.strategies import Context, Start, Strategy, decision_rng, trial_seed

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Arrays = dict[str, Any]
"""Arrays by name. The first axis of a state is the member of a seed; of a world, the seed; of draws, the step."""
Decay = Callable[[Any], Any]
"""Factor of the learning rate at a share of the training."""


def constant(share: Any) -> Any:
    """No decay."""
    return np.ones_like(share)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What the members of all seeds train with.

    Attributes:
        world: data of each seed.
        seeds: place of each member's seed in the world.
        total: steps of the whole training.
        params: hyperparameters of each member.
        ages: steps that its weights have been trained.
        count: steps to train.
        drawn: random numbers.
        decay: factor of the learning rates.
    """

    world: Arrays
    seeds: Ints
    total: int
    params: Arrays = field(default_factory=dict)
    ages: Array = field(default_factory=lambda: np.zeros(0))
    count: int = 0
    drawn: Arrays = field(default_factory=dict)
    decay: Decay

    def rate(self, name: str, step: int) -> Any:
        """Return a learning rate of each member at a step of the trial."""
        return self.params[name] * self.decay((self.ages + step) / self.total)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task whose members of all seeds are trained at once.

    Attributes:
        name: in tables.
        title: what it is.
        report: what its value is, with its unit.
        unit: the smallest difference of the value that is worth having.
        maximize: whether high values are good.
        space: hyperparameters.
        members: of a population.
        steps: of a member.
        intervals: steps between two decisions: few, the default, many.
        world: data of a seed.
        fresh: weights of a number of members in a world.
        draw: random numbers of a number of steps and members.
        train: the state after some steps.
        averaged: the same by schedule-free SGD; None where it is no gradient descent.
        score: what selection sees, lower is better unless `maximize`.
        value: what is reported, exact or on data that selection never saw.
        final_only: whether only weights at the end of the training count; else the best score ever wins, among
            those at the end of trials and of default intervals.
    """

    name: str
    title: str
    report: str
    unit: float
    maximize: bool = False
    space: phyla.Space
    members: int = 16
    steps: int = 1000
    intervals: tuple[int, int, int] = (20, 50, 100)
    world: Callable[[int], Arrays] = lambda seed: {}
    fresh: Callable[[Arrays, np.random.Generator, int], Arrays]
    draw: Callable[[np.random.Generator, int, int], Arrays] = lambda rng, count, members: {}
    train: Callable[[Arrays, Rows], Arrays]
    averaged: Callable[[Arrays, Rows], Arrays] | None = None
    score: Callable[[Arrays, Rows], Array]
    value: Callable[[Arrays, Rows], Array]
    final_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to train: whose decisions, and under which decay.

    Attributes:
        strategy: makes the decisions.
        decay: factor of the learning rates at a share of the training.
        averaged: whether schedule-free SGD trains.
    """

    strategy: Strategy
    decay: Decay
    averaged: bool = False


class DecisionRng:
    """The generator of a decision, made when it is used: most decisions of a population use none."""

    def __init__(self, seed: int, member: Member) -> None:
        self._seed, self._member = seed, member

    @cached_property
    def _rng(self) -> np.random.Generator:
        rng = decision_rng(self._seed, self._member.index, self._member.generation, 0)
        trial_seed(rng)  # drawn first in a study
        return rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rng, name)


class Recording:
    """The study of one seed; it is the history that its strategy sees."""

    def __init__(self, task: Task, strategy: Strategy, seed: int) -> None:
        self.strategy, self.seed, self.size, self._task = strategy, seed, strategy.population_size, task
        self.members = [Member(study=0, index=index, state=MemberState.READY) for index in range(self.size)]
        self.spent = 0
        self._completed = dict[int, tuple[Member, Start, float]]()

    def starts(self) -> list[tuple[Member, Start]]:
        """Return what members do next; those that stop are left out for good."""
        open_ones = [member for member in self.members if not self.strategy.finished(member)]
        decisions = [(member, self._decide(member, open_ones)) for member in open_ones]
        return [(member, decision) for member, decision in decisions if isinstance(decision, Start)]

    def _decide(self, member: Member, population: Sequence[Member]) -> Any:
        rng: Any = DecisionRng(self.seed, member)
        history: Any = self
        objective = phyla.Maximize("score")
        context = Context(space=self._task.space, objective=objective, rng=rng, now=0.0, history=history)
        return self.strategy.decide(member, population, context)

    def complete(self, starts: Sequence[tuple[Member, Start]], orders: Sequence[float]) -> None:
        """Publish the scores, higher is better; members that did not start have ended."""
        for (member, start), order in zip(starts, orders, strict=True):
            self._completed[member.generation * self.size + member.index] = member, start, order
            self.spent += start.steps
        self.members = [advance(*pair, order, self.size) for pair, order in zip(starts, orders, strict=True)]

    def trial(self, trial_id: int) -> TrialRecord:
        """Return a completed trial."""
        member, start, order = self._completed[trial_id]
        parent, head = start.weights, member.head
        begun = 0 if parent is None else parent.age
        jumped = parent is not None and head is not None and parent.trial != head.trial
        return TrialRecord(
            id=trial_id,
            study=0,
            member=member.index,
            generation=member.generation,
            state=JobState.COMPLETED,
            parent=None if parent is None else parent.trial,
            jump_from=head.trial if jumped and head is not None else None,
            params=start.params,
            start_step=begun,
            end_step=begun + start.steps,
            reached_step=begun + start.steps,
            seed=0,
            fitness=order,
            order=order,
            checkpoint="",
            age=begun,
            created_at=0.0,
            ended_at=float(member.generation),
        )

    def results(self, generation: int) -> Mapping[int, float]:
        """Return the scores of the members that completed a generation."""
        return {
            member.index: order for member, _, order in self._completed.values() if member.generation == generation
        }

    def last_completed(self, count: int) -> list[TrialRecord]:
        """Return the newest trials, newest first."""
        return [self.trial(trial) for trial in sorted(self._completed, reverse=True)[:count]]

    def ended(self, step: int | None) -> list[TrialRecord]:
        """Return nothing, as no trial breaks."""
        return []

    def unfinished(self) -> list[TrialRecord]:
        """Return nothing, as all trials have completed when decisions are made."""
        return []


@dataclass
class Best:
    """The best score of a seed so far, and what it is worth."""

    order: float = -np.inf
    value: float = np.nan
    age: int = 0


class Study(Protocol):
    """The study of one seed, as `run` needs it."""

    seed: int
    size: int
    spent: int

    def starts(self) -> list[tuple[Member, Start]]:
        """Return what members do next; those that stop are left out for good."""
        ...

    def complete(self, starts: Sequence[tuple[Member, Start]], orders: Sequence[float]) -> None:
        """Publish the scores, higher is better."""
        ...


def run(
    task: Task, way: Way, seeds: Sequence[int], studies: Sequence[Study] | None = None
) -> list[dict[str, Any]]:
    """Return what the studies of some seeds came to: `value`, the `age` of its weights, and steps `spent`.

    Args:
        task: the task.
        way: how members train.
        seeds: the seeds.
        studies: one a seed, if not the way's strategy decides. They may start from the last two generations.
    """
    studies = studies or [Recording(task, way.strategy, seed) for seed in seeds]
    bests = [Best() for _ in seeds]
    world = worlds(task, seeds)
    kept: dict[tuple[int, int], tuple[int, int]] = {}
    states = dict[int, Arrays]()
    generation = 0
    while any(starts := [study.starts() for study in studies]):
        flat = [(place, member, start) for place, ones in enumerate(starts) for member, start in ones]
        begun = [_origin(place, start, kept) for place, _, start in flat]
        state = _fresh(task, world, seeds, starts) if generation == 0 else _gathered(states, begun)
        state, orders = _trained(task, way, world, seeds, flat, state, bests)
        at = 0
        for place, ones in enumerate(starts):
            kept |= {
                (place, member.generation * studies[place].size + member.index): (generation, at + row)
                for row, (member, _) in enumerate(ones)
            }
            studies[place].complete(ones, orders[at : at + len(ones)].tolist())
            at += len(ones)
        states[generation] = state
        states.pop(generation - max(2, way.strategy.keeps_generations), None)
        generation += 1
    return [
        {"seed": study.seed, "value": best.value, "age": best.age, "spent": study.spent}
        for study, best in zip(studies, bests, strict=True)
    ]


def worlds(task: Task, seeds: Sequence[int]) -> Arrays:
    """Return the data of all seeds."""
    found = [task.world(seed) for seed in seeds]
    return {name: np.stack([world[name] for world in found]) for name in found[0]}


def _origin(place: int, start: Start, kept: Mapping[tuple[int, int], tuple[int, int]]) -> tuple[int, int]:
    return (-1, -1) if start.weights is None else kept[place, start.weights.trial]


def _fresh(
    task: Task, world: Arrays, seeds: Sequence[int], starts: Sequence[Sequence[Any]], draw: int = 0
) -> Arrays:
    """Return fresh weights for as many members of each seed as start."""
    found = []
    for place, (seed, ones) in enumerate(zip(seeds, starts, strict=True)):
        data = {name: values[place] for name, values in world.items()}
        found.append(task.fresh(data, np.random.default_rng([seed, 0, draw]), len(ones)))
    return {name: np.concatenate([state[name] for state in found]) for name in found[0]}


def _gathered(states: Mapping[int, Arrays], origins: Sequence[tuple[int, int]]) -> Arrays:
    generations, places = (np.array(column) for column in zip(*origins, strict=True))
    newest = states[max(generations)]
    gathered = {name: np.empty((len(places), *values.shape[1:]), values.dtype) for name, values in newest.items()}
    for generation in set(generations.tolist()):
        taken = generations == generation
        for name, values in gathered.items():
            values[taken] = states[generation][name][places[taken]]
    return gathered


def _trained(
    task: Task,
    way: Way,
    world: Arrays,
    seeds: Sequence[int],
    flat: Sequence[tuple[int, Member, Start]],
    state: Arrays,
    bests: Sequence[Best],
) -> tuple[Arrays, Array]:
    """Train all members for one trial, and look at them at the default interval whatever its length."""
    starts = [start for _, _, start in flat]
    places, progress = np.array([place for place, _, _ in flat]), flat[0][1].progress
    counts = np.bincount(places, minlength=len(seeds)).tolist()
    train = task.averaged if way.averaged and task.averaged else task.train
    rows = Rows(
        world=world,
        seeds=places,
        total=task.steps,
        params={name: np.array([start.params[name] for start in starts]) for name in task.space.parameters},
        ages=np.array([0.0 if start.weights is None else start.weights.age for start in starts]),
        decay=way.decay,
    )
    end, orders = progress + starts[0].steps, np.zeros(0)
    while progress < end:
        until = min(end, progress + task.intervals[1] - progress % task.intervals[1])
        drawn = [
            task.draw(np.random.default_rng([seed, 1, progress]), until - progress, count)
            for seed, count in zip(seeds, counts, strict=True)
        ]
        joined = {name: np.concatenate([one[name] for one in drawn], axis=1) for name in drawn[0]}
        rows = replace(rows, count=until - progress, drawn=joined)
        state = train(state, rows)
        orders = _orders(task, state, rows)
        rows = replace(rows, ages=rows.ages + rows.count)
        if until == task.steps or not task.final_only:
            _note_best(task, bests, state, rows, orders)
        progress = until
    return state, orders


def _orders(task: Task, state: Arrays, rows: Rows) -> Array:
    """Return scores of which the higher is better."""
    scores = task.score(state, rows) * (1 if task.maximize else -1)
    orders: Array = np.nan_to_num(scores, nan=-np.inf, posinf=-np.inf)
    return orders


def _note_best(task: Task, bests: Sequence[Best], state: Arrays, rows: Rows, orders: Array) -> None:
    """Remember the best score of each seed, and measure what it is worth."""
    improved = list[tuple[int, int]]()
    for place, best in enumerate(bests):
        mine = np.flatnonzero(rows.seeds == place)
        if len(mine) and orders[mine].max() > best.order:
            improved.append((place, int(mine[orders[mine].argmax()])))
    if not improved:
        return
    chosen = np.array([row for _, row in improved])
    picked = {name: array[chosen] for name, array in state.items()}
    values = task.value(picked, replace(rows, seeds=rows.seeds[chosen])).tolist()
    for (place, row), value in zip(improved, values, strict=True):
        bests[place].order, bests[place].value, bests[place].age = float(orders[row]), value, int(rows.ages[row])


def alone(
    task: Task, way: Way, seeds: Sequence[int], propose: Callable[[int], Any], tell: Callable[[int, float], None]
) -> list[dict[str, Any]]:
    """Train one member of each seed after the other, as a sequential search does, to the steps of a population.

    Args:
        task: the task.
        way: its decay; its strategy does not matter.
        seeds: the seeds.
        propose: hyperparameters of the next member of the seed at a place.
        tell: its score, higher is better.
    """
    world, bests = worlds(task, seeds), [Best() for _ in seeds]
    everyone = [Member(study=0, index=0, state=MemberState.READY)]
    for index in range(task.members):
        proposed = [propose(place) for place in range(len(seeds))]
        starts = [
            Start(weights=None, params=params, params_from=None, steps=task.steps, reason={})
            for params in proposed
        ]
        flat = [(place, everyone[0], start) for place, start in enumerate(starts)]
        state = _fresh(task, world, seeds, [everyone] * len(seeds), index)
        # Other random numbers than those of the member before.
        _, orders = _trained(task, way, world, [seed + 10_000 * index for seed in seeds], flat, state, bests)
        for place, order in enumerate(orders.tolist()):
            tell(place, order)
    spent = task.members * task.steps
    return [
        {"seed": seed, "value": best.value, "age": best.age, "spent": spent}
        for seed, best in zip(seeds, bests, strict=True)
    ]


def batches(seeds: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Iterate over parts of the seeds."""
    for start in range(0, len(seeds), size):
        yield seeds[start : start + size]
