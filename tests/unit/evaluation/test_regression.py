"""Whether a checkpoint is worse than another: published numbers, and what samples without variance say."""

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from phyla.evaluation import Estimate, Metric, Moments, Perplexity, TaskResult
from phyla.evaluation.recorder import Recorder
from phyla.evaluation.regression import Comparison, compare
from phyla.significance import holm

A = [10, 12, 9, 11, 10, 13, 12, 11, 10, 12]


def result(samples: Sequence[float] | Metric, name: str = "t") -> TaskResult:
    metric = Moments.of(samples) if isinstance(samples, Sequence) else samples
    return TaskResult(task=name, metrics={"x": metric})


def seeded(samples: Mapping[int, float | Sequence[float]], name: str = "t") -> TaskResult:
    recorder = Recorder()
    for seed, value in samples.items():
        recorder.record({"x": value}, seed=seed)
    return TaskResult(task=name, metrics=recorder.statistics())


def compared(current: TaskResult, reference: TaskResult, *, higher_is_better: bool = True) -> Comparison:
    (comparison,) = compare([current], [reference], metric="x", higher_is_better=higher_is_better)
    return comparison


def p_of(current: TaskResult, reference: TaskResult, *, higher_is_better: bool = True) -> float:
    return compared(current, reference, higher_is_better=higher_is_better).p


@pytest.mark.parametrize(
    ("other", "two_sided"),
    [
        ([value + 2 for value in A], 0.00211),
        ([11, 10, 13, 9, 12, 14, 11, 10, 12, 13], 0.443),
        ([11, 30, -5, 22, 9, 40, 13, 2, 25, 18], 0.227),
    ],
)
def test_welch_gives_the_published_numbers(other: list[int], two_sided: float) -> None:
    # All are above A, so A is the worse one where higher is better.
    worse, better = p_of(result(A), result(other)), p_of(result(other), result(A))
    assert 2 * worse == pytest.approx(two_sided, abs=5 * 10 ** -(5 if two_sided < 0.01 else 4))
    assert worse + better == pytest.approx(1)
    assert p_of(result(other), result(A), higher_is_better=False) == pytest.approx(worse)


SAMPLES = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


@given(SAMPLES, SAMPLES, st.booleans())
def test_welch_is_that_of_scipy(current: list[float], reference: list[float], higher_is_better: bool) -> None:
    assume(np.std(current) > 1e-6)
    assume(np.std(reference) > 1e-6)
    expected = stats.ttest_ind_from_stats(
        np.mean(current), np.std(current, ddof=1), len(current),
        np.mean(reference), np.std(reference, ddof=1), len(reference),
        equal_var=False, alternative="less" if higher_is_better else "greater",
    ).pvalue  # fmt: skip
    p = p_of(result(current), result(reference), higher_is_better=higher_is_better)
    assert p == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=2, max_size=12), st.booleans())
def test_the_paired_test_is_that_of_scipy(pairs: list[tuple[float, float]], higher_is_better: bool) -> None:
    current, reference = [a for a, _ in pairs], [b for _, b in pairs]
    assume(np.std(np.subtract(current, reference)) > 1e-6)
    expected = stats.ttest_rel(current, reference, alternative="less" if higher_is_better else "greater").pvalue
    found = compared(
        seeded(dict(enumerate(current))), seeded(dict(enumerate(reference))), higher_is_better=higher_is_better
    )
    assert found.test == "paired"
    assert found.p == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_pairing_finds_what_welch_cannot() -> None:
    reference = {seed: 100.0 * seed for seed in range(6)}
    current = {seed: value - 1 - 0.1 * (seed % 2) for seed, value in reference.items()}
    assert compared(seeded(current), seeded(reference)).regressed
    unpaired = compared(result(list(current.values())), result(list(reference.values())))
    assert unpaired.test == "welch"
    assert not unpaired.regressed


def test_only_common_seeds_are_paired() -> None:
    current = seeded({1: [1, 3], 2: 5, 7: 1000})
    found = compared(current, seeded({2: 6, 1: 4, 8: -1000}))
    assert found.test == "paired"
    assert (found.current, found.reference) == (3.5, 5.0)
    assert found.p == pytest.approx(stats.ttest_rel([2, 5], [4, 6], alternative="less").pvalue)
    assert compared(current, seeded({1: 4, 3: 5})).test == "welch"
    assert compared(current, result([4, 5])).test == "welch"


@pytest.mark.parametrize(
    ("current", "reference", "p"),
    [
        ([5, 5], [5, 5], 1),
        ([5, 5], [6, 6], 0),
        ([6, 6], [5, 5], 1),
        ([0, 0], [0, 0], 1),
        ([0.3] * 3, [0.1 + 0.2] * 3, 1),
    ],
)
def test_samples_that_do_not_vary_decide_for_themselves(current: Any, reference: Any, p: float) -> None:
    for make in (result, lambda values: seeded(dict(enumerate(values)))):
        found = compared(make(current), make(reference))
        assert found.p == found.p_adjusted == p
        assert found.regressed == (p == 0)


def test_differences_that_are_all_the_same_decide_for_themselves() -> None:
    first, second = seeded({1: 0.1, 2: 5.0, 3: 7.7}), seeded({1: 0.2, 2: 5.1, 3: 7.8})
    assert p_of(first, second) == 0
    assert p_of(second, first) == 1
    assert p_of(first, second, higher_is_better=False) == 1


def test_holm_gives_the_published_numbers() -> None:
    # The worked example of most textbooks: of 4 tests at 0.05 the ones with 0.005 and 0.01 are rejected.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # R: p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm")
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert holm([0.6, 0.9]) == [1, 1]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_keeps_the_order_and_lies_between_nothing_and_bonferroni(p: list[float]) -> None:
    adjusted = holm(p)
    assert all(a <= b <= min(1, len(p) * a) or math.isclose(a, b) for a, b in zip(p, adjusted, strict=True))
    assert sorted(adjusted) == [adjusted[i] for i in sorted(range(len(p)), key=lambda i: p[i])]


def test_many_tasks_are_looked_at_together() -> None:
    reference = [result(A, f"t{i}") for i in range(5)]
    lower = [value - 1.2 for value in A]
    one, *_ = compare([result(lower, "t0")], reference[:1], metric="x", higher_is_better=True)
    assert one.regressed
    assert one.p == one.p_adjusted
    current = [result(lower, "t0"), *reference[1:]]
    many = compare(current, reference, metric="x", higher_is_better=True)
    assert many[0].p == one.p
    assert many[0].p_adjusted == pytest.approx(5 * one.p)
    assert not many[0].regressed
    # What could not be tested does not count.
    untested = [result([1], f"t{i}") for i in range(1, 5)]
    assert compare([current[0], *untested], reference, metric="x", higher_is_better=True)[0] == one


@pytest.mark.parametrize(
    ("current", "reference"),
    [
        (result([1.0]), result(A)),
        (result(A), result([1.0])),
        (result(Moments(n=9, mean=1.0, m2=None)), result(A)),
        (result(Perplexity.of([1.0])), result(Perplexity.of([2.0]))),
        (result([]), result(A)),
        (result(A), result([])),
        (result(A), result([1.0, math.inf])),
        (result(A), TaskResult(task="t")),
        (result([1.7e308, -1.7e308]), result(A)),
    ],
)
def test_what_cannot_be_tested_is_left_out(current: TaskResult, reference: TaskResult) -> None:
    assert compare([current], [reference], metric="x", higher_is_better=True) == ()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_any_more_is_a_regression(bad: float) -> None:
    found = compared(result([1.0, bad]), result(A))
    assert (found.test, found.p, found.regressed) == ("finite", 0, True)


def test_tasks_of_one_side_only_are_left_out() -> None:
    current, reference = [result(A, "new"), result(A, "both")], [result(A, "both"), result(A, "gone")]
    (both,) = compare(current, reference, metric="x", higher_is_better=True)
    assert both.task == "both"
    assert both.p == pytest.approx(0.5)
    assert compare([], [], metric="x", higher_is_better=True) == ()


class Answers:
    """A metric of a user that knows its standard error."""

    def __init__(self, values: Sequence[float]) -> None:
        self.summary = Moments.of(values).summary
        self.count = len(values)


def test_other_metrics_with_a_standard_error_are_compared_too() -> None:
    hits, misses = [1] * 45 + [0] * 5, [1] * 30 + [0] * 20
    by_moments = p_of(result(misses), result(hits))
    assert by_moments < 0.001
    own: Any = Answers
    assert p_of(result(own(misses)), result(own(hits))) == pytest.approx(by_moments)
    assert result(hits).estimate("x") == Estimate(0.9, Moments.of(hits).stderr)


def test_importing_it_does_not_import_scipy() -> None:
    code = "import sys, phyla.evaluation.regression; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "scipy" not in done.stdout.split()
