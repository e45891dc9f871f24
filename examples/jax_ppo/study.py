"""32 PPO agents learn CartPole in one program: `python examples/jax_ppo/study.py`."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

# The example is a package, also where this file is run by itself.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

import phyla
from jax_ppo.ppo import Agent, fresh, update

SPACE = phyla.Space(
    lr=phyla.Float(1e-4, 1e-1, log=True),
    entropy=phyla.Float(1e-4, 1e-1, log=True),
    clip=phyla.Float(0.05, 0.5),
    gamma=phyla.Float(0.9, 0.999),
    gae_lambda=phyla.Float(0.8, 1.0),
)


def make_study(members: int = 32, steps: int = 60, steps_per_trial: int = 5, **options: Any) -> phyla.Study:
    """Return the study; a step is one update of PPO, of 1,024 steps in the environment."""
    strategy = phyla.PBT(
        population_size=members,
        steps_per_trial=steps_per_trial,
        total_steps=steps,
        # All members come to a grid line together, so nobody waits.
        quorum=1.0,
    )
    return phyla.Study("jax-ppo", SPACE, phyla.Maximize("length"), strategy, **options)


@partial(jax.jit, static_argnames="steps")
def train(agents: Agent, params: dict[str, jax.Array], steps: int) -> tuple[Agent, jax.Array]:
    """Train all agents for some steps; return them, and the mean length of their last episodes."""

    def step(agents: Agent, _: None) -> tuple[Agent, jax.Array]:
        after: tuple[Agent, jax.Array] = jax.vmap(update)(agents, params)
        return after

    agents, lengths = jax.lax.scan(step, agents, None, steps)
    last: jax.Array = lengths[-3:].mean(0)
    return agents, last


def start(trials: list[phyla.Trial], agents: Agent | None, before: list[phyla.Trial]) -> Agent:
    """Return the agents to train: from the device, where they still are, else from their checkpoints."""
    place = {trial.id: index for index, trial in enumerate(before)}
    parents = [trial.source.trial if trial.source else None for trial in trials]
    if agents is not None and place.keys() >= {*parents}:
        # Exploit is a gather on the device: members that go on take their own row, others their donor's.
        index = jnp.array([place[parent] for parent in parents if parent is not None])
        return jax.tree.map(lambda leaf: leaf[index], agents)  # type: ignore[no-any-return]
    made: Agent = jax.vmap(fresh)(jnp.array([trial.seed for trial in trials], jnp.uint32))
    leaves, tree = jax.tree.flatten(made)
    saved = {t.source.path: np.load(t.source.path / "agents.npz") for t in trials if t.source}
    for row, trial in enumerate(trials):
        if trial.source:
            kept = saved[trial.source.path]
            leaves = [leaf.at[row].set(kept[f"{i}"][trial.source.index]) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(tree, leaves)  # type: ignore[no-any-return]


def run(study: phyla.Study, members: int) -> None:
    """Train until the study ends: one checkpoint, and one call of a compiled function, for all members."""
    agents, before = None, list[phyla.Trial]()
    while not study.finished:
        trials = study.ask(members, whole=True, wait_s=10)
        if not trials:
            continue  # a program that died on another machine holds members until its leases end
        agents = start(trials, agents, before)
        params = {name: jnp.array([trial.params[name] for trial in trials]) for name in SPACE.parameters}
        agents, lengths = train(agents, params, steps=trials[0].end_step - trials[0].start_step)
        leaves = {f"{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(agents))}
        np.savez(trials[0].checkpoint_dir / "agents.npz", allow_pickle=False, **leaves)
        study.tell(trials, metrics=[{"length": float(x)} for x in lengths], checkpoint=trials[0])
        before = trials
        print(
            f"step {trials[0].end_step}: best {float(lengths.max()):.0f}, median {float(jnp.median(lengths)):.0f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    made = make_study(options.members, options.steps)
    run(made, options.members)
    print(made.results().best)
