"""Children get their own hyperparameters in states of JAX; what frameworks write can be read by `phyla check`."""

import json
import os
import sys
from typing import Any

import pytest

import forked
from facts import check_facts
from phyla.settings import child_environment

pytestmark = pytest.mark.xdist_group("frameworks")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what the program tried: one process of its own, since it imports JAX."""
    folder = tmp_path_factory.mktemp("states")
    more = {"PYTHONPATH": os.pathsep.join(sys.path), **forked.SMALL_MODELS}
    done = forked.run(
        [forked.SUPPORT / "checkpoints/orbax_states.py", folder],
        env=child_environment(more),
        frameworks=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_optax_injected_is_the_trials_in_any_pytree(told: Any) -> None:
    states = dict(told["states"])
    nameless = states.pop("a list of leaves")
    assert len(states) == 18
    wrong = {name: one for name, one in states.items() if not (one.get("rates") and one.get("others"))}
    assert not wrong
    check_facts(nameless["refused"], "state[5]", "lr=0.0625", "1.125")
    assert "load and save the state itself" in nameless["refused"]


def test_orbax_files_are_read_also_with_keys_of_random_generators(told: Any) -> None:
    known = {name: one["read"] for name, one in told["states"].items() if "read" in one}
    assert "state: 1.opt_state.1.hyperparams.learning_rate.value" in known["Flax NNX"]
    assert [name for name, read in known.items() if not any("learning_rate" in one for one in read)] == []


def test_the_zip_of_stable_baselines_is_read(told: Any) -> None:
    known = told["sb3"]
    assert known["model.zip: data.ent_coef"] == 0.07
    assert known["model.zip: policy.pth.action_net.weight"] == [2, 64]
    assert any("policy.optimizer.pth.param_groups" in name for name in known)
