"""Studies for the tests of reports: a simulated one, driven by the real controller, and a large made-up one."""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from phyla import machine
from phyla.controller import Controller
from phyla.records import (
    Aim,
    Attempt,
    AttemptState,
    Checkpoint,
    Goal,
    JobState,
    Maximize,
    Member,
    MemberState,
    Minimize,
    StudyRecord,
    StudyState,
    TrialRecord,
)
from phyla.report import StudyData
from phyla.report.columns import Attempts, Trials
from phyla.space import Choice, Float, Int, Ordinal, Space
from phyla.store import open_store
from phyla.strategies import PBT, Perturb, Truncation

START = 1_767_600_000.0


class _Known:
    """Reads trials from a list instead of a store."""

    def __init__(self, records: Iterable[TrialRecord]) -> None:
        self.records = list(records)
        self._by_id = {trial.id: trial for trial in self.records}

    def __call__(self, ids: Sequence[int]) -> list[TrialRecord]:
        return [self._by_id[one] for one in ids]


def columns(records: Iterable[TrialRecord], goals: Sequence[Goal] = ()) -> Trials:
    """What figures read of some trials."""
    known = _Known(records)
    return Trials.of(known.records, known, goals)


def records_of(data: StudyData) -> list[TrialRecord]:
    """The trials that a study was made of."""
    known = data.trials.read
    assert isinstance(known, _Known)
    return known.records


def completed(data: StudyData) -> list[TrialRecord]:
    """Completed trials by id."""
    return [*data.trials.records(range(len(data.trials)))]


def winner_path(data: StudyData) -> list[TrialRecord]:
    """The trials that trained the winner's weights, root first."""
    return [*data.trials.records(data.winner_path)]


class VirtualClock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def simulated(
    *,
    members: int = 8,
    generations: int = 20,
    workers: int = 4,
    maximize: bool = True,
    failing: float = 0.06,
    name: str = "digits, small network",
    seed: int = 3,
    until: int | None = None,
    quantile: float = 0.25,
) -> StudyData:
    """A population whose best learning rate falls over time, with noise, failing trials and lost workers."""
    clock, rng = VirtualClock(), np.random.default_rng(seed)
    metric = "accuracy" if maximize else "loss"
    space = Space(
        {
            "opt": {"lr": Float(1e-4, 1.0, log=True), "momentum": Float(0.0, 0.99)},
            "batch": Ordinal([16, 32, 64, 128]),
            "layers": Int(1, 8),
            "augment": Choice([True, False]),
            "activation": Choice(["relu", "gelu", "tanh"]),
        }
    )
    steps = 250
    pbt = PBT(
        population_size=members,
        steps_per_trial=steps,
        total_steps=steps * generations,
        exploit=Truncation(quantile),
        explore=Perturb(factors=(0.8, 1.25), resample=0.1),
    )
    rules = machine.TrainRules(
        space=space,
        objective=Maximize(metric) if maximize else Minimize(metric),
        strategy=pbt,
        max_attempts=2,
        lease_s=1e6,
    )
    store = open_store("memory://", clock=clock)
    study = store.create_study(name, {"schema": 1, "space": space.config(str)}, seed, members)
    controller = Controller(store, study.id, rules)
    skill: dict[str, float] = {}
    queue: list[tuple[float, int, int, Any]] = [(START + 2.0 * w, w, w, None) for w in range(workers)]
    heapq.heapify(queue)
    turn, completed = workers, 0
    while queue and (until is None or completed < until):
        clock.now, _, number, claimed = heapq.heappop(queue)
        worker = f"node{number % 2}:{4000 + number}:{int(START)}"
        done: list[machine.Completion] = []
        if claimed is not None:
            trial = claimed.trial
            draw = rng.random()
            if draw < failing:
                error = "Traceback (most recent call last):\n  ...\nRuntimeError: CUDA error: out of memory"
                again = bool(rng.random() < 0.4)
                controller.fail(machine.Failure(job=trial.id, token=trial.token, error=error, retryable=again))
            elif draw < failing * 1.3:
                controller.lose_worker(worker, "the worker was killed by signal 9", counts=False)
            else:
                done = [_trained(study.id, trial, skill, rng, maximize)]
                completed += 1
        _, claims, _ = controller.complete(done, worker, 1)
        if claims:
            turn += 1
            ends = clock.now + float(rng.gamma(12.0, 3.5)) * (1.4 if number % 2 else 1.0)
            (work,) = claims
            assert isinstance(work, machine.Claimed)
            heapq.heappush(queue, (ends, turn, number, work))
    with store.reader(study.id) as reader:
        trials = reader.trials()
        folder = Path("/data/runs/digits/checkpoints")
        return StudyData(
            study=reader.study(),
            members=reader.members(),
            trials=columns(trials),
            attempts=Attempts.of(reader.trial_attempts()),
            aim=Aim.of(rules.objective),
            path_of=lambda name: str(folder / name),
        )


def _trained(
    study: int, trial: TrialRecord, skill: dict[str, float], rng: np.random.Generator, maximize: bool
) -> machine.Completion:
    before = skill[trial.parent_checkpoint] if trial.parent_checkpoint else 0.0
    params = trial.params
    rate = cast("float", params["opt/lr"])
    best = -1.0 - 2.2 * trial.start_step / 5000
    fit = math.exp(-((math.log10(rate) - best) ** 2) / 0.5) + (0.15 if params["augment"] else 0.0)
    after = before + (1.0 - before) * 0.16 * fit
    name = f"{trial.id}.{trial.token}"
    skill[name] = after
    fitness = 0.1 + 0.87 * after + float(rng.normal(0, 0.012))
    if not maximize:
        fitness = 2.3 * (1 - after) + 0.05 * float(rng.random())
    if rate > 0.7 and rng.random() < 0.5:
        fitness = float("nan")
    return machine.Completion(
        trial=trial.id,
        token=trial.token,
        reached_step=trial.end_step,
        values={"accuracy": [fitness], "loss": [fitness]},
        metrics={},
        checkpoint=Checkpoint(
            name=name, study=study, trial=trial.id, step=trial.end_step, identity="", size_bytes=1, created_at=0.0
        ),
    )


def empty(*, config: dict[str, Any] | None = None, name: str = "nothing yet") -> StudyData:
    """A study that was only just created."""
    return StudyData(
        study=StudyRecord(
            id=1,
            name=name,
            state=StudyState.RUNNING,
            config=config or {},
            seed=0,
            population_size=3,
            created_at=START,
        ),
        members=[Member(study=1, index=index, state=MemberState.READY) for index in range(3)],
        trials=columns([]),
        attempts=Attempts.of([]),
        aim=Aim.of(Maximize("accuracy")),
    )


def large(members: int, generations: int, seed: int = 0) -> StudyData:
    """Many trials, made up without a controller; every tenth decision takes over a better neighbour."""
    rng = np.random.default_rng(seed)
    trials: list[TrialRecord] = []
    attempts: list[Attempt] = []
    heads: dict[int, TrialRecord] = {}
    noise = rng.normal(0, 0.01, members * generations)
    chance = rng.random(members * generations)
    for generation in range(generations):
        for member in range(members):
            key = len(trials) + 1
            head = heads.get(member)
            other = heads.get((member * 7 + generation) % members)
            jumps = head and other and chance[key - 1] < 0.1 and (other.order or 0) > (head.order or 0)
            parent = other if jumps else head
            lr = 0.1 if parent is None else cast("float", parent.params["lr"])
            changed = lr * (0.8 if key % 2 else 1.25) if jumps or parent is None else lr
            fitness = 1 - math.exp(-(generation + 1) / 60) + 0.03 * (member % 5) + float(noise[key - 1])
            claimed = START + 60.0 * generation + 0.1 * (member // 16)
            trial = TrialRecord(
                id=key,
                study=1,
                member=member,
                generation=generation,
                state=JobState.COMPLETED,
                parent=parent.id if parent else None,
                jump_from=head.id if jumps and head else None,
                params={"lr": changed, "opt/momentum": 0.9, "layers": 3, "activation": "relu"},
                start_step=generation * 1000,
                end_step=(generation + 1) * 1000,
                reached_step=(generation + 1) * 1000,
                seed=0,
                token=1,
                fitness=fitness,
                order=fitness,
                checkpoint=f"{key}.1",
                reason={"decision": "exploit" if jumps else "continue", "compared": {"why": "not in the bottom"}},
                worker=f"node{member % 16}:1:1",
                created_at=claimed,
                started_at=claimed,
                ended_at=claimed + 55,
            )
            trials.append(trial)
            heads[member] = trial
            attempts.append(
                Attempt(
                    job=key,
                    token=1,
                    study=1,
                    worker=f"node{member % 16}:1:1",
                    state=AttemptState.COMPLETED if key % 50 else AttemptState.FAILED,
                    claimed_at=claimed,
                    expires_at=claimed + 60,
                    ended_at=claimed + 55,
                )
            )
    base = empty(name="large")
    return replace(
        base,
        study=replace(base.study, population_size=members, state=StudyState.COMPLETED),
        members=[Member(study=1, index=index, state=MemberState.DONE) for index in range(members)],
        trials=columns(trials),
        attempts=Attempts.of(attempts),
    )
