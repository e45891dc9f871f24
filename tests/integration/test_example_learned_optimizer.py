"""The example of a learned optimizer: its inner problems, its meta-training, its suite and its study."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import gin
import numpy as np
import pytest

import phyla
from learned_optimizer.inner import TRAINING, Logistic, Network, Problem, Quadratic, Valley
from learned_optimizer.optimizer import (
    META_PARAMETERS,
    SGD,
    Adam,
    Learned,
    baseline,
    fresh,
    log_ratio,
    tuned,
    unroll,
)
from learned_optimizer.study import make_study, problems
from learned_optimizer.suite import IN, log_speedup, make_suite
from learned_optimizer.train import MetaState, es_gradient, meta_losses, meta_step
from phyla.records import Group
from phyla.store import open_store

CONFIG = Path(__file__).parents[2] / "examples" / "learned_optimizer" / "config.gin"

WITHOUT_NOISE: dict[str, Problem] = {
    "quadratic": Quadratic(dimension=6, noise=0.0),
    "valley": Valley(dimension=5, noise=0.0),
    "logistic": Logistic(inputs=4, examples=16, batch=0),
    "regression": Network(kind="regression", inputs=3, hidden=4, outputs=2, examples=8, batch=0),
    "classification": Network(kind="classification", inputs=3, hidden=4, outputs=3, examples=8, batch=0),
}
NOISY: tuple[Problem, ...] = (*TRAINING, Valley())


@pytest.fixture(autouse=True)
def _clean_gin() -> Iterator[None]:
    yield
    gin.clear_config()


@pytest.mark.parametrize("name", WITHOUT_NOISE)
def test_gradients_are_those_of_the_loss(name: str) -> None:
    drawn = WITHOUT_NOISE[name].draw([3, 4], 1)
    theta = drawn.start + 0.3 * np.random.default_rng(0).normal(size=drawn.start.shape)
    estimate = np.empty_like(theta)
    for column in range(theta.shape[1]):
        step = np.zeros_like(theta)
        step[:, column] = 1e-5
        estimate[:, column] = (drawn.loss(theta + step) - drawn.loss(theta - step)) / 2e-5
    assert drawn.gradient(theta, 0) == pytest.approx(estimate, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("problem", NOISY, ids=repr)
def test_an_instance_hangs_on_its_seed_alone(problem: Problem) -> None:
    curves = unroll(Adam(lr=0.05), problem, [7, 8, 9], steps=12)
    assert np.array_equal(curves, unroll(Adam(lr=0.05), problem, [7, 8, 9], steps=12))
    # Neither the other seeds nor how long it goes on make a difference, beyond rounding.
    assert unroll(Adam(lr=0.05), problem, [9, 7], steps=12) == pytest.approx(curves[[2, 0]], rel=1e-9)
    assert unroll(Adam(lr=0.05), problem, [7, 8, 9], steps=5) == pytest.approx(curves[:, :6], rel=1e-9)
    assert not np.allclose(curves[0], curves[1], rtol=0.01)


def test_gradient_noise_averages_out() -> None:
    problem = Logistic(inputs=4, examples=32, batch=4)
    drawn = problem.draw([5], 2000)
    theta = np.full((1, 4), 0.5)
    exact = Logistic(inputs=4, examples=32, batch=0).draw([5], 1)
    noisy = np.concatenate([drawn.gradient(theta, step) for step in range(2000)])
    assert np.abs(noisy.mean(axis=0) - exact.gradient(theta, 0)[0]).max() < 5 * noisy.std() / np.sqrt(2000)


def test_each_row_of_meta_parameters_is_an_optimizer_of_its_own() -> None:
    rng = np.random.default_rng(1)
    metas = np.stack([fresh(rng), fresh(rng)])
    together = unroll(Learned(meta=metas), Quadratic(), [3, 3], steps=10)
    for row in (0, 1):
        alone = unroll(Learned(meta=metas[row]), Quadratic(), [3], steps=10)
        assert together[row] == pytest.approx(alone[0], rel=1e-9)


def test_optimizers_that_diverge_end_at_the_ceiling() -> None:
    curves = unroll(SGD(lr=1e3), Quadratic(), [1, 2])
    assert np.isfinite(curves).all()
    assert curves[:, -1] == pytest.approx(10.0 * curves[:, 0])


def test_tuned_baselines_are_better_than_untuned_ones() -> None:
    problem = Quadratic(steps=30)
    seeds = tuple(range(8))
    adam = baseline("adam", problem, seeds)
    for lr in (0.003, 1.0):
        assert log_ratio(unroll(Adam(lr=lr), problem, seeds), adam).mean() > 0.1
    assert isinstance(tuned("sgd", problem), SGD)


def test_the_estimated_meta_gradient_points_the_right_way() -> None:
    rng = np.random.default_rng(0)
    curvature = np.linspace(0.1, 1.0, 10)
    at = rng.normal(size=10)

    def bowl(rows: Any) -> Any:
        return 0.5 * (curvature * rows**2).sum(axis=1)

    gradient, value = es_gradient(bowl, at, sigma=0.1, pairs=4000, rng=rng)
    exact = curvature * at
    assert gradient @ exact / np.linalg.norm(gradient) / np.linalg.norm(exact) > 0.99
    assert np.linalg.norm(gradient) == pytest.approx(np.linalg.norm(exact), rel=0.1)
    assert value == pytest.approx(bowl(at[None])[0] + 0.5 * 0.1**2 * curvature.sum(), rel=0.02)


def test_opposite_perturbations_see_the_same_problem() -> None:
    meta = fresh(np.random.default_rng(0))
    same = np.tile(meta, (4, 1))
    values = meta_losses(same, TRAINING[0], [11, 12, 11, 12], 10)
    assert values[0] == values[2]
    assert values[1] == values[3]
    assert values[0] != values[1]


def test_meta_training_improves_the_optimizer() -> None:
    rng = np.random.default_rng(0)
    state = before = MetaState.fresh(rng)
    for _ in range(25):
        state, _ = meta_step(state, rng, lr=0.03, sigma=0.1, pairs=4, steps=15)
    for problem in TRAINING:
        then, now = (unroll(Learned(meta=each.meta), problem, range(8), 15) for each in (before, state))
        assert log_ratio(now, then).mean() < -0.1, problem


def test_a_checkpoint_holds_the_whole_state(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    state, _ = meta_step(MetaState.fresh(rng), rng, lr=0.03, sigma=0.1, pairs=2, steps=3)
    state.save(tmp_path)
    loaded = MetaState.load(tmp_path)
    first, _ = meta_step(state, np.random.default_rng(3), lr=0.03, sigma=0.1, pairs=2, steps=3)
    second, _ = meta_step(loaded, np.random.default_rng(3), lr=0.03, sigma=0.1, pairs=2, steps=3)
    assert len(first.meta) == META_PARAMETERS == 80
    assert np.array_equal(first.meta, second.meta)
    assert np.array_equal(first.square, second.square)


def test_every_binding_is_understood_and_in_distribution_is_what_training_draws_from() -> None:
    for task in make_suite().tasks:
        gin.clear_config()
        gin.parse_config_files_and_bindings([str(CONFIG)], list(task.gin), skip_unknown=False)
    found = problems()
    assert {found[name] for name in IN} == set(TRAINING)
    assert len(set(found.values())) == len(found)


def test_bindings_of_an_evaluation_do_not_change_what_training_draws() -> None:
    gin.parse_config("Quadratic.dimension = 3")
    assert Quadratic().dimension == 20


def test_speed_up_on_known_curves() -> None:
    adam = np.array([[8.0, 7.0, 6.0, 5.0, 4.0], [8.0, 7.0, 6.0, 5.0, 4.0], [8.0, 7.0, 6.0, 5.0, 4.0]])
    ours = np.array([[8.0, 6.0, 4.0, 3.0, 2.0], [8.0, 8.0, 8.0, 7.0, 6.0], [8.0, 7.0, 6.0, 5.0, 4.0]])
    assert np.exp(log_speedup(ours, adam)) == pytest.approx([2.0, 0.5, 1.0])


def run(home: Path, **options: Any) -> tuple[phyla.Results, list[Group]]:
    """Run a tiny study in this process; also return what became of the groups of its suite."""
    study = make_study(members=2, steps=4, steps_per_trial=2, seeds=4, home=home, **options)
    results = study.run()
    store = open_store(results.places.storage)
    record = store.find_study(results.name)
    assert record is not None
    with store.reader(record.id) as reader:
        groups = list(reader.groups())
    store.close()
    return results, groups


@pytest.mark.thorough  # that studies are the same on any number of shards is tested in test_shards_and_workers.py
def test_a_study_runs_to_its_end_the_same_on_one_shard_and_on_two(tmp_path: Path) -> None:
    (whole, first), (halves, second) = run(tmp_path / "whole"), run(tmp_path / "halves", shards=2)
    assert whole.counts() == {"completed": 4}
    assert {member.progress for member in whole.members()} == {4}
    for trial in whole.trials():
        assert trial.fitness is not None
        assert trial.fitness == trial.metrics["meta/in/vs_adam_mean"]
    fitness = [trial.fitness for trial in whole.trials()]
    assert [trial.fitness for trial in halves.trials()] == pytest.approx(fitness, rel=1e-9)
    # Shards and trials are numbered together.
    numbers = [{trial.id: number for number, trial in enumerate(one.trials())} for one in (whole, halves)]
    assert len(first) == len(second) > 4, "at least one donor was evaluated again"
    for one, other in zip(first, second, strict=True):
        assert one.trial is not None
        assert other.trial is not None
        assert (numbers[0][one.trial], one.replicate) == (numbers[1][other.trial], other.replicate)
        assert {"in/vs_adam_mean", "out/vs_adam_mean", "vs_adam_max", "speedup", "in/speedup"} <= set(one.values)
        values, others = flat(one), flat(other)
        assert others == pytest.approx(values, rel=1e-9)


def flat(group: Group) -> dict[str, float]:
    """Return values and standard errors of the aggregates by name."""
    return {
        f"{name} {what}": number
        for name, estimate in group.values.items()
        for what, number in cast("dict[str, float | None]", estimate).items()
        if number is not None
    }


@pytest.mark.thorough  # the other tests run its functions in this process
def test_worker_processes_run_the_file(tmp_path: Path) -> None:
    file = CONFIG.with_name("study.py")
    options = ["--workers", "1", "--members", "2", "--steps", "2", "--seeds", "2", "--home", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(file), *options], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in problems():
        assert f"/{name} " in done.stdout
    results = phyla.load_study("learned-optimizer", home=tmp_path)
    assert results.counts() == {"completed": 2}
    assert all(trial.fitness is not None for trial in results.trials())
