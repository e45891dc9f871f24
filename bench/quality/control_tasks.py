"""Three more tasks for `schedules.py`: balancing a pole, swinging up a pendulum, and meta-training an optimizer.

As in `schedule_tasks.py`, the members of all seeds are trained together, in single precision here. The value is
measured on many episodes or problems that selection never saw.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from lockstep import Arrays, Ints, Rows, Task

import phyla
from phyla import Float

Array = npt.NDArray[Any]
Moved = tuple[Array, Array, Array]
"""States of a world after an action, rewards, and whether the episodes failed."""


def adam(state: Arrays, gradient: Array, rate: Array, age: Array) -> Arrays:
    """Return weights and moments after a step of Adam at an age, which begins with 1."""
    age = age[:, None].astype(gradient.dtype)
    first = state["m"] + np.float32(0.1) * (gradient - state["m"])
    second = state["v"] + np.float32(0.01) * (gradient**2 - state["v"])
    scale = np.sqrt(second / (1 - np.float32(0.99) ** age)) + np.float32(1e-8)
    change = first / (1 - np.float32(0.9) ** age) / scale
    return {**state, "w": state["w"] - rate[:, None].astype(gradient.dtype) * change, "m": first, "v": second}


def with_moments(w: Array) -> Arrays:
    """Return fresh weights with the moments of Adam."""
    return {"w": w, "m": np.zeros_like(w), "v": np.zeros_like(w)}


RECENT = 0.2
"""Weight of the last update in the score of a policy."""


@dataclass(frozen=True, kw_only=True)
class Control:
    """A world to control, and an actor with a critic: one hidden layer, Adam, and generalised advantages.

    Attributes:
        begin: states at the beginning of episodes, of a shape.
        senses: what the network sees of states.
        move: states after an action, rewards, and which episodes failed.
        dims: numbers in a state.
        inputs: numbers that the network sees.
        actions: how many there are.
        hidden: units.
        worlds: episodes that are played at once.
        played: actions of each between two updates.
        restart: chance that an episode begins anew after an update.
        limit: actions of an episode when it is measured.
        scale: of rewards in training.
    """

    begin: Callable[[np.random.Generator, tuple[int, ...]], Array]
    senses: Callable[[Array], Array]
    move: Callable[[Array, Ints], Moved]
    dims: int
    inputs: int
    actions: int
    hidden: int
    worlds: int
    played: int
    restart: float
    limit: int
    scale: float

    def fresh(self, world: Arrays, rng: np.random.Generator, count: int) -> Arrays:
        """Return fresh weights, and episodes at their beginning."""
        shapes = [(self.inputs, self.hidden), (1, self.hidden), (self.hidden, self.actions + 1)]
        scales = (0.5, 0.0, 0.05)
        parts = [
            scale * rng.normal(size=(count, np.prod(shape))) for scale, shape in zip(scales, shapes, strict=True)
        ]
        w = np.concatenate([*parts, np.zeros((count, self.actions + 1))], axis=1).astype(np.float32)
        begin = self.begin(rng, (count, self.worlds, self.dims))
        return {**with_moments(w), "at": begin, "recent": np.zeros(count)}

    def draw(self, rng: np.random.Generator, count: int, members: int) -> Arrays:
        """Return random numbers for so many updates."""
        shape = (count, members, self.worlds)
        return {
            "anew": rng.random(shape) < self.restart,
            "begin": self.begin(rng, (*shape, self.dims)),
            "pick": rng.random((*shape, self.played), dtype=np.float32),
        }

    def layers(self, w: Array) -> tuple[Array, Array, Array, Array]:
        """Return weights and biases of both layers, by member."""
        ends = np.cumsum([self.inputs * self.hidden, self.hidden, self.hidden * (self.actions + 1)])
        first, bias, second, rest = np.split(w, ends, axis=1)
        count = len(w)
        return (
            first.reshape(count, self.inputs, self.hidden),
            bias[:, None],
            second.reshape(count, self.hidden, self.actions + 1),
            rest[:, None],
        )

    def forward(self, w: Array, x: Array) -> tuple[Array, Array, Array]:
        """Return hidden units, log-probabilities of actions, and values of inputs (member, any, input)."""
        first, bias, second, rest = self.layers(w)
        hidden = np.tanh(x @ first + bias)
        out = hidden @ second + rest
        logits = out[..., :-1]
        top = logits.max(axis=-1, keepdims=True)
        return hidden, logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True)), out[..., -1]

    def slope(self, w: Array, x: Array, action: Ints, gain: Array, target: Array, entropy: Array) -> Array:
        """Return the gradient of the mean of `-gain log p(action) - entropy H + (value - target)^2 / 4`."""
        hidden, log, value = self.forward(w, x)
        chance = np.exp(log)
        uncertain = -(chance * log).sum(axis=-1, keepdims=True)
        delta = np.empty((*value.shape, self.actions + 1), w.dtype)
        delta[..., :-1] = gain[..., None] * (chance - np.eye(self.actions, dtype=w.dtype)[action])
        delta[..., :-1] += entropy[:, None, None] * chance * (log + uncertain)
        delta[..., -1] = 0.5 * (value - target)
        delta /= x.shape[1]
        back = (delta @ np.swapaxes(self.layers(w)[2], 1, 2)) * (1 - hidden**2)
        slopes = (
            np.swapaxes(x, 1, 2) @ back,
            back.sum(axis=1),
            np.swapaxes(hidden, 1, 2) @ delta,
            delta.sum(axis=1),
        )
        return np.concatenate([slope.reshape(len(w), -1) for slope in slopes], axis=1)

    def train(self, state: Arrays, rows: Rows) -> Arrays:
        """Play, and update, once a step."""
        params = {name: values.astype(np.float32) for name, values in rows.params.items()}
        for step in range(rows.count):
            drawn = {name: rows.drawn[name][step] for name in ("anew", "begin", "pick")}
            at = np.where(drawn["anew"][..., None], drawn["begin"], state["at"])
            x, action, reward, failed, at = self._play(state["w"], at, drawn)
            value = self.forward(state["w"], x.reshape(len(x), -1, self.inputs))[2].reshape(x.shape[:-1])
            gain = advantages(reward, value, failed, 1 - params["distance"], params["trace"])
            target = gain + value[:, :-1]
            spread = gain.std(axis=(1, 2), keepdims=True) + np.float32(1e-6)
            gain = (gain - gain.mean(axis=(1, 2), keepdims=True)) / spread
            flat: list[Any] = [part.reshape(len(x), -1) for part in (action, gain, target)]
            inputs = x[:, :-1].reshape(len(x), -1, self.inputs)
            slope = self.slope(state["w"], inputs, flat[0], flat[1], flat[2], params["entropy"])
            state = adam(state, slope, rows.rate("lr", step), rows.ages + step + 1)
            gained = (reward * ~failed).mean(axis=(1, 2)) - state["recent"]
            state = {**state, "at": at, "recent": state["recent"] + RECENT * gained}
        return state

    def _play(self, w: Array, at: Array, drawn: Arrays) -> tuple[Array, Ints, Array, Array, Array]:
        """Return inputs (one more than actions), actions, rewards, failures, and states after the last action."""
        shape = (len(w), self.played, self.worlds)
        x = np.empty((len(w), self.played + 1, self.worlds, self.inputs), w.dtype)
        action, reward, failed = np.empty(shape, int), np.empty(shape, w.dtype), np.empty(shape, bool)
        for turn in range(self.played):
            x[:, turn] = self.senses(at)
            action[:, turn] = self.act(w, x[:, turn], drawn["pick"][..., turn])
            at, reward[:, turn], failed[:, turn] = self.move(at, action[:, turn])
            at = np.where(failed[:, turn, :, None], drawn["begin"], at)
        x[:, -1] = self.senses(at)
        return x, action, self.scale * reward, failed, at

    def score(self, state: Arrays, rows: Rows) -> Array:
        """Return the mean reward in the last updates, in which a turn that fails counts nothing."""
        recent: Array = state["recent"]
        return recent

    def value(self, state: Arrays, rows: Rows) -> Array:
        """Return the mean return of 200 episodes that selection never saw."""
        rng = np.random.default_rng(4)
        begin, pick = self.begin(rng, (1, 200, self.dims)), rng.random((1, 200, self.limit), dtype=np.float32)
        return self.returns(state["w"], np.repeat(begin, len(state["w"]), axis=0), pick)

    def returns(self, w: Array, at: Array, pick: Array) -> Array:
        """Return mean returns of episodes, by member."""
        total, alive = np.zeros(at.shape[:2], np.float32), np.ones(at.shape[:2], bool)
        for turn in range(self.limit):
            at, reward, failed = self.move(at, self.act(w, self.senses(at), pick[..., turn]))
            total += reward * alive
            alive &= ~failed
            if not alive.any():
                break
        found: Array = total.mean(axis=1).astype(float)
        return found

    def act(self, w: Array, x: Array, pick: Array) -> Ints:
        """Return actions drawn from the policy by numbers from 0 to 1."""
        up_to = np.exp(self.forward(w, x)[1]).cumsum(axis=-1)[..., :-1]
        action: Ints = (up_to < pick[..., None]).sum(axis=-1)
        return action


def advantages(reward: Array, value: Array, failed: Array, discount: Array, trace: Array) -> Array:
    """Return generalised advantages (Schulman et al. 2016, arXiv 1506.02438), of shape (member, turn, episode).

    Args:
        reward: of each turn.
        value: of states; one turn more.
        failed: where episodes ended, and nothing follows.
        discount: by member.
        trace: lambda, by member.
    """
    gain, after = np.empty_like(reward), np.zeros_like(reward[:, 0])
    discount, trace = discount[:, None], trace[:, None]
    for turn in reversed(range(reward.shape[1])):
        going = discount * ~failed[:, turn]
        after = reward[:, turn] + going * (value[:, turn + 1] + trace * after) - value[:, turn]
        gain[:, turn] = after
    return gain


def _started(spread: float) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    def begin(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return spread * (2 * rng.random(shape, dtype=np.float32) - 1)

    return begin


def balance(at: Array, action: Ints) -> Moved:
    """Move CartPole-v1 (Barto, Sutton and Anderson 1983): position, speed, angle and angular speed."""
    x, speed, angle, turning = (at[..., part] for part in range(4))
    sine, cosine = np.sin(angle), np.cos(angle)
    pushed = (np.float32(20) * action - 10 + np.float32(0.05) * turning**2 * sine).astype(
        at.dtype
    ) / at.dtype.type(1.1)
    fall = (9.8 * sine - cosine * pushed) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    gain = pushed - 0.05 * fall * cosine / 1.1
    after = np.stack(
        [x + 0.02 * speed, speed + 0.02 * gain, angle + 0.02 * turning, turning + 0.02 * fall], axis=-1
    )
    failed = (np.abs(after[..., 0]) > 2.4) | (np.abs(after[..., 2]) > 12 * np.pi / 180)
    return after, np.ones(action.shape, at.dtype), failed


REPEAT = 4
"""Steps of the pendulum with the same torque."""


def swing(at: Array, action: Ints) -> Moved:
    """Move Pendulum-v1: the angle, 0 is up, and the angular speed. The reward is the mean height, 0 to 1."""
    angle, turning = at[..., 0], at[..., 1]
    torque, height = (2 * action - 2).astype(at.dtype), np.zeros(action.shape, at.dtype)
    for _ in range(REPEAT):
        turning = np.clip(turning + 0.05 * (15 * np.sin(angle) + 3 * torque), -8, 8)
        angle = angle + 0.05 * turning
        height += (1 + np.cos(angle)) / (2 * REPEAT)
    return np.stack([angle, turning], axis=-1), height, np.zeros(action.shape, bool)


def _hanging(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.array([np.pi, 0.0], np.float32) + (2 * rng.random(shape, dtype=np.float32) - 1)


def seen(at: Array) -> Array:
    """Return what the network sees of a pendulum: cosine and sine of its angle, and its angular speed."""
    return np.stack([np.cos(at[..., 0]), np.sin(at[..., 0]), at[..., 1] / 4], axis=-1)


POLE = Control(
    begin=_started(0.05),
    senses=lambda at: at * np.array([0.5, 0.5, 5.0, 0.5], at.dtype),
    move=balance,
    dims=4,
    inputs=4,
    actions=2,
    hidden=8,
    worlds=4,
    played=16,
    restart=0.05,
    limit=500,
    scale=0.2,
)
PENDULUM = Control(
    begin=_hanging,
    senses=seen,
    move=swing,
    dims=2,
    inputs=3,
    actions=3,
    hidden=12,
    worlds=4,
    played=20,
    restart=0.5,
    limit=40,
    scale=1.0,
)


def controlled(control: Control, **settings: Any) -> Task:
    """Make a task of a world to control."""
    return Task(
        maximize=True,
        steps=200,
        intervals=(4, 10, 20),
        space=phyla.Space(
            lr=Float(1e-4, 1e-1, log=True),
            entropy=Float(1e-4, 1e-1, log=True),
            distance=Float(3e-3, 0.5, log=True),
            trace=Float(0.0, 1.0),
        ),
        fresh=control.fresh,
        draw=control.draw,
        train=control.train,
        score=control.score,
        value=control.value,
        final_only=True,
        **settings,
    )


SIZE, UNROLL, UNITS, INPUTS = 8, 30, 4, 4
"""Dimensions of an inner problem, its steps, and the units and inputs of the learned rule."""
PAIRS, CHECKED, HELD_OUT = 2, 8, 500
"""Problems of a step of meta-training, for selection, and for the value."""
WORST = 2.0
"""Largest loss of a step that counts, as the logarithm to base 10 of the loss over that at the start."""


def quadratics(rng: np.random.Generator, shape: tuple[int, ...]) -> Arrays:
    """Return problems of a shape: curvatures, axes of reflections, optima, and noise of the gradients."""
    scale = 10 ** rng.uniform(-1, 1, (*shape, 1))
    axis = rng.normal(size=(*shape, SIZE))
    return {
        "curvature": (scale * 10 ** rng.uniform(-2, 0, (*shape, SIZE))).astype(np.float32),
        "axis": (axis / np.linalg.norm(axis, axis=-1, keepdims=True)).astype(np.float32),
        "optimum": rng.normal(size=(*shape, SIZE)).astype(np.float32),
        "noise": (0.02 * scale[..., None] * rng.normal(size=(*shape, UNROLL, SIZE))).astype(np.float32),
    }


def unrolled(w: Array, problems: Arrays) -> Array:
    """Return log losses of the learned rule after each step on problems, the last axis.

    A small network sees, for each parameter, the gradient and its averages over 2 and 10 steps, all divided by the
    root of the mean squared gradient, and the time. It returns a direction, and the logarithm of its length.
    """
    curvature, axis, noise = (problems[name] for name in ("curvature", "axis", "noise"))
    first, bias, second, rest = np.split(w, np.cumsum([INPUTS * UNITS, UNITS, UNITS * 2]), axis=-1)
    first, second = first.reshape(*w.shape[:-1], INPUTS, UNITS), second.reshape(*w.shape[:-1], UNITS, 2)

    def reflected(x: Array) -> Array:
        mirrored: Array = x - 2 * axis * (axis * x).sum(axis=-1, keepdims=True)
        return mirrored

    x = np.broadcast_to(-problems["optimum"], (*np.broadcast_shapes(w.shape[:-1], axis.shape[:-1]), SIZE))
    start = (curvature * reflected(x) ** 2).sum(axis=-1)
    fast, slow, square = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    inputs, losses = np.empty((*x.shape, INPUTS), np.float32), np.empty((*x.shape[:-1], UNROLL), np.float32)
    for step in range(UNROLL):
        slope = reflected(curvature * reflected(x)) + noise[..., step, :]
        fast, slow = fast + np.float32(0.5) * (slope - fast), slow + np.float32(0.1) * (slope - slow)
        square = square + np.float32(0.1) * (slope**2 - square)
        size = np.sqrt(square / np.float32(1 - 0.9 ** (step + 1))) + np.float32(1e-8)
        for place, part in enumerate((slope, fast, slow / np.float32(1 - 0.9 ** (step + 1)))):
            inputs[..., place] = part / size
        inputs[..., 3] = 2 * step / UNROLL - 1
        out = np.tanh(inputs @ first + bias[..., None, :]) @ second + rest[..., None, :]
        x = np.clip(x - np.float32(0.3) * out[..., 0] * np.exp(np.clip(out[..., 1], -5, 3)), -1e4, 1e4)
        losses[..., step] = (curvature * reflected(x) ** 2).sum(axis=-1) / start
    found: Array = np.clip(np.log10(losses + np.float32(1e-6)), None, WORST)
    return found


def evolved(w: Array, problems: Arrays, noise: Array, sigma: Array, unroll: Array) -> Array:
    """Return the gradient of the meta-loss by evolution strategies, from antithetic pairs.

    Args:
        w: weights by member.
        problems: one for each member and pair.
        noise: of the weights, for each member and pair.
        sigma: scale of the noise, by member.
        unroll: how many steps count, by member.
    """
    sigma = sigma[:, None, None]
    both = np.stack([w[:, None] + sigma * noise, w[:, None] - sigma * noise])
    counted = np.clip(unroll[:, None] - np.arange(UNROLL, dtype=w.dtype), 0, 1)[:, None]
    up, down = (unrolled(both, problems) * counted).sum(axis=-1) / unroll[:, None]
    slope: Array = ((up - down)[..., None] / (2 * sigma) * noise).mean(axis=1)
    return slope


def _meta_train(state: Arrays, rows: Rows) -> Arrays:
    sigma, unroll = (rows.params[name].astype(np.float32) for name in ("sigma", "unroll"))
    for step in range(rows.count):
        problems = {name: rows.drawn[name][step] for name in ("curvature", "axis", "optimum", "noise")}
        slope = evolved(state["w"], problems, rows.drawn["turned"][step], sigma, unroll)
        state = adam(state, slope, rows.rate("lr", step), rows.ages + step + 1)
    return state


def _meta_fresh(world: Arrays, rng: np.random.Generator, count: int) -> Arrays:
    scale = np.repeat([0.5, 0.0, 0.1, 0.0], [INPUTS * UNITS, UNITS, UNITS * 2, 2])
    return with_moments((scale * rng.normal(size=(count, len(scale)))).astype(np.float32))


def _meta_draw(rng: np.random.Generator, count: int, members: int) -> Arrays:
    weights = INPUTS * UNITS + UNITS + UNITS * 2 + 2
    noise = rng.normal(size=(count, members, PAIRS, weights)).astype(np.float32)
    return {**quadratics(rng, (count, members, PAIRS)), "turned": noise}


def _meta_loss(w: Array, problems: Arrays) -> Array:
    loss: Array = unrolled(w[:, None], problems).mean(axis=(1, 2)).astype(float)
    return loss


def _meta_score(state: Arrays, rows: Rows) -> Array:
    return _meta_loss(state["w"], {name: values[rows.seeds] for name, values in rows.world.items()})


def _meta_value(state: Arrays, rows: Rows) -> Array:
    problems = quadratics(np.random.default_rng(4), (1, HELD_OUT))
    return np.array([_meta_loss(w[None], problems)[0] for w in state["w"]])


LEARNED = Task(
    name="learned optimizer",
    title="A learned optimizer, meta-trained by evolution strategies on small quadratic problems: learning rate, "
    "size of the perturbations, and steps of the unroll",
    report="mean logarithm to base 10 of the loss over that at the start, on 500 fresh problems",
    unit=0.05,
    steps=100,
    intervals=(2, 5, 10),
    space=phyla.Space(lr=Float(1e-3, 1.0, log=True), sigma=Float(1e-3, 1.0, log=True), unroll=Float(3.0, 30.0)),
    world=lambda seed: quadratics(np.random.default_rng([seed, 3]), (CHECKED,)),
    fresh=_meta_fresh,
    draw=_meta_draw,
    train=_meta_train,
    score=_meta_score,
    value=_meta_value,
    final_only=True,
)

TASKS = {
    task.name: task
    for task in (
        controlled(
            POLE,
            name="cartpole",
            title="CartPole, by an actor with a critic: learning rate, entropy bonus, discount, and lambda",
            report="mean length of 200 fresh episodes, at most 500",
            unit=50,
        ),
        controlled(
            PENDULUM,
            name="pendulum",
            title="Swinging a pendulum up, by the same actor and critic, with the same hyperparameters",
            report="height (0 to 1) summed over 40 actions, mean of 200 fresh episodes",
            unit=0.5,
        ),
        LEARNED,
    )
}
