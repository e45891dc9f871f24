"""Checkpoints that are evaluated again: what counts as another measurement, and what the error bar is then."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phyla
from facts import check_facts
from phyla.evaluation import EvalTask, Suite
from phyla.machine import SAME_SAMPLES

AGAIN = 2
CALLS = itertools.count()


def train(trial: phyla.Trial) -> None:
    for _ in trial.steps():
        pass
    before = 0.0 if trial.source is None else float((trial.source.path / "w").read_text())
    (trial.checkpoint_dir / "w").write_text(str(before + float(trial.params["lr"])))


def drawn(evaluation: phyla.Evaluation, seed: int, n: int = 16) -> Any:
    return np.random.default_rng(seed).normal(float((evaluation.checkpoint.path / "w").read_text()), 10.0, size=n)


def fixed(evaluation: phyla.Evaluation) -> None:
    evaluation.record(r=drawn(evaluation, 0))


def fixed_and_timed(evaluation: phyla.Evaluation) -> None:
    evaluation.record(r=drawn(evaluation, 0), seconds=float(next(CALLS)))


def fixed_by_seed(evaluation: phyla.Evaluation) -> None:
    for seed in range(4):
        evaluation.record(r=drawn(evaluation, seed), seed=seed)


def fixed_means(evaluation: phyla.Evaluation) -> None:
    evaluation.record(r=float(drawn(evaluation, 0).mean()), n=16)


def of_a_few_seeds(evaluation: phyla.Evaluation) -> None:
    evaluation.record(r=drawn(evaluation, evaluation.seed % 2 if evaluation.seed else 0))


def without_spread(evaluation: phyla.Evaluation) -> None:
    evaluation.record(r=np.full(16, float((evaluation.checkpoint.path / "w").read_text())))


def seeded(evaluation: phyla.Evaluation) -> None:
    evaluation.record(r=drawn(evaluation, evaluation.seed))


def seeded_of_one_length(evaluation: phyla.Evaluation) -> None:
    evaluation.record(r=drawn(evaluation, evaluation.seed), length=np.full(16, 8.0))


def seeded_by_shard(evaluation: phyla.Evaluation) -> None:
    evaluation.record(r=drawn(evaluation, 1000 * evaluation.shard.index + evaluation.seed % 1000))


def fixed_by_shard(evaluation: phyla.Evaluation) -> None:
    evaluation.record(r=drawn(evaluation, evaluation.shard.index))


def one_shard_fixed(evaluation: phyla.Evaluation) -> None:
    seed = 1 if evaluation.shard.index else 1000 + evaluation.seed
    evaluation.record(r=drawn(evaluation, seed))


def ran(home: Path, *tasks: EvalTask) -> tuple[phyla.Results, list[dict[str, float]]]:
    """Run a study, and return it with the metrics of the trials whose checkpoints were evaluated again."""
    fitness = phyla.FromSuite("held", "r_mean", max_lag=0, remeasure=AGAIN)
    strategy = phyla.PBT(
        population_size=3, steps_per_trial=1, total_steps=3, exploit=phyla.Truncation(0.34), fitness=fitness
    )
    space = {"lr": phyla.Float(0.1, 1.0)}
    suites = [Suite("held", tasks, objective=phyla.Maximize("r_mean"))]
    study = phyla.Study(
        "s", space, phyla.Maximize("r"), strategy, train, suites=suites, home=home, storage="memory://"
    )
    results = study.run()
    found = results.evaluations()
    again = {group.trial for group in found.groups("held") if group.replicate}
    assert again
    trials: list[Any] = [trial for trial in results.trials() if trial.id in again]
    prefix = "held/r_mean"
    named = [{key: value for key, value in one.metrics.items() if key.startswith(prefix)} for one in trials]
    return results, [{key.removeprefix(prefix): value for key, value in one.items()} for one in named]


def evaluations_of(results: phyla.Results) -> list[list[dict[str, Any]]]:
    """Return value and standard error of every evaluation of each checkpoint that was evaluated again."""
    found: dict[int, list[dict[str, Any]]] = {}
    for group in results.evaluations().groups("held"):
        estimate: Any = group.values["r_mean"]
        found.setdefault(group.seen, []).append(estimate)
    return [its for its in found.values() if len(its) > 1]


def said(results: phyla.Results) -> list[str]:
    return [one.text for one in results.findings() if one.kind == "samples"]


@pytest.mark.parametrize(
    "evaluate", [fixed, fixed_and_timed, fixed_by_seed, fixed_means, without_spread], ids=lambda one: one.__name__
)
def test_a_repetition_with_the_same_results_is_no_measurement(
    evaluate: Callable[[phyla.Evaluation], None], tmp_path: Path
) -> None:
    results, measured = ran(tmp_path, EvalTask("play", evaluate))
    once = [its[0] for its in evaluations_of(results)]
    assert {one["/measurements"] for one in measured} == {1}
    assert [one[""] for one in measured] == [one["value"] for one in once]
    assert [one.get("/stderr") for one in measured] == [one["stderr"] for one in once]
    (text,) = said(results)
    check_facts(text, "held")
    assert "evaluation.seed" in text
    assert [event.kind for event in results.evaluations().events()] == [SAME_SAMPLES]
    # Nobody waits for measurements that never come.
    assert results.state == "completed"
    assert max(len(its) for its in evaluations_of(results)) == 1 + AGAIN


def test_shards_that_repeat_are_no_measurement(tmp_path: Path) -> None:
    results, measured = ran(tmp_path, EvalTask("play", fixed_by_shard, shards=3))
    assert {one["/measurements"] for one in measured} == {1}
    assert len(said(results)) == 1


@pytest.mark.parametrize(
    ("evaluate", "shards"),
    [(seeded, 1), (seeded_of_one_length, 1), (seeded_by_shard, 2)],
    ids=["plain", "constant beside it", "shards"],
)
def test_independent_repetitions_are_pooled(
    evaluate: Callable[[phyla.Evaluation], None], shards: int, tmp_path: Path
) -> None:
    results, measured = ran(tmp_path, EvalTask("play", evaluate, shards=shards))
    assert said(results) == []
    for one, its in zip(measured, evaluations_of(results), strict=True):
        assert one["/measurements"] == 1 + AGAIN
        assert one[""] == pytest.approx(math.fsum(each["value"] for each in its) / len(its))
        squares = math.fsum(each["stderr"] ** 2 for each in its)
        assert one["/stderr"] == pytest.approx(math.sqrt(squares) / len(its))


@pytest.mark.parametrize(
    ("tasks", "named"),
    [
        ((EvalTask("still", fixed), EvalTask("moving", seeded)), "eval task 'still' of suite"),
        ((EvalTask("half", one_shard_fixed, shards=2),), "eval task 'half' of suite"),
    ],
    ids=["task", "shard"],
)
def test_where_a_part_repeats_the_error_bar_does_not_shrink(
    tasks: tuple[EvalTask, ...], named: str, tmp_path: Path
) -> None:
    results, measured = ran(tmp_path, *tasks)
    for one, its in zip(measured, evaluations_of(results), strict=True):
        assert one["/measurements"] == 1 + AGAIN
        assert one["/stderr"] == pytest.approx(math.fsum(each["stderr"] for each in its) / len(its))
    (text,) = said(results)
    assert text.startswith(named)
    assert "'moving'" not in text


def test_only_what_repeats_an_earlier_one_is_left_out(tmp_path: Path) -> None:
    results, measured = ran(tmp_path, EvalTask("play", of_a_few_seeds))
    for one, its in zip(measured, evaluations_of(results), strict=True):
        different = {each["value"] for each in its}
        assert one["/measurements"] == len(different) < 1 + AGAIN
        assert one[""] == pytest.approx(math.fsum(different) / len(different))
