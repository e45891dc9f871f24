"""Where the time of a trial goes."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phyla
from phyla.checkpoints import LocalCheckpoints
from phyla.client import Client
from phyla.machine import Claimed, Failure
from phyla.records import Phase
from phyla.store import open_store
from phyla.worker import Trainer, session_of
from phyla.worker.training.stopwatch import Stopwatch
from storing import VirtualClock, pbt, rules

WHAT = st.sampled_from(Phase)


@given(st.lists(st.tuples(WHAT, st.integers(0, 50), st.booleans()), max_size=30))
def test_the_phases_add_up_to_the_time(moves: list[tuple[Phase, int, bool]]) -> None:
    clock = VirtualClock(0.0)
    watch = Stopwatch(clock)
    taken: dict[str, float] = {}
    for phase, seconds, take in moves:
        watch.enter(phase)
        clock.now += seconds
        if take:
            for name, spent in watch.take().items():
                taken[name] = taken.get(name, 0.0) + spent
    for name, spent in watch.take().items():
        taken[name] = taken.get(name, 0.0) + spent
    expected = {phase: sum(s for p, s, _ in moves if p is phase) for phase in Phase}
    assert taken == {phase.value: float(spent) for phase, spent in expected.items() if spent}
    assert watch.take() == {}


def test_a_phase_within_another_ends_also_by_an_error() -> None:
    clock = VirtualClock(0.0)
    watch = Stopwatch(clock, Phase.TRAINING)

    def fails() -> None:
        with watch.within(Phase.SAVING):
            clock.now += 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    clock.now += 3
    assert watch.take() == {"saving": 2.0, "training": 3.0}


class Bench:
    """A trainer whose time only moves when training code says so."""

    def __init__(self, folder: Path, train: Callable[[phyla.Trial], object]) -> None:
        self.clock = VirtualClock()
        self.store = open_store("memory://", clock=self.clock)
        decided_by = rules(pbt(1))
        study = self.store.create_study("s", {}, 1, 1)
        repository = LocalCheckpoints(folder / "checkpoints")
        self.client = Client(self.store, study, decided_by, repository)
        self.trainer = Trainer(
            self.client,
            repository,
            train,
            metrics=("score",),
            work_root=folder / "work",
            clock=self.clock,
            timer=self.clock,
        )

    def run(self) -> Mapping[str, float] | None:
        """Train one trial, hand it in, and return where its time went."""
        _, (work,), _ = self.client.exchange((), "w", 1)
        assert isinstance(work, Claimed)
        done = self.trainer.run(work.trial)
        if done is None:
            self.client.release(work.trial.id, work.trial.token)
        elif isinstance(done, Failure):
            self.client.fail(done)
        else:
            self.client.exchange([done], "w", 0)
        with self.store.reader(1) as reader:
            return reader.trial_attempts()[-1].timings


def save(trial: phyla.Trial) -> None:
    (trial.checkpoint_dir / "weights").write_text("w")
    trial.report(score=1.0)


def test_a_trial_loads_trains_and_saves(tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        bench.clock.now += 3
        for step in trial.steps():
            bench.clock.now += 2
            if step == trial.start_step + 1:
                (trial.checkpoint_dir / "half").write_text("w")
                trial.save_progress()
        bench.clock.now += 1
        save(trial)

    bench = Bench(tmp_path, train)
    bench.clock.now += 7
    assert bench.run() == {"control": 7.0, "loading": 3.0, "training": 10.0, "saving": 1.0}
    assert bench.run() == {"loading": 3.0, "training": 10.0, "saving": 1.0}


def test_a_loop_that_is_left_early_ends_training(tmp_path: Path) -> None:
    kept = []

    def train(trial: phyla.Trial) -> None:
        steps = trial.steps()
        kept.append(steps)  # so that it is closed late
        for _ in steps:
            bench.clock.now += 2
            if trial.generation and next(steps):
                break
        bench.clock.now += 1
        save(trial)

    bench = Bench(tmp_path, train)
    assert bench.run() == {"training": 10.0, "saving": 1.0}
    bench.run()
    bench.clock.now += 5
    kept.clear()
    assert bench.trainer.watch.take() == {"control": 5.0}


def test_without_steps_all_is_training(tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        bench.clock.now += 4
        save(trial)

    bench = Bench(tmp_path, train)
    assert bench.run() == {"training": 4.0}


@pytest.mark.parametrize(("steps", "expected"), [(0, {"loading": 3.0}), (2, {"loading": 3.0, "training": 4.0})])
def test_a_trial_that_failed_tells_its_time(tmp_path: Path, steps: int, expected: Mapping[str, float]) -> None:
    def train(trial: phyla.Trial) -> None:
        bench.clock.now += 3
        if steps:
            for step in trial.steps():
                bench.clock.now += 2
                assert step < steps - 1, "broken"
        raise ValueError("broken")

    bench = Bench(tmp_path, train)
    assert bench.run() == expected


def test_what_went_back_to_the_queue_is_nobodys_time(tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        bench.clock.now += 3
        if trial.token == 1:
            session_of(trial).stop()
            assert trial.should_stop
        else:
            save(trial)

    bench = Bench(tmp_path, train)
    assert bench.run() is None
    assert bench.run() == {"training": 3.0}
