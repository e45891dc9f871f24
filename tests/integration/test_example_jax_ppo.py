"""The example of a population in one JAX program, small."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forked
import phyla

pytestmark = pytest.mark.xdist_group("frameworks")


@pytest.fixture(autouse=True)
def _compile_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in forked.SMALL_MODELS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.thorough  # below: training improves, which it would not elsewhere
def test_the_environment_is_cartpole() -> None:
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


def run(study: phyla.Study, members: int, *, keeps: bool, batches: int = 99) -> None:
    import jax
    import jax.numpy as jnp

    from jax_ppo.study import SPACE, start, train

    agents, before = None, list[phyla.Trial]()
    while not study.finished and batches:
        batches -= 1
        trials = study.ask(members, whole=True)
        agents = start(trials, agents if keeps else None, before)
        params = {name: jnp.array([trial.params[name] for trial in trials]) for name in SPACE.parameters}
        agents, lengths = train(agents, params, steps=2)
        leaves = {f"{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(agents))}
        np.savez(trials[0].checkpoint_dir / "agents.npz", allow_pickle=False, **leaves)
        study.tell(trials, metrics=[{"length": float(x)} for x in lengths], checkpoint=trials[0])
        before = trials


def facts(study: phyla.Study) -> list[tuple[int, int, float | None, int | None]]:
    return sorted((one.member, one.generation, one.fitness, one.jump_from) for one in study.results().trials())


def test_gathering_on_the_device_is_loading_from_the_checkpoint_also_after_a_restart(tmp_path: Path) -> None:
    from jax_ppo.study import make_study

    options: dict[str, Any] = {"members": 4, "steps": 6, "steps_per_trial": 2}
    on_device = make_study(**options, home=tmp_path / "device")
    run(on_device, 4, keeps=True)
    found = facts(on_device)
    assert any(jump is not None for *_, jump in found)
    resumed = make_study(**options, home=tmp_path / "files")
    run(resumed, 4, keeps=True, batches=1)
    run(make_study(**options, home=tmp_path / "files"), 4, keeps=False)
    assert facts(resumed) == found
