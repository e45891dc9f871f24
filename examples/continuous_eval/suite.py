"""What every checkpoint of the language model is measured on: seven eval tasks, in and out of distribution.

Watch a training job with `phyla watch runs/lm/checkpoints --suite suite.py --workers 2 --alert`.
"""

import platform
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import stdlib_text
import torch
from char_gru import CharGRU, losses

import phyla

if TYPE_CHECKING:
    from phyla.worker import EvaluationCheckpoint

# The texts are those of the Python that runs this: results of another one are not comparable.
VERSION = f"1, Python {platform.python_version()}"

TEXTS: dict[str, Callable[[], stdlib_text.Text]] = {
    "modules": lambda: stdlib_text.encoded(stdlib_text.modules()),
    "tests": lambda: stdlib_text.encoded(stdlib_text.unit_tests()),
    "docstrings": lambda: stdlib_text.encoded(stdlib_text.docstrings()),
    "c-like": lambda: stdlib_text.encoded(stdlib_text.like_c(stdlib_text.modules())),
    "typos": lambda: stdlib_text.with_typos(stdlib_text.encoded(stdlib_text.modules()), 0.05),
    "reversed": lambda: stdlib_text.encoded(stdlib_text.modules())[::-1],
}


@cache
def windows(text: str, length: int, count: int, seed: int) -> torch.Tensor:
    """Return windows of a text that do not overlap, of the shape (count, length + 1); once per process."""
    characters = TEXTS[text]()
    room = len(characters) // (length + 1)
    if room < count:
        raise ValueError(f"{text!r} has room for {room} windows of {length + 1} characters, {count} are wanted")
    rows = characters[: room * (length + 1)].reshape(room, length + 1)
    chosen = np.random.default_rng(seed).permutation(room)[:count]
    return torch.from_numpy(rows[chosen].astype(np.int64))


def load(checkpoint: "EvaluationCheckpoint") -> CharGRU:
    """Load the model, once per worker and checkpoint; all eval tasks get it as `evaluation.loaded`."""
    saved = torch.load(checkpoint.path, map_location="cpu", weights_only=True)
    model = CharGRU(**saved["config"])
    model.load_state_dict(saved["model"])
    model.eval()
    return model


def evaluate(evaluation: phyla.Evaluation) -> None:
    """Measure the model on this shard's groups of windows.

    Each group is recorded under a seed of its own. All checkpoints see the same groups, so two of them are
    compared group by group, which shows differences much smaller than those between the texts.
    """
    config = evaluation.config
    size, groups = config["group"], config["groups"]
    rows = windows(config["text"], config["length"], size * groups, evaluation.seed)
    for group in evaluation.shard.range(groups):
        if evaluation.should_stop:
            return
        with torch.inference_mode():
            nll, foreseen = losses(evaluation.loaded, rows[group * size : (group + 1) * size])
        # One sample per window: the characters of a window depend on each other.
        evaluation.record(
            loss=nll.mean(dim=1).numpy(),
            accuracy=foreseen.double().mean(dim=1).numpy(),
            perplexity=phyla.evaluation.Perplexity.of(nll.numpy()),
            seed=evaluation.seed + group,
        )


def task(
    name: str, text: str, *tags: str, shards: int = 1, length: int = 64, group: int = 32, groups: int = 24
) -> phyla.EvalTask:
    """Return an eval task: `groups` groups of `group` windows of a text, each of `length` characters."""
    return phyla.EvalTask(
        name,
        evaluate=evaluate,
        config={"text": text, "length": length, "group": group, "groups": groups},
        tags=tags,
        shards=shards,
        samples=group * groups,
        version=VERSION,
        timeout_s=120,
    )


suite = phyla.Suite(
    "code",
    tasks=(
        task("held-out", "modules", "in", shards=3, groups=48),
        task("tests", "tests", "in", shards=2, groups=32),
        task("docstrings", "docstrings", "in"),
        task("long", "modules", "in", shards=2, length=1024, group=8, groups=8),
        task("c-like", "c-like", "out"),
        task("typos", "typos", "out"),
        task("reversed", "reversed", "out"),
    ),
    objective=phyla.Minimize("loss_mean"),
    load=load,
)
