"""The example of a generator and a discriminator: gradients, measures, and a small study."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gan import ring
from gan.networks import Array, Weights, backward, forward, fresh, load, save

ROOT = Path(__file__).parents[2]


def test_gradients_are_those_of_the_output() -> None:
    rng = np.random.default_rng(0)
    weights, x, slope = fresh([3, 5, 4, 2], rng), rng.normal(size=(6, 3)), rng.normal(size=(6, 2))

    def value(given: Weights, at: Array) -> float:
        return float((forward(given, at)[-1] * slope).sum())

    gradients, by_input = backward(weights, forward(weights, x), slope)
    for name, gradient in gradients.items():
        for at in np.ndindex(gradient.shape):
            moved = {**weights, name: weights[name].copy()}
            moved[name][at] += 1e-6
            assert (value(moved, x) - value(weights, x)) / 1e-6 == pytest.approx(gradient[at], abs=1e-4)
    moved_x = x.copy()
    moved_x[2, 1] += 1e-6
    assert (value(weights, moved_x) - value(weights, x)) / 1e-6 == pytest.approx(by_input[2, 1], abs=1e-4)


def test_measures_tell_good_samples_from_bad_ones() -> None:
    rng = np.random.default_rng(0)
    data = ring.data(500, rng)
    modes, near = ring.coverage(data)
    assert (modes, round(near, 1)) == (8, 1.0)
    one_mode = ring.CENTERS[:1] + ring.WIDTH * rng.normal(size=(500, 2))
    assert ring.coverage(one_mode)[0] == 1
    same, worse = ring.discrepancy(data, ring.data(500, rng)), ring.discrepancy(data, one_mode)
    assert same < 0.1 < 0.3 < worse
    broken = {name: value * np.nan for name, value in fresh([4, 3, 2], rng).items()}
    assert ring.measure(broken, rng)["discrepancy"] == float("inf")


def test_both_networks_go_through_a_checkpoint(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    networks = {"generator": fresh([4, 8, 2], rng), "discriminator": fresh([2, 8, 1], rng)}
    ring.play(networks, {"generator": 0.01, "discriminator": 0.0}, rng)
    save(tmp_path / "networks.npz", networks)
    loaded = load(tmp_path / "networks.npz")
    assert loaded.keys() == networks.keys()
    for which, weights in networks.items():
        assert loaded[which].keys() == weights.keys()
        assert all(np.array_equal(loaded[which][name], value) for name, value in weights.items())
    still = fresh([4, 8, 2], np.random.default_rng(0))
    assert not np.array_equal(networks["generator"]["w0"], still["w0"])
    assert float(networks["discriminator"]["updates"]) == 1


def test_a_small_study_finds_a_schedule_for_each_learning_rate(tmp_path: Path) -> None:
    results = ring.make_study(members=4, steps=100, home=tmp_path, storage="memory://").run()
    assert results.counts() == {"completed": 4 * 20}
    shown = ring.summary(results)
    assert "of 8 modes" in shown
    trials: Any = results.trials()
    assert any(trial.jump_from is not None for trial in trials)
    assert {name for trial in trials for name in trial.params} == {"generator/lr", "discriminator/lr"}
    first, last = (min(t.fitness for t in trials if t.generation == at) for at in (0, 19))
    assert last < first


@pytest.mark.thorough  # above: the same study in this process
def test_the_command_of_the_readme_runs(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r})\nfrom gan import ring\n"
    code += "print(ring.summary(ring.make_study(members=2, steps=20).run()))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "from step" in done.stdout
