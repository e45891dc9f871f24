"""The suite: inner problems in and out of distribution, against Adam tuned for each of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gin
import numpy as np

import phyla
from learned_optimizer.inner import Array, Problem
from learned_optimizer.optimizer import Learned, baseline, final_losses, log_ratio, unroll
from learned_optimizer.train import MetaState
from phyla.evaluation import Estimate, TaskResult

SEEDS = 16
IN = {
    "quadratic": "Quadratic",
    "logistic": "Logistic",
    "regression": "Network",
    "classification": "Network",
}
OUT = {"valley": "Valley", "large": "Quadratic", "noisy": "Logistic", "long": "Network"}


@gin.configurable  # type: ignore[untyped-decorator]  # gin has no types
def setting(problem: Problem = gin.REQUIRED) -> Problem:
    """Return the problem that the bindings of an eval task name."""
    return problem


def evaluate(evaluation: phyla.Evaluation) -> None:
    """Run the learned optimizer, and tuned Adam, on this shard's seeds of one family of problems.

    The seeds are the same for every checkpoint, so that comparisons are paired, and others when a checkpoint is
    evaluated again.
    """
    problem: Problem = setting()
    seeds = [evaluation.seed + index for index in evaluation.shard.range(evaluation.config["seeds"])]
    curves = unroll(evaluation.loaded, problem, seeds)
    adam = baseline("adam", problem, tuple(seeds))
    for seed, loss, ratio in zip(seeds, final_losses(curves), log_ratio(curves, adam), strict=True):
        evaluation.record(final_loss=loss, vs_adam=ratio, seed=seed)
    evaluation.save(curves=curves, adam=adam)


def load(checkpoint: Any) -> Learned:
    """Return the learned optimizer that a checkpoint holds."""
    return Learned(meta=MetaState.load(checkpoint.path).meta)


def log_speedup(curves: Array, adam: Array) -> Array:
    """Return, per seed, the logarithm of how many times sooner the final loss of the slower one is reached.

    Args:
        curves: losses of the learned optimizer, [seeds, steps + 1].
        adam: losses of Adam on the same seeds.

    Returns:
        Above 0 where the learned optimizer reaches Adam's best loss before the last step, below 0 where Adam
        reaches its; 0 where both end alike.
    """
    ours, theirs = np.minimum.accumulate(curves, axis=1), np.minimum.accumulate(adam, axis=1)
    last = curves.shape[1] - 1
    # The first step at which one is as good as the other at its end; `last` if that is at the end, or never.
    we = np.where(ours <= theirs[:, -1:], np.arange(last + 1), last).min(axis=1)
    they = np.where(theirs <= ours[:, -1:], np.arange(last + 1), last).min(axis=1)
    return np.asarray(np.log(np.maximum(they, 1)) - np.log(np.maximum(we, 1)))


def speedup(results: Sequence[TaskResult]) -> dict[str, Estimate]:
    """Aggregate whole curves: how many times sooner than Adam, as a geometric mean over seeds and eval tasks.

    It is given for all eval tasks as `speedup`, and for each tag as `<tag>/speedup`.
    """
    found: dict[str, Estimate] = {}
    for tag in (None, *dict.fromkeys(tag for result in results for tag in result.tags)):
        logs = [
            log_speedup(np.concatenate(result.arrays["curves"]), np.concatenate(result.arrays["adam"]))
            for result in results
            if tag is None or tag in result.tags
        ]
        value = float(np.exp(np.mean([each.mean() for each in logs])))
        error = np.sqrt(sum(each.var(ddof=1) / len(each) for each in logs)) / len(logs)
        found["speedup" if tag is None else f"{tag}/speedup"] = Estimate(value, float(value * error))
    return found


def make_suite(*, seeds: int = SEEDS, shards: int = 1) -> phyla.Suite:
    """Return the suite.

    Args:
        seeds: instances of each family.
        shards: into how many parts each eval task may be split over workers.
    """
    tasks = [
        phyla.EvalTask(
            name=name,
            evaluate=evaluate,
            config={"seeds": seeds},
            gin=(f"setting.problem = @{name}/{kind}()",),
            tags=(tag,),
            shards=shards,
            samples=seeds,
        )
        for tag, families in (("in", IN), ("out", OUT))
        for name, kind in families.items()
    ]
    return phyla.Suite(
        "meta",
        tuple(tasks),
        objective=phyla.Minimize("in/vs_adam_mean"),
        aggregates=(
            phyla.evaluation.Mean("vs_adam", tag="in"),
            phyla.evaluation.Mean("vs_adam", tag="out"),
            phyla.evaluation.Worst("vs_adam", of="max"),
            speedup,
        ),
        load=load,
        gin_files=(str(Path(__file__).with_name("config.gin")),),
    )


SUITE = make_suite()
"""For `phyla watch --suite learned_optimizer.suite:SUITE`."""
