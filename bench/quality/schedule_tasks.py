"""Cheap tasks for `schedules.py`, whose final value is exact, or measured on data that selection never saw.

On some the learning rate is all there is, and a decay is right. On others its schedule is not known beforehand, or
other hyperparameters matter.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from digits_problem import images
from lockstep import Array, Arrays, Rows, Task, constant

import phyla
from phyla import Float

FAR = 1e6
"""Where weights are put that left for infinity."""
PIECE = 10
"""Steps of the noisy quadratics at the same learning rate."""
MIX = 0.9
"""Share of the average in the point where schedule-free SGD takes its gradient."""

Gradient = Callable[[Array, Rows, int], Array]
"""From weights, one row a member, what they are trained with, and the step of the trial."""


def sgd(gradient: Gradient) -> Callable[[Arrays, Rows], Arrays]:
    """Return training by gradient descent, with momentum where the space has it."""

    def train(state: Arrays, rows: Rows) -> Arrays:
        w = state["w"]
        v = state.get("v", np.zeros_like(w))
        momentum = rows.params.get("momentum", np.zeros(len(w))).astype(w.dtype)[:, None]
        for step in range(rows.count):
            v = momentum * v + gradient(w, rows, step)
            w = w - rows.rate("lr", step).astype(w.dtype)[:, None] * v
            w, v = bounded(w, v)
        return {**state, "w": w, "v": v}

    return train


def schedule_free(gradient: Gradient) -> Callable[[Arrays, Rows], Arrays]:
    """Return training by schedule-free SGD (Defazio et al. 2024, arXiv 2405.15682, equations 2 to 4)."""

    def train(state: Arrays, rows: Rows) -> Arrays:
        w = state["w"]
        z: Any = state.get("v", w)
        for step in range(rows.count):
            y = (1 - MIX) * z + MIX * w
            z = z - rows.rate("lr", step).astype(w.dtype)[:, None] * gradient(y, rows, step)
            share = (1 / (rows.ages + step + 1)).astype(w.dtype)[:, None]
            w, z = bounded((1 - share) * w + share * z, z)
        return {**state, "w": w, "v": z}

    return train


def bounded(w: Array, v: Array) -> tuple[Array, Array]:
    """Return weights and velocities; those that left for infinity are put far away, at rest."""
    lost = ~(np.abs(w).max(axis=1) <= FAR)
    if lost.any():
        w, v = w.copy(), v.copy()
        w[lost], v[lost] = FAR, 0.0
    return w, v


def _power(base: Array, exponent: int) -> Array:
    """Return an integer power, several times as fast as `**`."""
    found = np.ones_like(base)
    while exponent:
        found = found * base if exponent & 1 else found
        base, exponent = base * base, exponent >> 1
    return found


def noisy_quadratic(
    name: str,
    title: str,
    noise: Callable[[Array], Array],
    *,
    dims: int,
    steps: int,
    members: int,
    unit: float,
    jump: float = 0.0,
) -> Task:
    """Make the noisy quadratic model of Wu et al. 2018 (arXiv 1803.02021): exact expected loss, nothing is drawn.

    Args:
        name: of the task.
        title: what it is.
        noise: variance of the gradient, from the curvature.
        dims: of the weights; the curvature of the k-th is 1 / k.
        steps: of a member.
        members: of a population.
        unit: the smallest difference that is worth having.
        jump: how far the optimum moves, once, at a step that depends on the seed.
    """
    curvature = 1 / np.arange(1.0, dims + 1)
    variance = noise(curvature)
    ratio = variance / curvature

    def train(state: Arrays, rows: Rows) -> Arrays:
        moments = state["w"]
        piece = rows.count if rows.decay is constant and not jump else PIECE
        for step in range(0, rows.count, piece):
            size = min(piece, rows.count - step)
            rate = rows.rate("lr", step)[:, None]
            slope = rate * curvature
            kept, settled = _power((1 - slope) ** 2, size), rate * ratio / (2 - slope)
            moments = kept * (moments - settled) + settled
            if jump:
                at = rows.world["jump"][rows.seeds]
                moments = moments + jump**2 * ((rows.ages + step <= at) & (at < rows.ages + step + size))[:, None]
        return {**state, "w": moments}

    def averaged(state: Arrays, rows: Rows) -> Arrays:
        # Second moments of the average x, of x and z, and of z.
        xx = state["w"].astype(np.float32)
        xz, zz = state.get("xz", xx), state.get("zz", xx)
        for step in range(rows.count):
            slope = rows.rate("lr", step).astype(np.float32)[:, None] * curvature.astype(np.float32)
            a, b = -slope * MIX, 1 - slope * (1 - MIX)  # z = a x + b z + noise
            zz, xz = (
                a * a * xx
                + 2 * a * b * xz
                + b * b * zz
                + slope * slope * (variance / curvature**2).astype(np.float32),
                a * xx + b * xz,
            )
            share = (1 / (rows.ages + step + 1)).astype(np.float32)[:, None]
            xx, xz = (
                (1 - share) ** 2 * xx + 2 * share * (1 - share) * xz + share**2 * zz,
                (1 - share) * xz + share * zz,
            )
        return {**state, "w": xx, "xz": xz, "zz": zz}

    def world(seed: int) -> Arrays:
        at = np.random.default_rng([seed, 3]).integers(steps * 4 // 10, steps * 8 // 10)
        return {"jump": at} if jump else {}

    def loss(state: Arrays, rows: Rows) -> Array:
        value: Array = 0.5 * (state["w"] * curvature).sum(axis=1)
        return value

    return Task(
        name=name,
        title=title,
        report="expected loss, exact",
        unit=unit,
        space=phyla.Space(lr=Float(1e-4, 1.9, log=True, initial=(1e-3, 1.9))),
        members=members,
        steps=steps,
        intervals=(2 * PIECE, 50, steps // 10),
        world=world,
        fresh=lambda world, rng, count: {"w": np.ones((count, dims))},
        train=train,
        averaged=None if jump else averaged,
        score=loss,
        value=loss,
        final_only=bool(jump),
    )


def descent(gradient: Gradient, **settings: Any) -> Task:
    """Make a task of gradient descent."""
    return Task(train=sgd(gradient), averaged=schedule_free(gradient), **settings)


def _momentum() -> Task:
    curvature = 1 / np.arange(1.0, 51)

    def loss(state: Arrays, rows: Rows) -> Array:
        value: Array = 0.5 * (curvature * state["w"] ** 2).sum(axis=1)
        return value

    return descent(
        lambda w, rows, step: curvature * w + rows.drawn["noise"][step],
        name="momentum",
        title="Noisy quadratic with drawn gradients, 50 dimensions: learning rate and momentum",
        report="loss, exact",
        unit=0.01,
        space=phyla.Space(lr=Float(1e-3, 1.0, log=True), momentum=Float(0.0, 0.99)),
        world=lambda seed: {"start": np.random.default_rng([seed, 3]).normal(size=50) * 3},
        fresh=lambda world, rng, count: {"w": np.tile(world["start"], (count, 1))},
        draw=lambda rng, count, members: {"noise": np.sqrt(curvature) * rng.normal(size=(count, members, 50))},
        score=loss,
        value=loss,
    )


def _ravine() -> Task:
    def slope(w: Array, rows: Rows, step: int) -> Array:
        x, across = w[:, 0], w[:, 1] - w[:, 0] ** 2
        exact = np.stack([-2 * (1 - x) - 400 * x * across, 200 * across], axis=1)
        found: Array = exact + rows.drawn["noise"][step]
        return found

    def log_loss(state: Arrays, rows: Rows) -> Array:
        x, y = state["w"].T
        value: Array = np.log10((1 - x) ** 2 + 100 * (y - x**2) ** 2 + 1e-12)
        return value

    return descent(
        slope,
        name="ravine",
        title="Rosenbrock's ravine with noisy gradients: learning rate and momentum",
        report="logarithm to base 10 of the loss, exact",
        unit=0.5,
        space=phyla.Space(lr=Float(1e-5, 1e-2, log=True), momentum=Float(0.0, 0.99)),
        fresh=lambda world, rng, count: {"w": np.array([-1.2, 1.0]) + 0.1 * rng.normal(size=(count, 2))},
        draw=lambda rng, count, members: {"noise": 3.0 * rng.normal(size=(count, members, 2))},
        score=log_loss,
        value=log_loss,
    )


def _game() -> Task:
    size, pull = 5, 0.1

    def world(seed: int) -> Arrays:
        rng = np.random.default_rng([seed, 3])
        left, right = (np.linalg.qr(rng.normal(size=(size, size)))[0] for _ in range(2))
        return {"a": left @ np.diag(np.geomspace(0.1, 1.0, size)) @ right}

    def train(state: Arrays, rows: Rows) -> Arrays:
        a, w = rows.world["a"][rows.seeds], state["w"]
        for step in range(rows.count):
            x, y = w[:, :size], w[:, size:]
            down = np.einsum("mij,mj->mi", a, y) + pull * x
            up = np.einsum("mij,mi->mj", a, x) - pull * y
            rates = [rows.rate(name, step)[:, None] for name in ("descent", "ascent")]
            noise = rows.drawn["noise"][step]
            moved = [-rates[0] * (down + noise[:, :size]), rates[1] * (up + noise[:, size:])]
            w, _ = bounded(w + np.concatenate(moved, axis=1), w)
        return {"w": w}

    def distance(state: Arrays, rows: Rows) -> Array:
        value: Array = np.log10((state["w"] ** 2).sum(axis=1))
        return value

    return Task(
        name="game",
        title="A game of two players with noise, a stand-in for a GAN: two learning rates",
        report="logarithm to base 10 of the squared distance from the equilibrium, exact",
        unit=0.2,
        space=phyla.Space(descent=Float(1e-3, 1.0, log=True), ascent=Float(1e-3, 1.0, log=True)),
        world=world,
        fresh=lambda world, rng, count: {"w": np.ones((count, 2 * size))},
        draw=lambda rng, count, members: {"noise": 0.3 * rng.normal(size=(count, members, 2 * size))},
        train=train,
        score=distance,
        value=distance,
    )


def _deceptive() -> Task:
    piece = 20

    def train(state: Arrays, rows: Rows) -> Arrays:
        theta, owed = state["w"], state["owed"]
        for step in range(0, rows.count, piece):
            h = rows.rate("h", step)
            owed = owed + 0.2 * np.abs(h - (1 - (rows.ages + step) / rows.total))
            theta = theta * (1 - 0.002 * np.maximum(2 - h - owed, 0.0)) ** piece
        return {"w": theta, "owed": owed}

    def score(state: Arrays, rows: Rows) -> Array:
        value: Array = 1.2 - state["w"] ** 2
        return value

    return Task(
        name="deceptive",
        title="The deceptive toy of PBT-Zoo: a small h helps at once and costs later",
        report="score, exact, at most 1.2",
        unit=0.005,
        maximize=True,
        space=phyla.Space(h=Float(1e-4, 1.1, initial=(0.9, 1.1))),
        members=24,
        intervals=(20, 40, 200),
        fresh=lambda world, rng, count: {"w": np.full(count, 0.9), "owed": np.zeros(count)},
        train=train,
        score=score,
        value=score,
    )


FEATURES, EXAMPLES, CHECKED, HELD_OUT, BATCH = 30, 60, 200, 2_000, 10
_TEACHER = np.random.default_rng(0).normal(size=FEATURES) * 0.4
_X = np.random.default_rng(1).normal(size=(HELD_OUT, FEATURES))
_CHANCE = 1 / (1 + np.exp(-_X @ _TEACHER))


def _few_examples(seed: int) -> Arrays:
    rng = np.random.default_rng([seed, 3])
    x = rng.normal(size=(EXAMPLES + CHECKED, FEATURES))
    label = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ _TEACHER))).astype(float)
    return {"x": x[:EXAMPLES], "y": label[:EXAMPLES], "checked_x": x[EXAMPLES:], "checked_y": label[EXAMPLES:]}


def _logistic_slope(w: Array, rows: Rows, step: int) -> Array:
    batch, seeds = rows.drawn["batch"][step], rows.seeds[:, None]
    x, y = rows.world["x"][seeds, batch], rows.world["y"][seeds, batch]
    error = 0.5 * (1 + np.tanh((x @ w[:, :, None])[:, :, 0] / 2)) - y
    slope: Array = (error[:, None] @ x)[:, 0] / BATCH + rows.params["decay"][:, None] * w
    return slope


def _checked_loss(state: Arrays, rows: Rows) -> Array:
    x, y = rows.world["checked_x"][rows.seeds], rows.world["checked_y"][rows.seeds]
    logits = (x @ state["w"][:, :, None])[:, :, 0]
    loss: Array = (np.logaddexp(0.0, logits) - y * logits).mean(axis=1)
    return loss


def _held_out_loss(state: Arrays, rows: Rows) -> Array:
    logits = state["w"] @ _X.T
    loss: Array = (np.logaddexp(0.0, logits) - _CHANCE * logits).mean(axis=1)
    return loss


LOGISTIC = descent(
    _logistic_slope,
    name="few examples",
    title="Logistic regression on 60 examples: learning rate and weight decay",
    report="expected loss on 2,000 points, nats",
    unit=0.01,
    steps=400,
    intervals=(8, 20, 40),
    space=phyla.Space(lr=Float(1e-3, 1.0, log=True), decay=Float(1e-4, 1.0, log=True)),
    world=_few_examples,
    fresh=lambda world, rng, count: {"w": np.zeros((count, FEATURES))},
    draw=lambda rng, count, members: {"batch": rng.integers(EXAMPLES, size=(count, members, BATCH))},
    score=_checked_loss,
    value=_held_out_loss,
)

CONTEXTS, ACTIONS, PULLS = 10, 8, 10


def _policy(w: Array) -> Array:
    table = w.reshape(len(w), CONTEXTS, ACTIONS)
    chance = np.exp(table - table.max(axis=2, keepdims=True))
    policy: Array = chance / chance.sum(axis=2, keepdims=True)
    return policy


def _bandit_slope(w: Array, rows: Rows, step: int) -> Array:
    policy, members = _policy(w), np.arange(len(w))[:, None]
    context = rows.drawn["context"][step]
    chance = policy[members, context]
    action = (chance.cumsum(axis=2) < rows.drawn["pick"][step][..., None]).sum(axis=2).clip(max=ACTIONS - 1)
    gain = rows.world["reward"][rows.seeds[:, None], context, action] + rows.drawn["noise"][step] - 0.5
    toward = gain[..., None] * (np.eye(ACTIONS)[action] - chance) / PULLS
    slope = np.swapaxes(np.eye(CONTEXTS)[context], 1, 2) @ toward
    log = np.log(policy + 1e-12)
    entropy = -policy * (log - (policy * log).sum(axis=2, keepdims=True)) / CONTEXTS
    found: Array = -(slope + rows.params["entropy"][:, None, None] * entropy).reshape(len(w), -1)
    return found


def _true_return(state: Arrays, rows: Rows) -> Array:
    found: Array = (_policy(state["w"]) * rows.world["reward"][rows.seeds]).sum(axis=2).mean(axis=1)
    return found


def _draw_pulls(rng: np.random.Generator, count: int, members: int) -> Arrays:
    shape = (count, members, PULLS)
    return {
        "context": rng.integers(CONTEXTS, size=shape),
        "pick": rng.random(shape),
        "noise": 0.5 * rng.normal(size=shape),
        "measured": rng.normal(size=(1, members)),
    }


BANDIT = descent(
    _bandit_slope,
    name="policy",
    title="A policy in ten contexts, by REINFORCE: learning rate and entropy bonus; noisy scores",
    report="expected reward, exact",
    unit=0.01,
    maximize=True,
    steps=400,
    intervals=(8, 20, 40),
    space=phyla.Space(lr=Float(0.1, 30.0, log=True), entropy=Float(1e-4, 1e-1, log=True)),
    world=lambda seed: {"reward": np.random.default_rng([seed, 3]).random((CONTEXTS, ACTIONS))},
    fresh=lambda world, rng, count: {"w": np.zeros((count, CONTEXTS * ACTIONS))},
    draw=_draw_pulls,
    score=lambda state, rows: _true_return(state, rows) + 0.5 / np.sqrt(200) * rows.drawn["measured"][0],
    value=_true_return,
)

LETTERS, WIDTH, TEXT = 10, 3, 16


def _language(seed: int) -> Arrays:
    """Return the chances of the next letter, and how often each letter comes."""
    chance = np.exp(1.5 * np.random.default_rng([seed, 3]).normal(size=(LETTERS, LETTERS)))
    chance /= chance.sum(axis=1, keepdims=True)
    often = np.linalg.matrix_power(chance, 1000)[0]
    return {"chance": chance, "often": often, "up_to": often.cumsum(), "after": chance.cumsum(axis=1)}


def _text(rng: np.random.Generator, count: int, members: int) -> Arrays:
    return {name: rng.random((count, members, TEXT)) for name in ("letter", "next")}


def _letters(w: Array) -> tuple[Array, Array]:
    """Return the embeddings and the output weights."""
    first, second = np.split(w, 2, axis=1)
    return first.reshape(-1, LETTERS, WIDTH), second.reshape(-1, WIDTH, LETTERS)


def _softmax(logits: Array) -> Array:
    chance = np.exp(logits - logits.max(axis=-1, keepdims=True))
    found: Array = chance / chance.sum(axis=-1, keepdims=True)
    return found


def _letter_slope(w: Array, rows: Rows, step: int) -> Array:
    embedding, output = _letters(w)
    seeds, drawn = rows.seeds[:, None], rows.drawn
    letter = (rows.world["up_to"][seeds] < drawn["letter"][step][..., None]).sum(axis=2).clip(max=LETTERS - 1)
    after = (rows.world["after"][seeds, letter] < drawn["next"][step][..., None]).sum(axis=2)
    now = np.eye(LETTERS)[letter]
    hidden = now @ embedding
    delta = (_softmax(hidden @ output) - np.eye(LETTERS)[after.clip(max=LETTERS - 1)]) / TEXT
    slopes = np.swapaxes(now, 1, 2) @ (delta @ np.swapaxes(output, 1, 2)), np.swapaxes(hidden, 1, 2) @ delta
    return np.concatenate([slope.reshape(len(w), -1) for slope in slopes], axis=1)


def _excess(state: Arrays, rows: Rows) -> Array:
    embedding, output = _letters(state["w"])
    often, chance = rows.world["often"][rows.seeds], rows.world["chance"][rows.seeds]
    log = np.log(_softmax(embedding @ output) + 1e-300)
    found: Array = (often[:, :, None] * chance * (np.log(chance) - log)).sum(axis=(1, 2))
    return found


LETTER = descent(
    _letter_slope,
    name="letters",
    title="A language model of letters, trained once through its text: learning rate and momentum",
    report="excess of the cross-entropy, nats, exact",
    unit=0.005,
    space=phyla.Space(lr=Float(1e-2, 10.0, log=True), momentum=Float(0.0, 0.98)),
    world=_language,
    fresh=lambda world, rng, count: {"w": 0.3 * rng.normal(size=(count, 2 * LETTERS * WIDTH))},
    steps=400,
    intervals=(8, 20, 40),
    draw=_text,
    score=_excess,
    value=_excess,
)

HIDDEN, PICTURES, WRONG = 10, 10, 0.2
SHAPES = {"w1": (64, HIDDEN), "b1": (1, HIDDEN), "w2": (HIDDEN, 10), "b2": (1, 10)}


@cache
def _digits(seed: int) -> Arrays:
    """Return pictures to train on, with a fifth of the labels wrong, and for validation and test."""
    x, y = images()
    rng = np.random.default_rng([seed, 3])
    order = rng.permutation(len(y))
    parts = {"train": order[:300], "checked": order[300:600], "test": order[600:1600]}
    found = {f"{name}_x": x[part].astype(np.float32) for name, part in parts.items()}
    labels = {f"{name}_y": y[part].copy() for name, part in parts.items()}
    wrong = rng.random(300) < WRONG
    labels["train_y"][wrong] = (labels["train_y"][wrong] + rng.integers(1, 10, wrong.sum())) % 10
    return found | labels


def _layers(w: Array) -> dict[str, Array]:
    ends = np.cumsum([rows * columns for rows, columns in SHAPES.values()])
    parts = np.split(w, ends[:-1], axis=1)
    return {name: part.reshape(-1, *shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}


def _digits_slope(w: Array, rows: Rows, step: int) -> Array:
    layers, batch, seeds = _layers(w), rows.drawn["batch"][step], rows.seeds[:, None]
    x, y = rows.world["train_x"][seeds, batch], rows.world["train_y"][seeds, batch]
    hidden = np.tanh(x @ layers["w1"] + layers["b1"])
    delta = (_softmax(hidden @ layers["w2"] + layers["b2"]) - np.eye(10, dtype=np.float32)[y]) / PICTURES
    back = (delta @ np.swapaxes(layers["w2"], 1, 2)) * (1 - hidden**2)
    slopes = np.swapaxes(x, 1, 2) @ back, back.sum(axis=1), np.swapaxes(hidden, 1, 2) @ delta, delta.sum(axis=1)
    flat = np.concatenate([slope.reshape(len(w), -1) for slope in slopes], axis=1)
    found: Array = flat + rows.params["decay"].astype(np.float32)[:, None] * w
    return found


def _nll(part: str) -> Callable[[Arrays, Rows], Array]:
    def nll(state: Arrays, rows: Rows) -> Array:
        layers = _layers(state["w"])
        found = np.empty(len(state["w"]))
        for seed in np.unique(rows.seeds):
            mine = np.flatnonzero(rows.seeds == seed)
            x, y = rows.world[f"{part}_x"][seed], rows.world[f"{part}_y"][seed]
            hidden = np.tanh(x @ layers["w1"][mine] + layers["b1"][mine])
            chance = _softmax(hidden @ layers["w2"][mine] + layers["b2"][mine])
            found[mine] = -np.log(chance[:, np.arange(len(y)), y] + 1e-30).mean(axis=1)
        return found

    return nll


def _fresh_network(world: Arrays, rng: np.random.Generator, count: int) -> Arrays:
    scale = np.repeat([0.125, 0.0, 0.25, 0.0], [rows * columns for rows, columns in SHAPES.values()])
    return {"w": (scale * rng.normal(size=(count, len(scale)))).astype(np.float32)}


DIGITS = descent(
    _digits_slope,
    name="digits",
    title="A small network on digits, a fifth of the labels wrong: learning rate, momentum, weight decay",
    report="negative log-likelihood on 1,000 test pictures, nats",
    unit=0.02,
    space=phyla.Space(lr=Float(1e-3, 1.0, log=True), momentum=Float(0.0, 0.98), decay=Float(1e-6, 1e-1, log=True)),
    steps=300,
    intervals=(6, 15, 30),
    world=_digits,
    fresh=_fresh_network,
    draw=lambda rng, count, members: {"batch": rng.integers(300, size=(count, members, PICTURES))},
    score=_nll("checked"),
    value=_nll("test"),
)

TASKS = {
    task.name: task
    for task in (
        noisy_quadratic(
            "quadratic",
            "The noisy quadratic model, 1,000 dimensions: learning rate",
            lambda curvature: curvature,
            dims=1000,
            steps=2000,
            members=32,
            unit=0.01,
        ),
        noisy_quadratic(
            "even noise",
            "The same with as much noise in all of 200 dimensions",
            lambda curvature: np.full_like(curvature, 0.01),
            dims=200,
            steps=1000,
            members=16,
            unit=0.005,
        ),
        noisy_quadratic(
            "jump",
            "The noisy quadratic model, 200 dimensions, whose optimum jumps at an unknown step: learning rate",
            lambda curvature: curvature,
            dims=200,
            steps=1000,
            members=16,
            unit=0.05,
            jump=1.0,
        ),
        _momentum(),
        _ravine(),
        LETTER,
        _deceptive(),
        _game(),
        LOGISTIC,
        DIGITS,
        BANDIT,
    )
}
