"""Studies on a virtual clock through the real engine, on the tasks of the reference simulation of the quorum."""

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from phyla.controller import Controller
from phyla.machine import Claimed, Completion, Ended, TrainRules
from phyla.records import Checkpoint, Maximize
from phyla.space import Float, Space
from phyla.store import open_store
from phyla.strategies import PBT, Perturb, Truncation

TOTAL, PER = 200, 4


@dataclass(frozen=True)
class Outcome:
    """What a study came to: its best score, the age of the weights that had it, and when the last trial ended."""

    score: float
    age: int
    time: float
    oldest: int
    trials: int


def triangle(score: float, lr: float, rng: random.Random) -> float:
    """One step of the task: the best learning rate rises, then falls, with the score."""
    best = min(0.01, max(0.001, 0.01 * score / 100 if score < 100 else 0.01 - 0.01 * (score - 100) / 100))
    ratio = max(lr, best) / min(lr, best)
    if ratio < 3:
        score += rng.random() / ratio
    elif lr > best:
        score -= (ratio - 3) * rng.random()
    return max(0.0, score)


def by_age(score: float, lr: float, rng: random.Random) -> float:
    """One step of a task where only the number of steps counts."""
    return score + 1


def study(
    quorum: float,
    members: int,
    workers: int,
    seed: int,
    *,
    task: Callable[[float, float, random.Random], float] = triangle,
    slow: float = 1,
    spread: float = 0.1,
    overshoot: int = 0,
    stuck: bool = False,
    total: int = TOTAL,
) -> Outcome:
    """Run a study.

    Args:
        quorum: of its strategy.
        members: size of the population.
        workers: how many work.
        seed: of the study, and of the task.
        task: what a step does to a score.
        slow: how many times slower worker 0 is.
        spread: standard deviation of the logarithm of a trial's duration.
        overshoot: steps, at most, that a trial trains beyond its end.
        stuck: worker 0 never hands in its third trial.
        total: steps of the study.
    """
    rng = random.Random(seed)
    strategy = PBT(
        population_size=members,
        steps_per_trial=PER,
        total_steps=total,
        exploit=Truncation(0.25),
        explore=Perturb(factors=(0.8, 1.2), resample=0.25, clip=True),
        quorum=quorum,
    )
    rules = TrainRules(
        space=Space(lr=Float(1e-4, 0.02, log=True)), objective=Maximize("score"), strategy=strategy, lease_s=1e9
    )
    now = [1_000_000.0]
    store = open_store("memory://", clock=lambda: now[0])
    record = store.create_study("quorum", {}, seed, members)
    controller = Controller(store, record.id, rules)
    scores: dict[int, float] = {}
    running: list[tuple[float, int, Claimed, float, int]] = []
    idle, best, oldest, trials = list(range(workers)), (-1.0, 0), 0, 0
    claimed_by_0 = 0

    def begin(worker: int, work: Claimed) -> None:
        nonlocal claimed_by_0
        trial = work.trial
        steps = trial.end_step - trial.start_step + (rng.randint(0, overshoot) if overshoot else 0)
        score = 0.0 if trial.parent is None else scores[trial.parent]
        for _ in range(steps):
            score = task(score, float(str(trial.params["lr"])), rng)
        takes = steps * rng.lognormvariate(0, spread) * (slow if worker == 0 else 1)
        if worker == 0:
            claimed_by_0 += 1
            if stuck and claimed_by_0 == 3:
                return
        heapq.heappush(running, (now[0] + takes, worker, work, score, trial.start_step + steps))

    def ask(worker: int, done: list[Completion]) -> bool:
        _, claimed, rest = controller.complete(done, f"host:{worker}:{worker}:1", 1)
        for work in claimed:
            assert isinstance(work, Claimed)
            begin(worker, work)
        assert claimed or rest is not None
        return bool(claimed) or isinstance(rest, Ended)

    idle = [worker for worker in idle if not ask(worker, [])]
    while running:
        now[0], worker, work, score, reached = heapq.heappop(running)
        trial = work.trial
        scores[trial.id] = score
        trials += 1
        oldest = max(oldest, reached)
        best = max(best, (score, reached))
        done = Completion(
            trial=trial.id,
            token=trial.token,
            reached_step=reached,
            values={"score": [score]},
            metrics={"score": score},
            reports=[],
            checkpoint=Checkpoint(
                name=f"{trial.id}.{trial.token}",
                study=trial.study,
                trial=trial.id,
                step=reached,
                identity="d",
                size_bytes=1,
                created_at=now[0],
            ),
            timings={},
        )
        waiting = [] if ask(worker, [done]) else [worker]
        # Workers that wait are woken by what completed.
        idle = [*(other for other in idle if not ask(other, [])), *waiting]
    return Outcome(score=best[0], age=best[1], time=now[0] - 1_000_000.0, oldest=oldest, trials=trials)


def mean(outcomes: list[Outcome]) -> Outcome:
    """Return the mean of each number."""
    count = len(outcomes)
    return Outcome(
        score=math.fsum(one.score for one in outcomes) / count,
        age=round(sum(one.age for one in outcomes) / count),
        time=math.fsum(one.time for one in outcomes) / count,
        oldest=max(one.oldest for one in outcomes),
        trials=round(sum(one.trials for one in outcomes) / count),
    )
