"""The example of a population in one JAX program, small."""

import json
from pathlib import Path

import numpy as np
import pytest

import forked
from phyla.settings import child_environment

pytestmark = pytest.mark.xdist_group("frameworks")

EXAMPLES = Path(__file__).parents[2] / "examples"
STUDY = forked.SUPPORT / "studies/jax_ppo_small.py"


@pytest.mark.thorough  # below: training improves, which it would not elsewhere
def test_the_environment_is_cartpole(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in forked.SMALL_MODELS.items():
        monkeypatch.setenv(name, value)
    import gymnasium
    import jax.numpy as jnp

    from jax_ppo.ppo import _move

    environment = gymnasium.make("CartPole-v1").unwrapped
    seen, _ = environment.reset(seed=3)
    physics, rng, fell = jnp.asarray(seen), np.random.default_rng(0), False
    while not fell:
        action = int(rng.integers(2))
        seen, _, fell, _, _ = environment.step(action)
        physics, ours = _move(physics, jnp.asarray(action))
        assert np.asarray(physics) == pytest.approx(seen, rel=1e-3, abs=1e-5)
        assert bool(ours) == fell


def test_gathering_on_the_device_is_loading_from_the_checkpoint_also_after_a_restart(tmp_path: Path) -> None:
    environment = child_environment({"PYTHONPATH": str(EXAMPLES), **forked.SMALL_MODELS})
    done = forked.run([STUDY, tmp_path], env=environment, frameworks=True)
    assert done.returncode == 0, done.stderr
    on_device, from_files = json.loads(done.stdout)
    assert any(jump is not None for *_, jump in on_device)
    assert from_files == on_device
