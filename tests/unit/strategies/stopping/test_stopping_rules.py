"""Stopping rules, without a study: what they are shown, and what they say."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import phyla
from facts import raises
from phyla import plugins
from phyla.errors import ConfigurationError
from phyla.records import (
    Goal,
    JobState,
    JsonObject,
    Mark,
    Maximize,
    Minimize,
    Objective,
    Pareto,
    Report,
    TrialRecord,
)
from phyla.strategies import (
    Divergence,
    MedianStopping,
    Plateau,
    Reported,
    StoppingRule,
    StopWith,
    check_rule,
    describe,
)

NAN, INF = math.nan, math.inf
SCORE = Maximize("score")


@dataclass
class Others:
    """Averages that are the same at every mark."""

    found: Sequence[float] = ()
    asked: list[Mark] = field(default_factory=list)

    def averages(self, mark: Mark) -> Sequence[float]:
        self.asked.append(mark)
        return self.found


def trial(start: int = 0, end: int = 1000) -> TrialRecord:
    return TrialRecord(
        id=7,
        study=1,
        member=3,
        generation=0,
        state=JobState.RUNNING,
        params={"opt/lr": 0.5},
        start_step=start,
        end_step=end,
        seed=1,
        created_at=0.0,
    )


def at_mark(
    best: float, step: int = 100, *, every: int = 100, objective: Objective = SCORE, start: int = 0
) -> Reported:
    mark = Mark(every=every, step=step // every * every, at=step, average=best, best=best)
    report = Report(step, {objective.name: best})
    return Reported(trial=trial(start), objective=objective, report=report, marks=(mark,), reports=(report,))


def median(*, min_steps: int = 100, min_trials: int = 3, every: int | None = None) -> MedianStopping:
    return MedianStopping(min_steps=min_steps, min_trials=min_trials, every_steps=every)


@pytest.mark.parametrize(
    ("best", "others", "stopped"),
    [
        (0.4, (0.3, 0.5, 0.6), True),
        (0.5, (0.3, 0.5, 0.6), False),  # as good as the median is not worse
        (0.6, (0.3, 0.5, 0.6), False),
        (0.4, (0.3, 0.6), False),  # too few others
        (0.44, (0.3, 0.4, 0.5, 0.6), True),  # of an even number the mean of the two in the middle
        (0.46, (0.3, 0.4, 0.5, 0.6), False),
        (0.4, (NAN, 0.5, 0.6), True),  # nan counts as the worst
        (0.4, (NAN, NAN, 0.6), False),
        (NAN, (0.3, 0.5, 0.6), True),
        (NAN, (NAN, NAN, 0.6), False),
        (-INF, (0.3, 0.5, 0.6), True),
        (NAN, (NAN, NAN, NAN, NAN), False),
    ],
)
def test_the_median_rule(best: float, others: tuple[float, ...], stopped: bool) -> None:
    for objective, sign in ((Maximize("score"), 1.0), (Minimize("score"), -1.0)):
        reported = at_mark(sign * best, objective=objective)
        reason = median().judge(reported, Others([sign * other for other in others]))
        assert (reason is not None) == stopped
        if reason is not None:
            finite = sorted(-INF if math.isnan(other) else other for other in others)
            middle = (finite[(len(finite) - 1) // 2] + finite[len(finite) // 2]) / 2
            assert reason["median"] == pytest.approx(sign * middle)
            assert (reason["rule"], reason["of"], reason["step"]) == ("median", len(others), 100)


@given(
    own=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    others=st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), min_size=3, max_size=9),
    minimize=st.booleans(),
)
def test_the_best_trial_is_never_stopped(own: list[float], others: list[list[float]], minimize: bool) -> None:
    objective: Goal = Minimize("score") if minimize else Maximize("score")
    averages = [math.fsum(values) / len(values) for values in others]
    best = max(own, key=objective.order)
    reason = median().judge(at_mark(best, objective=objective), Others(averages))
    if objective.order(best) >= max(map(objective.order, averages)):
        assert reason is None
    assert (reason is None) or sum(objective.order(a) > objective.order(best) for a in averages) >= 2


@given(
    best=st.floats(),
    others=st.lists(st.floats(), max_size=12),
    start=st.integers(0, 10_000),
    step=st.integers(0, 1_200),
    min_steps=st.integers(0, 1_200),
    min_trials=st.integers(1, 12),
)
def test_the_median_rule_never_stops_too_soon_and_is_the_same_for_the_negated_objective(
    best: float, others: list[float], start: int, step: int, min_steps: int, min_trials: int
) -> None:
    rule = MedianStopping(min_steps=min_steps, min_trials=min_trials, every_steps=10)
    reasons = []
    for objective, sign in ((Maximize("score"), 1.0), (Minimize("score"), -1.0)):
        reported = at_mark(sign * best, start + step, every=10, objective=objective, start=start)
        reasons.append(rule.judge(reported, Others([sign * other for other in others])))
    assert (reasons[0] is None) == (reasons[1] is None)
    if step < min_steps or len(others) < min_trials or start + step >= 1000:
        assert reasons == [None, None]


def test_a_median_rule_looks_only_at_its_own_marks() -> None:
    others = Others([1.0] * 5)
    assert median(every=50).judge(at_mark(0.0, every=100), others) is None
    assert others.asked == []
    assert median(every=50).judge(at_mark(0.0, every=50), others) is not None
    assert [(mark.every, mark.step) for mark in others.asked] == [(50, 100)]
    assert MedianStopping(min_steps=30).marks_every == 30
    assert MedianStopping(min_steps=0).marks_every == 1


@pytest.mark.parametrize(
    ("rule", "metrics", "stopped"),
    [
        (Divergence(), {"score": 0.1}, False),
        (Divergence(), {"score": NAN}, True),
        (Divergence(), {"score": -INF}, True),
        (Divergence(), {"loss": NAN}, False),  # another metric
        (Divergence(metric="loss"), {"loss": NAN}, True),
        (Divergence(metric="loss"), {"score": NAN}, False),
        (Divergence(metric="loss", above=100.0), {"loss": INF}, True),
        (Divergence(metric="loss", above=100.0), {"loss": 100.0}, False),
        (Divergence(metric="loss", above=100.0), {"loss": 100.5}, True),
        (Divergence(metric="loss", below=0), {"loss": -0.5}, True),
        (Divergence(metric="loss", above=2, below=1), {"loss": 1.5}, False),
    ],
)
def test_divergence(rule: Divergence, metrics: dict[str, float], stopped: bool) -> None:
    reported = Reported(trial=trial(), objective=Maximize("score"), report=Report(5, metrics))
    assert (rule.judge(reported, Others()) is not None) == stopped


def hopeless(reported: Reported) -> str | None:
    return (
        "no progress" if reported.params["opt"]["lr"] == 0.5 and reported.values("score") == [1.0, 1.0] else None
    )


def test_a_function_of_ones_own() -> None:
    rule = StopWith(hopeless, history=2)
    reports = (Report(10, {"score": 1.0}), Report(15, {"other": 2.0}), Report(20, {"score": 1.0}))
    reported = Reported(trial=trial(5), objective=Maximize("score"), report=reports[-1], reports=reports)
    assert rule.judge(reported, Others()) == {"rule": "hopeless", "step": 20, "why": "no progress"}
    assert rule.judge(Reported(trial=trial(), objective=Maximize("score"), report=reports[0]), Others()) is None
    assert reported.trained_steps == 15
    assert StopWith(bool).judge(reported, Others()) == {"rule": "bool", "step": 20}
    assert StopWith(_numpy).judge(reported, Others()) == {"rule": "_numpy", "step": 20}
    assert StopWith(_nothing).judge(reported, Others()) is None
    with raises(ConfigurationError, "StopWith(_three)", "3"):
        StopWith(_three).judge(reported, Others())


def _numpy(reported: Reported) -> Any:
    return np.mean(reported.values("score")) > 0.5


def _nothing(reported: Reported) -> Any:
    return np.mean(reported.values("score")) > 1.5


def _three(reported: Reported) -> Any:
    return 3


@pytest.mark.parametrize(
    ("strategy", "length"),
    [
        (phyla.RandomSearch(8, 20, 5), 5),
        (phyla.RandomSearch(8, 20), 20),
        (phyla.GridSearch({"x": [0.1, 0.2]}, 12), 12),
        (phyla.PBT(population_size=4, steps_per_trial=5, total_steps=20), 5),
        (phyla.InitiatorPBT(population_size=4, steps_per_trial=5, total_steps=20), 5),
        (phyla.Optuna(members=4, total_steps=20, steps_per_trial=10), 10),
        (phyla.strategies.SingleWorkerExplore(explore_steps=3, exploit_steps=3, total_steps=20), 20),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_median_rule_refuses_trials_that_it_could_never_stop(strategy: Any, length: int) -> None:
    def study(least: int) -> phyla.Study:
        rule = MedianStopping(min_steps=least)
        return phyla.Study("s", {"x": phyla.Float(0, 1)}, Maximize("m"), strategy, stopping=rule)

    for least in (length, 4 * length):
        told = f"at most {length} steps, so none would ever be stopped; give min_steps below {length}"
        with raises(
            ConfigurationError, f"MedianStopping(min_steps={least}): trials of {type(strategy).__name__}", told
        ):
            study(least)
    assert study(length - 1).name == "s"


@pytest.mark.parametrize(
    "rule", [MedianStopping(min_steps=2), Plateau(steps=50)], ids=lambda rule: type(rule).__name__
)
def test_rules_that_compare_single_numbers_refuse_a_front(rule: Any) -> None:
    goals = Maximize("a"), Minimize("b")

    def study(objective: Objective, *stopping: Any) -> phyla.Study:
        return phyla.Study(
            "s", {"x": phyla.Float(0, 1)}, objective, phyla.RandomSearch(4, 50, 5), stopping=stopping
        )

    with raises(ConfigurationError, f"stopping={type(rule).__name__}(", "with Pareto", "WeightedSum"):
        study(Pareto(*goals), Divergence(), rule)
    assert study(Pareto(*goals), Divergence()).name == "s"
    assert study(phyla.WeightedSum({"a": 1.0, "b": -1.0}), rule).name == "s"
    assert study(phyla.Constrained(goals[0], subject_to=["b <= 1"]), rule).name == "s"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MedianStopping(min_steps=-1), "MedianStopping(min_steps=-1)"),
        (lambda: MedianStopping(min_steps=1.5), "min_steps=1.5"),  # type: ignore[arg-type]
        (lambda: MedianStopping(min_steps=1, min_trials=0), "min_trials=0"),
        (lambda: MedianStopping(min_steps=1, every_steps=0), "every_steps=0"),
        (lambda: Divergence(metric=""), "metric=''"),
        (lambda: Divergence(above=NAN), "above=nan"),
        (lambda: Divergence(below="low"), "below= low"),  # type: ignore[arg-type]
        (lambda: Divergence(above=1, below=1), "beyond one of them"),
        (lambda: StopWith("later"), "StopWith( later"),  # type: ignore[arg-type]
        (lambda: StopWith(hopeless, history=0), "history=0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, message: str) -> None:
    with raises(ConfigurationError, *message.split()):
        make()


@pytest.mark.parametrize(
    "rule",
    [
        MedianStopping(min_steps=100, min_trials=7, every_steps=20),
        Divergence(metric="train/loss", above=100.0),
        StopWith(hopeless, history=5),
    ],
)
def test_rules_are_stored_and_made_again(rule: Any) -> None:
    assert plugins.decode(plugins.encode(rule), plugins.resolve) == rule


def test_reasons_in_words() -> None:
    reason = median().judge(at_mark(0.25), Others([0.5, 0.5, 0.5]))
    assert reason is not None
    assert describe(reason) == "stopped at step 100: best score 0.25 is worse than the median 0.5 of 3 trials"
    nan = Divergence().judge(at_mark(NAN), Others())
    assert nan is not None
    assert describe(nan) == "stopped at step 100: score was nan"
    high = Divergence(above=0.1).judge(at_mark(0.25), Others())
    assert high is not None
    assert describe(high) == "stopped at step 100: score was 0.25, above 0.1"
    assert describe({"rule": "mine", "step": 3, "why": "no hope"}) == "stopped at step 3: no hope (mine)"
    assert describe({"rule": "mine", "step": 3}) == "stopped at step 3: mine"
    decision: JsonObject = {"decision": "start", "replaces": 4, "stopped": nan}
    assert describe(decision) == "started fresh, in place of trial 4 (stopped at step 100: score was nan)"


def test_divergence_watches_every_metric_of_the_objective_and_bounds_the_first() -> None:
    objective = Pareto(Maximize("accuracy"), Minimize("latency"))
    for metrics, stopped in (
        ({"accuracy": 0.5, "latency": 99.0}, False),
        ({"accuracy": 7.0, "latency": 1.0}, True),
        ({"accuracy": 0.5, "latency": INF}, True),
        ({"latency": NAN}, True),
        ({"loss": NAN}, False),
    ):
        reported = Reported(trial=trial(0), objective=objective, report=Report(10, metrics))
        assert (Divergence(above=1.0).judge(reported, Others([])) is not None) == stopped, metrics


def test_a_rule_that_does_not_derive_from_the_base_is_refused_with_the_name_of_the_base() -> None:
    class Own:
        def judge(self, reported: object, others: object) -> None:
            return None

    class Derived(StoppingRule):
        def judge(self, reported: object, others: object) -> None:
            return None

    with raises(ConfigurationError, StoppingRule.__qualname__):
        check_rule(Own())
    check_rule(Derived())
