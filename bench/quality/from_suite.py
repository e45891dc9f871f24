"""Selection under noise: the loss of the last batch as fitness, against a suite's.

A population trains linear models by stochastic gradient descent on labels with noise. How fast a model learns and
how far down it gets both hang on the learning rate, which has to fall on the way: that is what PBT can find, if
it can tell better members from worse ones. It is told by:

- the training loss, of the trial's last batch or of its last five: what training reports for free;
- a suite on held-out examples, drawn anew for every checkpoint (as the episodes of an environment are) or the
  same for all (as a validation set is), with a donor evaluated 0, 1 or 2 times again before it is copied;
- the exact excess risk, which nobody has outside of a benchmark: what selection could reach at best;
- nothing: no selection.

All train for the same number of steps, on 8,000 examples. Suites look at others on top of that, more of them
the more often they measure again; the table says how many. What is compared is exact, without noise: the excess
risk of the checkpoint that the study calls its best, and the mean over the members' last checkpoints. Seed by
seed the problem, the members' first hyperparameters and the seeds of training are the same, hence paired tests.
Each variant is compared with the last batch's loss; p is that of a Wilcoxon test, also adjusted by Holm for the
number of variants, and that of a t-test beside it.

The levels of noise were settled on seeds from 1000 on; the seeds that are reported begin at 0.
"""

import argparse
import json
import math
import multiprocessing
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt
from scipy.stats import ttest_rel, wilcoxon

import phyla
from machine import facts
from phyla.significance import holm

DIMENSION, BATCH, LABEL_NOISE, HELD_OUT = 10, 4, 0.5, 64
SPECTRUM = np.logspace(-1.0, 0.0, DIMENSION)
MEMBERS, STEPS_PER_TRIAL, TRIALS = 8, 10, 25
TUNING_SEED = 1000

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to tell better members from worse ones.

    Attributes:
        name: in the table.
        fitness: what it goes by.
        remeasure: how many more times a donor is evaluated.
    """

    name: str
    fitness: Literal["last", "mean", "fresh", "same", "exact", "none"]
    remeasure: int = 0


BASELINE = "training loss, last batch"
VARIANTS = (
    Variant(name=BASELINE, fitness="last"),
    Variant(name="training loss, last 5 batches", fitness="mean"),
    Variant(name="suite, fresh examples", fitness="fresh"),
    Variant(name="suite, fresh examples, remeasure=1", fitness="fresh", remeasure=1),
    Variant(name="suite, fresh examples, remeasure=2", fitness="fresh", remeasure=2),
    Variant(name="suite, same examples", fitness="same"),
    Variant(name="suite, same examples, remeasure=1", fitness="same", remeasure=1),
    Variant(name="suite, same examples, remeasure=2", fitness="same", remeasure=2),
    Variant(name="exact excess risk", fitness="exact"),
    Variant(name="no selection", fitness="none"),
)


FURTHER = (
    ("suite, fresh examples", "training loss, last 5 batches"),
    ("suite, same examples", "training loss, last 5 batches"),
    ("suite, fresh examples, remeasure=1", "suite, fresh examples"),
    ("suite, fresh examples, remeasure=2", "suite, fresh examples"),
    ("suite, same examples, remeasure=1", "suite, same examples"),
    ("suite, same examples, remeasure=2", "suite, same examples"),
)
"""Also compared, the first with the second."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one study came to.

    Attributes:
        best: log10 of the exact excess risk of the checkpoint that the study calls its best.
        members: mean over the members of the same of their last checkpoints.
        steps: training steps of all members.
        evaluated: held-out examples that suites looked at, over all evaluations.
    """

    best: float
    members: float
    steps: int
    evaluated: int


def run(variant: Variant, seed: int, home: Path, *, members: int = MEMBERS, trials: int = TRIALS) -> Outcome:
    """Run one study."""
    target = np.random.default_rng([seed, 0]).normal(size=DIMENSION)
    looked_at = 0

    def excess(theta: Array) -> float:
        return float(0.5 * (SPECTRUM * (theta - target) ** 2).sum())

    def losses(theta: Array, rng: np.random.Generator, examples: int) -> tuple[Array, Array, Array]:
        x = np.sqrt(SPECTRUM) * rng.normal(size=(examples, DIMENSION))
        error = x @ (theta - target) - LABEL_NOISE * rng.normal(size=examples)
        return 0.5 * error**2, x, error

    def train(trial: phyla.Trial) -> None:
        theta = np.load(trial.parent.path / "theta.npy") if trial.parent else np.zeros(DIMENSION)
        rng = np.random.default_rng(trial.seed)
        for _ in trial.steps():
            loss, x, error = losses(theta, rng, BATCH)
            theta = theta - trial.params["lr"] * (error @ x) / BATCH
            trial.report(train_loss=loss.mean() if np.isfinite(loss).all() else math.inf)
        np.save(trial.checkpoint_dir / "theta.npy", theta)
        trial.report(excess=excess(theta))

    def held_out(evaluation: phyla.Evaluation) -> None:
        nonlocal looked_at
        looked_at += HELD_OUT
        own = [evaluation.checkpoint.trial or 0] if variant.fitness == "fresh" else []
        rng = np.random.default_rng([seed, 1, evaluation.seed, *own])
        evaluation.record(loss=losses(evaluation.loaded, rng, HELD_OUT)[0])

    from_suite = variant.fitness in ("fresh", "same")
    metric = {"last": "train_loss", "mean": "train_loss", "none": "train_loss"}.get(variant.fitness, "excess")
    rules: dict[str, Any] = {"mean": phyla.strategies.MeanOfLast(5)}
    fitness = (
        phyla.FromSuite("held-out", "loss_mean", remeasure=variant.remeasure)
        if from_suite
        else rules.get(variant.fitness, phyla.strategies.Last())
    )
    selects = variant.fitness != "none"
    study = phyla.Study(
        name="selection",
        space=phyla.Space(lr=phyla.Float(1e-3, 0.5, log=True)),
        objective=phyla.Minimize("loss_mean" if from_suite else metric),
        strategy=phyla.PBT(
            population_size=members,
            steps_per_trial=STEPS_PER_TRIAL,
            total_steps=STEPS_PER_TRIAL * trials,
            exploit=phyla.Truncation(0.25) if selects else None,
            explore=phyla.Perturb(factors=(0.6, 1.6)) if selects else None,
            fitness=fitness,
        ),
        train=train,
        seed=seed,
        home=home,
        storage="memory://",
        suites=[_suite(held_out)] if from_suite else [],
    )
    results = study.run()
    best = results.best
    assert best is not None
    folder = Path(str(results.places.checkpoints("selection")))
    heads = [member.head for member in results.members()]
    last = [excess(np.load(folder / head.checkpoint / "theta.npy")) for head in heads if head is not None]
    return Outcome(
        best=math.log10(excess(np.load(best.checkpoint.path / "theta.npy"))),
        members=float(np.log10(last).mean()),
        steps=sum(member.progress for member in results.members()),
        evaluated=looked_at,
    )


def _suite(held_out: Any) -> phyla.Suite:
    def load(checkpoint: Any) -> Array:
        return np.asarray(np.load(checkpoint.path / "theta.npy"))

    return phyla.Suite(
        "held-out", (phyla.EvalTask(name="held-out", evaluate=held_out, samples=HELD_OUT),), load=load
    )


def _job(job: tuple[Variant, int, Path]) -> Outcome:
    variant, seed, where = job
    with tempfile.TemporaryDirectory(dir=where) as home:
        return run(variant, seed, Path(home))


def compared(values: Array, baseline: Array) -> dict[str, float]:
    """Compare a variant with the baseline seed by seed; lower is better."""
    difference = values - baseline
    return {
        "difference": float(difference.mean()),
        "won": int((difference < 0).sum()),
        "wilcoxon_p": float(wilcoxon(values, baseline).pvalue),
        "t_p": float(ttest_rel(values, baseline).pvalue),
    }


def main() -> None:
    """Print the tables and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--tuning", action="store_true", help="use the seeds for settling the set-up instead")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--where", type=Path, default=None, help="a folder for temporary files; in memory is fastest"
    )
    parser.add_argument("--out", type=Path, default=Path("bench/results/from_suite.json"))
    options = parser.parse_args()
    seeds = [index + (TUNING_SEED if options.tuning else 0) for index in range(options.seeds)]
    jobs = [(variant, seed, options.where) for variant in VARIANTS for seed in seeds]
    started = time.perf_counter()
    with multiprocessing.Pool(options.processes) as pool:
        outcomes = iter(pool.map(_job, jobs, chunksize=1))
    found = {variant.name: [next(outcomes) for _ in seeds] for variant in VARIANTS}
    steps = {outcome.steps for each in found.values() for outcome in each}
    assert len(steps) == 1, steps
    wall_s = time.perf_counter() - started
    table: dict[str, dict[str, Any]] = {}
    further: dict[str, dict[str, Any]] = {}
    for what in ("best", "members"):
        values = {name: np.array([getattr(one, what) for one in each]) for name, each in found.items()}
        rows: dict[str, Any] = {
            name: {"mean": float(mine.mean()), "sd": float(mine.std(ddof=1))} for name, mine in values.items()
        }
        others = [name for name in values if name != BASELINE]
        for name in others:
            rows[name] |= compared(values[name], values[BASELINE])
        for name, p in zip(others, holm([rows[name]["wilcoxon_p"] for name in others]), strict=True):
            rows[name]["wilcoxon_p_holm"] = p
        table[what] = rows
        _print(what, rows, {name: int(np.mean([one.evaluated for one in each])) for name, each in found.items()})
        further[what] = {f"{one} against {other}": compared(values[one], values[other]) for one, other in FURTHER}
        for pair, row in further[what].items():
            print(f"{pair:<74}{row['difference']:>+8.3f}{row['won']:>5}{row['wilcoxon_p']:>10.1e}")
    print(f"\n{len(seeds)} seeds from {seeds[0]}, {steps.pop()} training steps in each study, {wall_s:.0f} s")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    values_by_seed = {name: [vars(one) for one in each] for name, each in found.items()}
    options.out.write_text(
        json.dumps(
            {
                "machine": facts(options.where),
                "seeds": seeds,
                "wall_s": wall_s,
                "table": table,
                "further": further,
                "runs": values_by_seed,
            },
            indent=2,
        )
    )


def _print(what: str, rows: dict[str, Any], evaluated: dict[str, int]) -> None:
    of = {"best": "the best checkpoint", "members": "the members' last checkpoints, mean"}[what]
    print(f"\nlog10 of the exact excess risk of {of}; lower is better\n")
    print(
        f"{'':<37}{'mean':>8}{'sd':>7}{'difference':>12}{'won':>5}"
        f"{'p':>10}{'p (Holm)':>10}{'p (t)':>10}{'examples':>10}"
    )
    for name, row in rows.items():
        line = f"{name:<37}{row['mean']:>8.3f}{row['sd']:>7.3f}"
        if "difference" in row:
            line += f"{row['difference']:>+12.3f}{row['won']:>5}{row['wilcoxon_p']:>10.1e}"
            line += f"{row['wilcoxon_p_holm']:>10.1e}{row['t_p']:>10.1e}"
        else:
            line += " " * 47
        print(f"{line}{evaluated[name]:>10}")


if __name__ == "__main__":
    main()
