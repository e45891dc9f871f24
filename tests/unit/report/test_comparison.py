"""Comparisons of studies and their replicates: values, tests, figures and the page."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from compared import replicates_of, study_of
from drawn import answer, bands, points, rows, traces
from facts import check_facts, raises
from page_text import PageText
from phyla.errors import UsageError
from phyla.formatting import time_words
from phyla.records import (
    Aim,
    Constrained,
    Maximize,
    Minimize,
    Objective,
    Pareto,
    Phase,
    StudyState,
    TimeSpent,
)
from phyla.report import (
    ComparedStudy,
    StudyComparison,
    compare_studies,
)
from phyla.report.figures.comparison import curves_figure, differences_figure
from phyla.significance import difference_interval
from report_study import simulated

pytestmark = pytest.mark.xdist_group("figures")  # Plotly and SciPy are imported in one process

HOSTILE = "<script>alert('x')</script> \"quoted\" & </script>"
A = [0.5, 0.7, 0.9, 0.6, 0.8]
B = [0.4, 0.5, 0.6, 0.45, 0.55]
LARGEST = sys.float_info.max


def compared(**finals: list[float | None]) -> StudyComparison:
    return compare_studies([one for name, its in finals.items() for one in replicates_of(name, its)])


def numbers(*values: float) -> list[float | None]:
    return [*values]


@pytest.fixture(scope="module")
def several() -> StudyComparison:
    """Two strategies of three replicates on simulated studies, and one study by itself."""
    studies = [
        ComparedStudy(
            data=simulated(name=f"{group}-r{index}", seed=index, members=size, generations=8),
            group=group,
            replicate=index,
        )
        for group, size in (("large", 8), ("small", 4))
        for index in range(3)
    ]
    alone = simulated(name="alone", seed=99, members=4, generations=8)
    return compare_studies([*studies, ComparedStudy(data=alone, group="alone")])


def test_final_values_are_summarised_per_group() -> None:
    comparison = compared(a=numbers(*A), b=numbers(*B))
    first, second = comparison.groups
    assert (first.name, first.final.values) == ("a", tuple(A))
    assert first.final.median == 0.7
    assert (second.final.low, second.final.high) == tuple(np.quantile(B, [0.25, 0.75]))
    assert second.final.mean == pytest.approx(np.mean(B))


def test_groups_whose_seeds_match_are_compared_in_pairs() -> None:
    (test,) = compared(a=numbers(*A), b=numbers(*B)).tests
    assert (test.paired, test.test, test.count) == (True, "Wilcoxon signed-rank", (5, 5))
    assert test.p == pytest.approx(stats.wilcoxon(A, B, method="exact").pvalue) == 0.0625
    assert (test.p_holm, test.smallest) == (test.p, 0.0625)
    assert test.difference == pytest.approx(0.2)


def test_a_group_with_fewer_replicates_is_paired_with_those_of_its_seeds() -> None:
    (test,) = compared(a=numbers(*A), b=numbers(*B[:3])).tests
    assert (test.paired, test.count, test.p) == (True, (3, 3), 0.25)


def test_groups_with_other_seeds_are_compared_as_a_whole() -> None:
    for first_seed in (3, 100):
        other = replicates_of("b", B, first_seed=first_seed)
        (test,) = compare_studies([*replicates_of("a", A), *other]).tests
        assert (test.paired, test.test, test.count) == (False, "Mann-Whitney", (5, 5))
        assert test.smallest == 2 / 252
        # Ties make scipy's own exact method inexact; over all splits it is exact.
        exact = stats.permutation_test(
            (A, B), lambda a, b: stats.rankdata([*a, *b])[: len(a)].sum(), n_resamples=1000, alternative="greater"
        )
        assert test.p == pytest.approx(2 * exact.pvalue)


def test_many_tests_are_adjusted_together() -> None:
    comparison = compared(a=numbers(*A), b=numbers(*B), c=[0.1, 0.2, 0.3, 0.15, 0.25])
    assert [(test.first, test.second) for test in comparison.tests] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [test.p for test in comparison.tests] == [0.0625] * 3
    assert [test.p_holm for test in comparison.tests] == [0.1875] * 3


def test_the_smallest_p_is_of_pairs_that_differ() -> None:
    equal = compared(a=numbers(1, 2, 3, 4, 5, 6, 7), b=numbers(0, 1, 2, 4, 5, 6, 7))
    (test,) = equal.tests
    assert (test.count, test.p, test.smallest) == ((7, 7), 0.25, 0.25)


@pytest.mark.parametrize(
    ("finals", "middle"),
    [([LARGEST, LARGEST], LARGEST), ([LARGEST, -LARGEST], 0.0), ([-LARGEST, 1.0, LARGEST], 1.0)],
)
def test_values_as_large_as_floats_are_have_medians(finals: list[float | None], middle: float) -> None:
    comparison = compared(a=finals, b=finals)
    assert [group.final.median for group in comparison.groups] == [middle, middle]
    assert [test.difference for test in comparison.tests] == [0]


def test_one_replicate_has_no_p() -> None:
    (test,) = compared(a=[0.5], b=[0.4]).tests
    assert (test.p, test.p_holm) == (None, None)
    assert test.difference == pytest.approx(0.1)


def test_the_target_is_the_worst_median_or_what_was_asked_for() -> None:
    comparison = compared(a=numbers(*A), b=numbers(*B))
    assert comparison.target == 0.5
    assert [comparison.reached(group) for group in comparison.groups] == [(5, 10.0), (3, 10.0)]
    high = compare_studies([*replicates_of("a", A), *replicates_of("b", B)], target=0.75)
    assert [high.reached(group) for group in high.groups] == [(2, None), (0, None)]
    down = [
        replace(one, data=replace(one.data, aim=Aim.of(Minimize("score"))))
        for one in (*replicates_of("a", A), *replicates_of("b", B))
    ]
    assert compare_studies(down).target == 0.7


@pytest.mark.parametrize("maximize", [True, False])
@given(st.lists(st.lists(st.floats(0.1, 1.0), min_size=1, max_size=6), min_size=1, max_size=3))
def test_more_than_half_of_each_group_reach_the_target(maximize: bool, groups: list[list[float]]) -> None:
    studies = [
        replace(one, data=replace(one.data, aim=Aim.of((Maximize if maximize else Minimize)("score"))))
        for index, finals in enumerate([*groups, [0.5]])
        for one in replicates_of(f"g{index}", finals)
    ]
    comparison = compare_studies(studies)
    for group in comparison.groups:
        count, work = comparison.reached(group)
        assert 2 * count > len(group.studies)
        assert work == 10.0


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6), st.integers(0, 9))
def test_the_first_time_is_the_median_over_all_replicates(histories: list[tuple[int, int]], target: int) -> None:
    studies = [
        ComparedStudy(
            data=study_of([(0, steps, 1.0, float(value)), (0, 1, 2.0, 9.0)], name=f"a-r{i}", seed=i),
            group="a",
            replicate=i,
        )
        for i, (steps, value) in enumerate([*histories, (1, 0)])
    ]
    comparison = compare_studies(studies, target=float(target))
    expected = np.median([steps if value >= target else steps + 1 for steps, value in [*histories, (1, 0)]])
    assert comparison.reached(comparison.groups[0]) == (len(studies), expected)


def test_different_objectives_are_refused_with_names() -> None:
    other = ComparedStudy(data=study_of([(0, 1, 1.0, 0.5)], name="odd", metric="loss"), group="odd")
    with raises(UsageError, "a-r0, a-r1: maximize score", "odd: maximize loss"):
        compare_studies([*replicates_of("a", A[:2]), other])
    down = ComparedStudy(data=study_of([(0, 1, 1.0, 0.5)], name="down", maximize=False), group="down")
    with raises(UsageError, "a-r0: maximize score", "down: minimize score"):
        compare_studies([*replicates_of("a", A[:1]), down])


BEST = Maximize("score")
FRONT = Pareto(BEST, Minimize("size"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (BEST, Constrained(BEST, "size <= 6")),
        (FRONT, Constrained(FRONT, "size <= 6")),
        (Constrained(BEST, "size <= 6"), Constrained(BEST, "size <= 7")),
        (Constrained(BEST, "size <= 6"), Constrained(BEST, ["size <= 6", "ms <= 6"])),
        (BEST, FRONT),
        (FRONT, Pareto(BEST, Minimize("ms"))),
    ],
)
def test_objectives_that_differ_in_constraints_or_goals_are_refused(first: Objective, second: Objective) -> None:
    with raises(UsageError, f"one: {first.description}", f"two: {second.description}"):
        compare_studies([aimed("one", first), aimed("two", second)])


def test_the_order_of_constraints_makes_no_other_objective() -> None:
    first = Constrained(BEST, ["size <= 6", "ms <= 7"])
    second = Constrained(BEST, ["ms<=7.0", "size <= 6"])
    assert len(compare_studies([aimed("one", first), aimed("two", second)]).groups) == 2


def aimed(name: str, objective: Objective) -> ComparedStudy:
    """A study with an objective."""
    data = replace(study_of([(0, 1, 1.0, 0.5)], name=name), aim=Aim.of(objective))
    return ComparedStudy(data=data, group=name)


def test_expected_scores_are_compared_where_every_study_has_one() -> None:
    noisy = [
        replace(study, data=replace(study.data, expected=value - 0.1))
        for study, value in zip(replicates_of("a", A), A, strict=True)
    ]
    others = replicates_of("b", B)
    comparison = compare_studies([*noisy, *(replace(one, data=replace(one.data, expected=0.2)) for one in others)])
    assert comparison.expected
    assert [group.final.values for group in comparison.groups] == [tuple(value - 0.1 for value in A), (0.2,) * 5]
    assert [row["final"] for row in comparison.rows()][-5:] == [0.2] * 5
    assert comparison.tests[0].difference == pytest.approx(0.4)
    assert comparison.target == 0.5  # which scores reach, not expected ones
    assert comparison.notes == ()
    assert ">expected score" in comparison.table_of_groups()[0]

    mixed = compare_studies([*noisy, *others])
    assert not mixed.expected
    assert [group.final.values for group in mixed.groups] == [tuple(A), tuple(B)]
    check_facts(mixed.notes[0], "5 of 10 studies", "phyla final STUDY --file FILE")
    assert ">final score" in mixed.table_of_groups()[0]


def test_a_note_names_how_many_studies_are_too_small_to_tell_if_their_scores_are_lucky() -> None:
    small = [replace(one, data=replace(one.data, unclear=True)) for one in replicates_of("a", A)]
    comparison = compare_studies([*small, *replicates_of("b", B)])
    check_facts(*comparison.notes, "5 of 10 studies", "phyla final STUDY --file FILE")
    assert not comparison.expected


def test_a_study_without_a_finite_fitness_is_named_and_excluded() -> None:
    comparison = compared(a=numbers(*A[:2]), b=[None, 0.4], c=[float("nan"), None])
    assert [(group.name, len(group.studies)) for group in comparison.groups] == [("a", 2), ("b", 1)]
    assert [note.split()[0] for note in comparison.notes] == ["b-r0", "c-r0", "c-r1"]
    with raises(UsageError, "a-r0, a-r1", "finite fitness"):
        compared(a=[None, float("inf")])
    with raises(UsageError, "a-r0", "phyla report STUDY"):
        compared(a=[0.5])
    with raises(UsageError, "at least two studies", "none"):
        compare_studies([])


def test_a_study_that_has_not_ended_is_named() -> None:
    running = study_of([(0, 1, 1.0, 0.5)], name="going", state=StudyState.RUNNING)
    (note,) = compare_studies([*replicates_of("a", A[:2]), ComparedStudy(data=running, group="going")]).notes
    check_facts(note, "going is running")


def test_it_can_be_written_as_strict_json(several: StudyComparison) -> None:
    found = json.loads(json.dumps(several.to_json(), allow_nan=False))
    assert [group["group"] for group in found["groups"]] == ["large", "small", "alone"]
    assert [row["seed"] for row in found["groups"][1]["studies"]] == [0, 1, 2]
    assert found["groups"][0]["final"]["n"] == 3
    assert [test["n"] for test in found["tests"]] == [[3, 3], [3, 1], [3, 1]]
    lengths = {key: len(values) for key, values in found["groups"][0]["curve"].items()}
    assert len(set(lengths.values())) == 1


# Where the time went


def test_the_time_spent_is_told_in_shares() -> None:
    spent = TimeSpent(seconds={Phase.TRAINING: 5.0, Phase.LOADING: 3.0, Phase.EVALUATING: 4.0, Phase.SAVING: 0.0})
    assert spent.total_s == 12.0
    assert time_words(spent) == "training 42 %, evaluating 33 %, loading 25 % of 12 s"


def test_studies_made_before_tell_nothing_of_time(several: StudyComparison) -> None:
    spent = several.groups[0].time
    assert (spent.timed, spent.total_s, time_words(spent)) == (0, 0.0, "not known")


# Figures and page


def test_a_line_and_a_band_per_group(several: StudyComparison) -> None:
    figure = curves_figure(several)
    names = [line.name for line in traces(figure, "replicate")]
    assert names == ["large (3 replicates)", "small (3 replicates)", "alone (1 replicate)"]
    band, areas = several.groups[0].band, bands(figure)
    assert [*points(figure, names[0]).values()] == pytest.approx(band.middle, rel=1e-5)
    assert len(areas) == 2
    assert max(areas[0].y) == pytest.approx(max(band.high), rel=1e-5)
    check_facts(answer(figure), *(f"{group.name} {group.final.median:.4f}" for group in several.groups))


def test_differences_have_intervals_and_the_seeds_that_they_need() -> None:
    comparison = compared(a=numbers(*A), b=numbers(*B), c=numbers(0.1, 0.2, 0.15, 0.12, 0.18))
    figure = differences_figure(comparison)
    (first, *_) = comparison.tests
    check_facts(rows(figure.layout.yaxis)[0], "a", "b", f"{first.needed} seeds")
    drawn = {
        y: (x, wide)
        for trace in figure.data
        for x, y, wide in zip(trace.x, trace.y, trace.error_x.array, strict=True)
    }
    ours, theirs = np.array(A), np.array(B)
    low, high = stats.ttest_rel(ours, theirs).confidence_interval()
    assert drawn[0] == pytest.approx(((ours - theirs).mean(), (high - low) / 2), rel=1e-4)
    assert first.interval == pytest.approx((low, high))
    check_facts(answer(figure), "of 3 differences")


def test_intervals_of_groups_that_share_no_seeds_are_welchs() -> None:
    first, second = A, [0.2, 0.3, 0.9]
    low, high = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    assert difference_interval(first, second, paired=False) == pytest.approx((low, high))
    assert difference_interval([1.0, 1.0], [0.5, 0.5], paired=False) == (0.5, 0.5)


def test_the_page_needs_nothing_else(several: StudyComparison, tmp_path: Path) -> None:
    path = several.write_report(tmp_path / "new" / "comparison.html")
    text = path.read_text(encoding="utf-8")
    assert text.count('id="plotly"') == 1
    assert text.count('<script type="application/json">') == 2
    words = " ".join(PageText(text).text.split())
    assert [fact for fact in ("large and small and alone", "signed-rank", "3 pairs") if fact not in words] == []
    assert words.count("completed") == 7
    assert "src=" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


def test_what_users_wrote_is_shown_as_they_wrote_it(tmp_path: Path) -> None:
    studies = [
        ComparedStudy(
            data=study_of(
                [(0, 1, float(place), place / 7 % 1) for place in range(1, 30)],
                name=HOSTILE + str(number),
                metric=HOSTILE,
                state=StudyState.STOPPED,
                params=[{HOSTILE: place / 3 % 1} for place in range(1, 30)],
            ),
            group=HOSTILE + str(number),
        )
        for number in range(2)
    ]
    text = compare_studies(studies).write_report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    page = PageText(text)
    assert page.tags.count("script") == 2 + 1
    assert page.text.count("<script>alert('x')</script>") > 8


@pytest.mark.parametrize("finals", [[0.5, 0.5], [0.5, None, 0.7]])
def test_replicates_of_one_study_have_a_page(finals: list[float | None], tmp_path: Path) -> None:
    comparison = compared(a=finals)
    assert comparison.tests == []
    text = PageText(comparison.write_report(tmp_path / "page.html").read_text(encoding="utf-8")).text
    assert "p adjusted" not in text
    check_facts(text, "phyla run FILE --replicates 6")


def test_a_difference_that_is_not_significant_needs_more_seeds() -> None:
    comparison = compared(a=numbers(*A), b=numbers(*B))
    (test,) = comparison.tests
    # Differences of 0.1, 0.2, 0.3, 0.15, 0.25: more than two standard deviations, but five pairs never suffice.
    assert (test.p_holm, test.needed, test.row()[">seeds needed"]) == (0.0625, 6, "6")
    assert comparison.to_json()["tests"][0]["seeds_needed"] == 6
    few = compared(a=[0.1, 0.5, 0.9], b=[0.2, 0.1, 0.95])
    more_tests = compared(a=[0.1, 0.5, 0.9], b=[0.2, 0.1, 0.95], c=[0.2, 0.3, 0.4])
    assert (more_tests.tests[0].needed or 0) > (few.tests[0].needed or 0) > 6


@pytest.mark.parametrize(
    ("a", "b", "needed"),
    [
        ([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [0.0, 0.2, 0.4, 0.1, 0.3, 0.35], "-"),
        ([1.0, 2.0], [2.0, 1.0], "no difference"),
        ([0.5], [0.4], "too few"),
    ],
)
def test_some_tests_need_no_number_of_seeds(a: list[float | None], b: list[float | None], needed: str) -> None:
    (test,) = compared(a=a, b=b).tests
    assert test.is_significant == (needed == "-")
    assert (test.needed, test.row()[">seeds needed"]) == (None, needed)


def test_tables_show_steps_trained_and_the_age_of_the_best_weights() -> None:
    # The best trial is the first of member 1: its weights are 7 steps old, while 27 steps were trained in all.
    data = study_of([(0, 10, 1.0, 0.5), (1, 7, 2.0, 0.9), (0, 10, 3.0, 0.6)], name="a")
    other = study_of([(0, 10, 1.0, 0.4)], name="b")
    comparison = compare_studies([ComparedStudy(data=data, group="a"), ComparedStudy(data=other, group="b")])
    assert [(group.steps, group.age) for group in comparison.groups] == [(27, 7), (10, 10)]
    assert [(row["steps"], row["age"]) for row in comparison.rows()] == [(27, 7), (10, 10)]
    table = comparison.table_of_groups()
    assert [(row[">steps trained"], row[">age of best"]) for row in table] == [("27", "7"), ("10", "10")]
