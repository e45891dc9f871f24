"""A small study of the example in one JAX program: its agents stay on the device, or are loaded from checkpoints.

`python jax_ppo_small.py FOLDER` runs it once without a pause, and once in two parts, of which the second begins
with the files. It prints what the trials of both came to, as JSON.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import phyla
from jax_ppo.study import SPACE, make_study, start, train

MEMBERS = 4


def run(home: Path, *, keeps: bool, batches: int = 99) -> phyla.Study:
    study = make_study(members=MEMBERS, steps=6, steps_per_trial=2, home=home)
    agents, before = None, list[phyla.Trial]()
    while not study.finished and batches:
        batches -= 1
        trials = study.ask(MEMBERS, whole=True)
        agents = start(trials, agents if keeps else None, before)
        params = {name: jnp.array([trial.params[name] for trial in trials]) for name in SPACE.parameters}
        agents, lengths = train(agents, params, steps=2)
        leaves = {f"{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(agents))}
        np.savez(trials[0].checkpoint_dir / "agents.npz", allow_pickle=False, **leaves)
        study.tell(trials, metrics=[{"length": float(x)} for x in lengths], checkpoint=trials[0])
        before = trials
    return study


def facts(study: phyla.Study) -> list[tuple[int, int, float | None, int | None]]:
    return sorted((one.member, one.generation, one.fitness, one.jump_from) for one in study.results().trials())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    on_device = run(folder / "device", keeps=True)
    run(folder / "files", keeps=True, batches=1)
    print(json.dumps([facts(on_device), facts(run(folder / "files", keeps=False))]))
