"""Train a population of small networks on real images of handwritten digits.

The data are scikit-learn's digits: 1,797 images of 8 x 8 pixels. They are split once into training,
validation and test images. Selection sees only the validation images; the test images are looked at once, for
the best model, by `summary.py`.

Fitness is not what training reports but what the suite `robust` finds: the mean negative log-likelihood over the
validation images as they are, blurred, noisy, rotated and occluded. Members train on while it is evaluated.

Run it with `phyla run examples/digits/digits.py --study digits`, or `python examples/digits/digits.py`.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import phyla

Array = npt.NDArray[np.float64]
Split = tuple[Array, npt.NDArray[np.int64]]

HIDDEN = 64
CLASSES = 10
CHANGES = ("clean", "blurred", "noisy", "rotated", "occluded")


def load_data() -> dict[str, Split]:
    """Return the images, scaled to [0, 1], and their labels, in three fixed parts."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(2024).permutation(len(digits.target))
    images, labels = digits.data[order] / 16.0, digits.target[order]
    return {
        "train": (images[:1000], labels[:1000]),
        "validation": (images[1000:1400], labels[1000:1400]),
        "test": (images[1400:], labels[1400:]),
    }


class Network:
    """One hidden layer, cross-entropy, gradient descent with momentum."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self.weights = weights

    @classmethod
    def fresh(cls, rng: np.random.Generator) -> "Network":
        shapes = {"w1": (64, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
        weights = {name: rng.normal(0, 0.1, shape) for name, shape in shapes.items()}
        return cls({**weights, **{f"v_{name}": np.zeros(shape) for name, shape in shapes.items()}})

    @classmethod
    def load(cls, path: Path) -> "Network":
        with np.load(path) as file:
            return cls({name: file[name] for name in file.files})

    def save(self, path: Path) -> None:
        np.savez(path, **self.weights)  # type: ignore[arg-type]  # NumPy's stub mistakes the names for options

    def log_p(self, x: Array, activation: str) -> Array:
        """Return log-probabilities, of shape (images, classes)."""
        return self._forward(x, activation)[1]

    def _forward(self, x: Array, activation: str) -> tuple[Array, Array]:
        z = x @ self.weights["w1"] + self.weights["b1"]
        hidden = np.tanh(z) if activation == "tanh" else np.maximum(z, 0.0)
        logits = hidden @ self.weights["w2"] + self.weights["b2"]
        logits -= logits.max(axis=1, keepdims=True)
        return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def step(self, x: Array, y: npt.NDArray[np.int64], params: phyla.space.Params) -> float:
        """Take one step on a batch; return its loss."""
        hidden, log_p = self._forward(x, params["activation"])
        loss = -log_p[np.arange(len(y)), y].mean()
        delta = np.exp(log_p)
        delta[np.arange(len(y)), y] -= 1.0
        delta /= len(y)
        back = delta @ self.weights["w2"].T
        back *= (1.0 - hidden**2) if params["activation"] == "tanh" else (hidden > 0)
        gradients = {
            "w1": x.T @ back,
            "b1": back.sum(axis=0),
            "w2": hidden.T @ delta,
            "b2": delta.sum(axis=0),
        }
        for name, gradient in gradients.items():
            velocity = self.weights[f"v_{name}"]
            velocity *= params["momentum"]
            velocity -= params["lr"] * gradient
            self.weights[name] += velocity
        return float(loss)

    def evaluate(self, split: Split, activation: str) -> tuple[float, float]:
        """Return mean negative log-likelihood (nats per image) and accuracy."""
        x, y = split
        _, log_p = self._forward(x, activation)
        return float(-log_p[np.arange(len(y)), y].mean()), float((log_p.argmax(axis=1) == y).mean())


def setup(worker: phyla.WorkerContext) -> dict[str, Split]:
    """Load the data once per worker process; trials find it as `trial.worker`."""
    return load_data()


def train(trial: phyla.Trial) -> None:
    """Train one trial: continue from the parent's checkpoint with the given hyperparameters."""
    data: dict[str, Split] = trial.worker
    images, labels = data["train"]
    rng = np.random.default_rng(trial.seed)
    network = Network.load(trial.source.path / "network.npz") if trial.source else Network.fresh(rng)
    params: Any = trial.params
    for step in trial.steps():
        batch = rng.integers(len(labels), size=params["batch_size"])
        noisy = images[batch] + rng.normal(0.0, params["noise"], (len(batch), 64))
        loss = network.step(noisy, labels[batch], params)
        if step % 20 == 0:
            trial.report({"train/loss": loss}, step=step)
    network.save(trial.checkpoint_dir / "network.npz")
    (trial.checkpoint_dir / "activation.txt").write_text(params["activation"])


Model = tuple[Network, str]


def load(checkpoint: Any) -> Model:
    """Load a checkpoint, once per worker, for all eval tasks of the suite."""
    path: Path = checkpoint.path
    return Network.load(path / "network.npz"), (path / "activation.txt").read_text()


def changed(images: Array, how: str, rng: np.random.Generator) -> Array:
    """Return images, of shape (images, 64), as a bad scanner would have made them."""
    from scipy import ndimage

    squares = images.reshape(-1, 8, 8)
    if how == "blurred":
        squares = ndimage.gaussian_filter(squares, sigma=(0, 0.7, 0.7))
    elif how == "noisy":
        squares = squares + rng.normal(0.0, 0.2, squares.shape)
    elif how == "rotated":
        turned = [
            ndimage.rotate(square, angle, reshape=False, order=1)
            for square, angle in zip(squares, rng.uniform(-20, 20, len(squares)), strict=True)
        ]
        squares = np.stack(turned)
    elif how == "occluded":
        squares = squares.copy()
        for square, (row, column) in zip(squares, rng.integers(0, 6, (len(squares), 2)), strict=True):
            square[row : row + 3, column : column + 3] = 0.0
    return squares.reshape(-1, 64)


@cache
def images_of(part: str, how: str, seed: int) -> Split:
    """Return images, changed as the name says, and their labels; made once per worker."""
    images, labels = load_data()[part]
    return changed(images, how, np.random.default_rng(seed)), labels


def recognise(evaluation: phyla.Evaluation) -> None:
    """Record how well the validation images are recognised, image by image."""
    images, labels = images_of("validation", evaluation.config["how"], evaluation.seed)
    network, activation = evaluation.loaded
    log_p = network.log_p(images, activation)
    evaluation.record(nll=-log_p[np.arange(len(labels)), labels], accuracy=log_p.argmax(axis=1) == labels)


suite = phyla.Suite(
    name="robust",
    tasks=tuple(
        phyla.EvalTask(how, recognise, config={"how": how}, tags=("in",) if how == "clean" else ("out",))
        for how in CHANGES
    ),
    objective=phyla.Minimize("nll_mean"),
    load=load,
)
FITNESS = phyla.FromSuite("robust", "nll_mean", max_lag=2)


SPACE = phyla.Space(
    lr=phyla.Float(1e-4, 1.0, log=True),
    momentum=phyla.Float(0.0, 0.98),
    batch_size=phyla.Int(8, 256, log=True),
    noise=phyla.Float(0.0, 0.5),
    activation=phyla.Choice(["relu", "tanh"]),
)
BUDGET: dict[str, Any] = {"population_size": 16, "steps_per_trial": 100, "total_steps": 3000}

study = phyla.Study(
    name="digits",
    space=SPACE,
    objective=phyla.Minimize("nll"),
    strategy=phyla.PBT(
        **BUDGET,
        exploit=phyla.Truncation(0.25),
        explore=phyla.Perturb(factors=(0.8, 1.2), resample=0.25),
        fitness=FITNESS,
    ),
    train=train,
    setup=setup,
    suites=[suite],
    seed=0,
)

random_search = phyla.Study(
    name="digits-random",
    space=SPACE,
    objective=phyla.Minimize("nll"),
    strategy=phyla.PBT(**BUDGET, exploit=None, explore=None, fitness=FITNESS),
    train=train,
    setup=setup,
    suites=[suite],
    seed=0,
)

if __name__ == "__main__":
    result = study.run(workers=2)
    print(result.best)
    print(result.schedule())
