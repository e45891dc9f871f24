"""Populations on one device: 32 members of the digits network in one process, against a bare loop and one member.

The network, its data and its training are those of `examples/digits`, with batches of 32 images, in JAX: one
compiled function trains a whole trial of all members (`ask(k, whole=True)`, one checkpoint for all of them), each
core a part of them. The bare loop does the same without phyla: it ranks, copies, perturbs and saves. One member is
measured twice: in the same program, and in the example's own loop in NumPy, called by phyla.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "digits"))

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import phyla
from digits import CLASSES, HIDDEN, Network, load_data
from machine import facts

STEPS_PER_TRIAL, BATCH = 500, 32
SPACE = phyla.Space(lr=phyla.Float(1e-3, 0.3, log=True), momentum=phyla.Float(0.0, 0.95))
DATA = load_data()
Tree: TypeAlias = Any


def fresh(seed: jax.Array) -> Tree:
    """Return weights and their velocities."""
    keys = jax.random.split(jax.random.key(seed), 2)
    weights = {
        "w1": jax.random.normal(keys[0], (64, HIDDEN)) * 0.1,
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(keys[1], (HIDDEN, CLASSES)) * 0.1,
        "b2": jnp.zeros(CLASSES),
    }
    return weights, jax.tree.map(jnp.zeros_like, weights)


def loss(weights: Tree, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean negative log-likelihood."""
    hidden = jnp.maximum(images @ weights["w1"] + weights["b1"], 0.0)
    log_p = jax.nn.log_softmax(hidden @ weights["w2"] + weights["b2"])
    return -(log_p * jax.nn.one_hot(labels, CLASSES)).sum(-1).mean()


@partial(jax.jit, static_argnames="steps")
def train(state: Tree, params: dict[str, jax.Array], seeds: jax.Array, steps: int) -> tuple[Tree, jax.Array]:
    """Train all members for some steps; return their states and validation losses."""
    images, labels = (jnp.asarray(part) for part in DATA["train"])

    def one(state: Tree, params: dict[str, jax.Array], seed: jax.Array) -> tuple[Tree, jax.Array]:
        def step(state: Tree, rows: jax.Array) -> tuple[Tree, None]:
            weights, velocity = state
            gradients = jax.grad(loss)(weights, images[rows], labels[rows])
            velocity = jax.tree.map(lambda v, g: params["momentum"] * v - params["lr"] * g, velocity, gradients)
            return (jax.tree.map(jnp.add, weights, velocity), velocity), None

        rows = jax.random.randint(jax.random.key(seed), (steps, BATCH), 0, len(DATA["train"][1]))
        state, _ = jax.lax.scan(step, state, rows)
        return state, loss(state[0], *(jnp.asarray(part) for part in DATA["validation"]))

    return jax.vmap(one)(state, params, seeds)  # type: ignore[no-any-return]


def make(home: Path, members: int, trials: int, called: Any = None) -> phyla.Study:
    """Return a study of so many members."""
    strategy = phyla.PBT(
        population_size=members,
        steps_per_trial=STEPS_PER_TRIAL,
        total_steps=trials * STEPS_PER_TRIAL,
        quorum=1.0,
    )
    return phyla.Study("vmapped", SPACE, phyla.Minimize("loss"), strategy, called, home=home)


def over_cores(members: int) -> NamedSharding:
    """Return how the members are divided among the cores."""
    devices = jax.devices() if members % len(jax.devices()) == 0 else jax.devices()[:1]
    return NamedSharding(Mesh(np.array(devices), ("members",)), PartitionSpec("members"))


def bare(folder: Path, members: int, trials: int) -> float:
    """Return the wall time of a population in a loop without phyla."""
    folder.mkdir()
    rng, over, state, losses = np.random.default_rng(0), over_cores(members), None, np.zeros(members)
    params = {
        "lr": np.exp(rng.uniform(np.log(1e-3), np.log(0.3), members)),
        "momentum": rng.uniform(0, 0.95, members),
    }
    started = time.perf_counter()
    for trial in range(trials):
        index, share = np.arange(members), members // 5
        if state is None:
            state = jax.vmap(fresh)(jnp.arange(members))
        else:
            order = np.argsort(losses)
            copied = order[members - share :]
            index[copied] = rng.choice(order[: max(1, share)], share)
            for name, values in params.items():
                values[copied] = values[index[copied]] * rng.choice((0.8, 1.2), share)
                params[name] = np.clip(values, 0.0, 0.95 if name == "momentum" else 0.3)
            state = jax.tree.map(lambda leaf: leaf[index], state)  # noqa: B023  # called at once
        given = {name: jnp.asarray(values) for name, values in params.items()}
        state, given, seeds = jax.device_put((state, given, jnp.arange(members) + trial * members), over)
        state, found = train(state, given, seeds, steps=STEPS_PER_TRIAL)
        losses = np.asarray(found)
        with (folder / f"{trial}.npz").open("wb") as file:
            np.savez(file, *jax.tree.leaves(state))
            os.fsync(file.fileno())
    return time.perf_counter() - started


def vmapped(home: Path, members: int, trials: int) -> tuple[float, float]:
    """Return the wall time of a population in one program, and that of asking and telling in it."""
    study, state, place = make(home, members, trials), None, dict[int | None, int]()
    over, started, control = over_cores(members), time.perf_counter(), 0.0
    while not study.finished:
        since = time.perf_counter()
        asked = study.ask(members, whole=True)
        control += time.perf_counter() - since
        if state is None:
            state = jax.vmap(fresh)(jnp.array([trial.seed for trial in asked]))
        else:
            index = jnp.array([place[trial.source.trial] for trial in asked if trial.source])
            state = jax.tree.map(lambda leaf: leaf[index], state)  # noqa: B023  # called at once
        params = {name: jnp.array([trial.params[name] for trial in asked]) for name in SPACE.parameters}
        seeds = jnp.array([trial.seed for trial in asked])
        state, params, seeds = jax.device_put((state, params, seeds), over)
        state, losses = train(state, params, seeds, steps=STEPS_PER_TRIAL)
        metrics = [{"loss": float(one)} for one in np.asarray(losses)]
        since = time.perf_counter()
        np.savez(asked[0].checkpoint_dir / "s.npz", *jax.tree.leaves(state))
        study.tell(asked, metrics=metrics, checkpoint=asked[0])
        control += time.perf_counter() - since
        place = {trial.id: row for row, trial in enumerate(asked)}
    return time.perf_counter() - started, control


def example(home: Path, trials: int) -> float:
    """Return the wall time of one member in the example's own loop."""

    def called(trial: phyla.Trial) -> None:
        images, labels = DATA["train"]
        rng = np.random.default_rng(trial.seed)
        network = Network.load(trial.source.path / "n.npz") if trial.source else Network.fresh(rng)
        params: Any = {**trial.params, "activation": "relu"}
        for _ in trial.steps():
            batch = rng.integers(len(labels), size=BATCH)
            network.step(images[batch], labels[batch], params)
        network.save(trial.checkpoint_dir / "n.npz")
        trial.report(loss=network.evaluate(DATA["validation"], "relu")[0])

    study = make(home, 1, trials, called)
    started = time.perf_counter()
    study.run()
    return time.perf_counter() - started


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--trials", type=int, default=10, help="trials per member")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("bench/results/vmapped.json"))
    options = parser.parse_args()
    rows = []
    for number in range(options.repeats + 1):
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            whole, control = vmapped(Path(folder) / "all", options.members, options.trials)
            row = {
                "all": whole,
                "of it ask, tell and save": control,
                "bare": bare(Path(folder) / "bare", options.members, options.trials),
                "one": vmapped(Path(folder) / "one", 1, options.trials)[0],
                "example": example(Path(folder) / "example", options.trials),
            }
        if number:  # The first one compiles.
            rows.append(row)
            print("  ".join(f"{name} {seconds:.2f} s" for name, seconds in row.items()), flush=True)
    ratios = {
        name: statistics.median(row["all"] / row[name] for row in rows) for name in ("bare", "one", "example")
    }
    print(
        f"\n{f'wall time of {options.members} members in one process, against':<52}{'measured':>10}{'wanted':>8}"
    )
    print(f"{'the same in a loop without phyla':<52}{ratios['bare']:>10.2f}{1.2:>8}")
    print(f"{'one member in the same program':<52}{ratios['one']:>10.2f}{4.0:>8}")
    print(f"{'one member in the loop of the example':<52}{ratios['example']:>10.2f}{4.0:>8}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts(), "rows": rows, "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
