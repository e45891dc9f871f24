"""Objectives: what they make of metrics, and which ones they refuse."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import phyla
from facts import raises
from phyla import plugins
from phyla.configuration import to_config
from phyla.errors import ConfigurationError, StudyFailed
from phyla.machine import TrainRules
from phyla.records import (
    Aim,
    Constrained,
    Constraint,
    Goal,
    Judgement,
    Maximize,
    Minimize,
    Objective,
    Pareto,
    WeightedSum,
    judge_values,
)
from phyla.space import Float, Space
from phyla.strategies import PBT, BestOfLast, FromSuite, ParetoTruncation, RandomSearch, TTest

ANYTHING = st.floats(allow_nan=True, allow_infinity=True)
TWO = Pareto(Maximize("accuracy"), Minimize("latency_ms"))
SUM = WeightedSum({"accuracy": 1, "latency_ms": -0.01})
LIMITED = Constrained(Maximize("accuracy"), subject_to=["latency_ms <= 20"])
PARETO_PBT = PBT(population_size=2, steps_per_trial=1, total_steps=2, exploit=ParetoTruncation())


@pytest.mark.parametrize(
    "objective", [Maximize("a"), Minimize("a"), TWO, SUM, LIMITED, Constrained(TWO, ["b > 0"])]
)
def test_objectives_are_stored_as_json_under_their_registered_names(objective: Objective) -> None:
    stored = json.loads(json.dumps(plugins.encode(objective)))
    assert stored["plugin"].startswith("phyla.objectives/")
    assert plugins.decode(stored) == objective
    aim = Aim.of(objective)
    assert Aim.from_config({"aim": json.loads(json.dumps(aim.to_json()))}) == aim


@given(accuracy=ANYTHING, latency=ANYTHING)
def test_a_weighted_sum_is_the_sum_and_never_finite_by_accident(accuracy: float, latency: float) -> None:
    found = SUM.judge({"accuracy": accuracy, "latency_ms": latency})
    if math.isfinite(accuracy) and math.isfinite(latency):
        assert found.fitness == pytest.approx(accuracy - 0.01 * latency, rel=1e-12) or math.isinf(found.fitness)
    else:
        assert math.isnan(found.fitness)
    assert found.order == (found.fitness if math.isfinite(found.fitness) else -math.inf)
    assert found.orders == ()


def test_a_weighted_sum_says_what_it_is() -> None:
    assert SUM.name == "accuracy - 0.01 latency_ms"
    assert SUM.description == "maximize accuracy - 0.01 latency_ms"
    assert WeightedSum({"loss": -1}).name == "-loss"
    assert WeightedSum({"loss": -12345678.5, "size": 1e-7}).name == "-12345678.5 loss + 1e-07 size"
    assert WeightedSum({"a_rather_long_name": 2, "another_rather_long_name": 3}).name == "weighted sum"
    assert SUM.goals == (Maximize("accuracy"), Minimize("latency_ms"))


@given(accuracy=ANYTHING, latency=ANYTHING)
def test_a_pareto_objective_keeps_all_goals_apart(accuracy: float, latency: float) -> None:
    found = TWO.judge({"accuracy": accuracy, "latency_ms": latency})
    assert found.fitness is accuracy
    assert found.orders == (TWO.goals[0].order(accuracy), TWO.goals[1].order(latency))
    both = math.isfinite(accuracy) and math.isfinite(latency)
    assert found.order == (accuracy if both else -math.inf)


@given(accuracy=ANYTHING, latency=ANYTHING)
def test_what_is_infeasible_is_worst_whatever_else_it_is(accuracy: float, latency: float) -> None:
    found = LIMITED.judge({"accuracy": accuracy, "latency_ms": latency})
    assert (found.infeasible is None) == (latency <= 20)
    assert found.order == (Maximize("accuracy").order(accuracy) if latency <= 20 else -math.inf)


@pytest.mark.parametrize(
    ("text", "value", "violation"),
    [
        ("latency_ms <= 20", 35.0, "latency_ms 35 > 20"),
        ("latency_ms <= 20", 20.0, None),
        ("latency_ms<20", 20.0, "latency_ms 20 >= 20"),
        ("  accuracy >= 1e-1 ", 0.05, "accuracy 0.05 < 0.1"),
        ("validation/accuracy > -0.5", -0.5, "validation/accuracy -0.5 <= -0.5"),
        ("latency_ms <= 20", math.nan, "latency_ms nan, not latency_ms <= 20"),
        ("latency_ms <= 20", math.inf, "latency_ms inf > 20"),
        ("x <= 20", 20.000000001, "x 20.000000001 > 20"),
        ("params <= 12345678", 2e7, "params 2e+07 > 12345678"),
        ("params < 12345678", 12345678.0, "params 12345678 >= 12345678"),
        ("params <= 12345678", math.nan, "params nan, not params <= 12345678"),
    ],
)
def test_constraints_say_how_they_are_violated(text: str, value: float, violation: str | None) -> None:
    assert Constraint.parse(text).violation(value) == violation


@given(
    metric=st.from_regex(r"[a-z_][a-z_/0-9]{0,20}", fullmatch=True),
    sign=st.sampled_from(["<=", ">=", "<", ">"]),
    bound=st.floats(allow_nan=False, allow_infinity=False),
    value=ANYTHING,
)
def test_constraints_are_read_as_they_are_written(metric: str, sign: str, bound: float, value: float) -> None:
    read = Constraint.parse(f"{metric} {sign} {bound!r}")
    assert read == Constraint(metric, sign, bound)
    holds = {"<=": value <= bound, ">=": value >= bound, "<": value < bound, ">": value > bound}[sign]
    assert (read.violation(value) is None) == holds


@pytest.mark.parametrize(
    "text",
    [
        *("latency_ms", "latency_ms = 20", "latency_ms == 20", "latency_ms => 20", "0 < latency_ms < 20"),
        *("20 >= latency_ms", "latency_ms <= fast", "latency_ms <= nan", "latency_ms <= inf", "latency_ms <= "),
        *("<= 20", "", 20),
    ],
)
def test_constraints_that_cannot_be_read(text: str) -> None:
    with raises(ConfigurationError, "constraint", "latency_ms <= 20") as caught:
        Constrained(Maximize("accuracy"), subject_to=[text])
    assert repr(text) in str(caught.value)


def test_constraints_add_their_metrics_to_what_is_needed() -> None:
    limited = Constrained(TWO, subject_to=("latency_ms <= 20", "memory_gb < 8", "memory_gb > 1", "recall >= 0.5"))
    assert limited.goals == (
        Maximize("accuracy"),
        Minimize("latency_ms"),
        Minimize("memory_gb"),
        Maximize("recall"),
    )
    assert limited.tradeoffs == TWO.goals
    values = {"accuracy": 1.0, "latency_ms": 30.0, "memory_gb": 9.0, "recall": 1.0}
    assert limited.judge(values).infeasible == "latency_ms 30 > 20 and memory_gb 9 >= 8"
    assert Constrained(Maximize("a"), "a >= 0").goals == (Maximize("a"),)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: WeightedSum({}), "WeightedSum( accuracy latency_ms"),
        (lambda: WeightedSum(["accuracy"]), "WeightedSum( accuracy latency_ms"),  # type: ignore[arg-type]
        (lambda: WeightedSum({"a": 0.0}), "WeightedSum(a=0.0) 0"),
        (lambda: WeightedSum({"a": math.nan}), "WeightedSum(a= 0"),
        (lambda: WeightedSum({"a": "1"}), "WeightedSum(a= 0"),  # type: ignore[dict-item]
        (lambda: WeightedSum({"": 1.0}), "WeightedSum('')"),
        (lambda: Pareto(), "Pareto()"),
        (lambda: Pareto(Maximize("a")), "Pareto(a) Maximize Minimize"),
        (lambda: Pareto(Maximize("a"), Minimize("a")), "Pareto(a, a)"),
        (lambda: Pareto("a", "b"), "Pareto('a') Pareto(Maximize('accuracy'),"),  # type: ignore[arg-type]
        (lambda: Pareto(LIMITED, Minimize("b")), "Pareto(Constrained( Constrained(Pareto(...),"),  # type: ignore[arg-type]
        (lambda: Constrained(Maximize("a"), []), "Constrained(subject_to=[]) <= >= latency_ms"),
        (lambda: Constrained("a", ["a > 1"]), "Constrained( Constrained(Maximize('accuracy'),"),  # type: ignore[arg-type]
        (lambda: Constrained(Maximize, ["a > 1"]), "Constrained( Constrained(Maximize('accuracy'),"),  # type: ignore[arg-type]
        (lambda: Constrained(Maximize("a"), ["b >= 5", "b <= 3"]), "b >= 5 <"),
        (lambda: Constrained(Maximize("a"), ["b >= 5", "b < 5"]), "b >= 5 <"),
    ],
)
def test_objectives_that_make_no_sense(make: object, says: str) -> None:
    with raises(ConfigurationError, *says.split()):
        make()  # type: ignore[operator]


def test_a_range_of_one_point_may_hold() -> None:
    assert Constrained(Maximize("a"), ["b >= 5", "b <= 5"]).judge({"a": 1.0, "b": 5.0}).infeasible is None


def _rules(objective: Objective, strategy: object) -> TrainRules:
    return TrainRules(space=Space(lr=Float(0, 1)), objective=objective, strategy=strategy)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("objective", "strategy", "says"),
    [
        (TWO, PBT(population_size=2, steps_per_trial=1, total_steps=2), "exploit=ParetoTruncation()"),
        (TWO, PBT(population_size=2, steps_per_trial=1, total_steps=2, exploit=TTest()), "WeightedSum"),
        (
            Constrained(TWO, ["m < 1"]),
            phyla.InitiatorPBT(population_size=2, steps_per_trial=1, total_steps=2),
            "InitiatorPBT Constrained",
        ),
        (
            TWO,
            phyla.strategies.SingleWorkerExplore(explore_steps=1, exploit_steps=1, total_steps=4),
            "SingleWorkerExplore",
        ),
        (SUM, RandomSearch(1, 1, fitness=BestOfLast(2)), "latency_ms MeanOfLast"),
        (LIMITED, RandomSearch(1, 1, fitness=BestOfLast(2)), "latency_ms"),
    ],
)
def test_strategies_that_cannot_work_with_an_objective_are_refused(
    objective: Objective, strategy: object, says: str
) -> None:
    with raises(ConfigurationError, *says.split()):
        _rules(objective, strategy)


@pytest.mark.parametrize("given", ["accuracy", Maximize, {"accuracy": 1.0}, None])
def test_what_is_no_objective_is_refused(given: object) -> None:
    with raises(ConfigurationError, "objective=", "Maximize('accuracy')"):
        _rules(given, RandomSearch(1, 1))  # type: ignore[arg-type]


def test_strategies_that_can_are_not() -> None:
    for strategy in (PARETO_PBT, RandomSearch(1, 1), phyla.GridSearch({"lr": [0.1]}, 1)):
        assert _rules(TWO, strategy).reported_metrics == ("accuracy", "latency_ms")
    assert _rules(LIMITED, PBT(population_size=2, steps_per_trial=1, total_steps=2)).objective == LIMITED
    assert _rules(Maximize("x"), RandomSearch(1, 1, fitness=BestOfLast(2))).reported_metrics == ("x",)


def test_one_named_aggregate_is_too_little_for_several_metrics() -> None:
    suite = phyla.Suite("heldout", [phyla.EvalTask("t", print)])
    strategy = RandomSearch(1, 1, fitness=FromSuite("heldout", "accuracy"))
    with pytest.raises(ConfigurationError, match=re.escape("leave the metric out: FromSuite('heldout')")):
        TrainRules(space=Space(lr=Float(0, 1)), objective=TWO, strategy=strategy, suites=(suite,))


def test_a_suite_has_one_objective() -> None:
    with raises(ConfigurationError, "heldout", 'Maximize("accuracy_mean")'):
        phyla.Suite("heldout", [phyla.EvalTask("t", print)], objective=TWO)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Ratio:
    """An objective of somebody else's: one metric over another."""

    above: str
    below: str
    tradeoffs: tuple[Goal, ...] = field(default=(), init=False)
    maximize: bool = field(default=True, init=False)

    @property
    def goals(self) -> tuple[Goal, ...]:
        return (Maximize(self.above), Minimize(self.below))

    @property
    def name(self) -> str:
        return f"{self.above}/{self.below}"

    @property
    def description(self) -> str:
        return f"maximize {self.name}"

    def judge(self, values: dict[str, float]) -> Judgement:
        ratio = values[self.above] / values[self.below] if values[self.below] else math.nan
        return Judgement(fitness=ratio, order=Maximize("r").order(ratio))


def test_an_objective_of_somebody_elses_is_as_good_as_ours() -> None:
    rules = _rules(Constrained(Ratio("a", "b"), ["b < 10"]), RandomSearch(1, 1))  # type: ignore[arg-type]
    config = json.loads(json.dumps(to_config(rules, 0)))
    assert plugins.decode(config["objective"], plugins.resolve).objective == Ratio("a", "b")
    assert Aim.from_config(config).name == "a/b"
    assert rules.objective.judge({"a": 1.0, "b": 4.0}) == Judgement(fitness=0.25, order=0.25)


@dataclass(frozen=True)
class Own:
    """An objective whose parts a test replaces."""

    order: Any = 1.0
    fitness: Any = 2.0
    orders: Any = ()
    infeasible: Any = None
    goals: Any = (Minimize("loss"),)
    tradeoffs: Any = ()
    name: Any = "loss"
    maximize: Any = False
    description: Any = "minimize loss"

    def judge(self, values: Mapping[str, float]) -> Judgement:
        return Judgement(fitness=self.fitness, order=self.order, orders=self.orders, infeasible=self.infeasible)


@pytest.mark.parametrize("number", [np.float32(0.5), np.int64(2), Fraction(1, 2), 3, 1.5, 10**300])
def test_a_judgement_has_numbers_of_python_whatever_the_objective_gave(number: Any) -> None:
    found = judge_values({}, Own(fitness=number, order=number, orders=[number], tradeoffs=(Minimize("loss"),)))
    assert [type(x) for x in (found.fitness, found.order, *found.orders)] == [float] * 3
    assert found == Judgement(fitness=float(number), order=float(number), orders=(float(number),))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_a_sort_key_that_is_not_finite_is_the_worst(number: Any) -> None:
    found = judge_values({}, Own(fitness=number, order=number, orders=(number,), tradeoffs=(Minimize("loss"),)))
    assert (found.order, found.orders) == (-math.inf, (-math.inf,))
    assert not math.isfinite(found.fitness)


@pytest.mark.parametrize("value", [None, "1", 1j, True, 10**400, np.array([1.0]), [1.0], object()])
@pytest.mark.parametrize("name", ["fitness", "order"])
def test_a_judgement_of_something_else_than_numbers_is_refused(name: str, value: Any) -> None:
    with raises(ConfigurationError, f"Judgement({name}="):
        judge_values({}, Own(**{name: value}))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"orders": (1.0,)}, ("Own.judge()", "orders=(1.0,)", "without orders")),
        ({"tradeoffs": (Minimize("loss"), Minimize("size"))}, ("Own.judge()", "2 orders")),
        ({"orders": None}, ("Judgement(orders=None)",)),
        ({"orders": ("a",)}, ("Judgement(orders='a')",)),
        ({"infeasible": True}, ("Judgement(infeasible=True)",)),
    ],
)
def test_a_judgement_has_a_sort_key_for_each_tradeoff_and_a_text(
    wrong: dict[str, Any], words: tuple[str, ...]
) -> None:
    with raises(ConfigurationError, *words):
        judge_values({}, Own(**wrong))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": None}, ("name", "None", "str")),
        ({"description": 3}, ("description", "3", "str")),
        ({"maximize": "no"}, ("maximize", "'no'", "bool")),
        ({"goals": ()}, ("Own", "goals", "at least one metric")),
        ({"goals": "loss"}, ("goals", "'loss'", "tuple")),
        ({"goals": ("loss",)}, ("metric", "'loss'", "str")),
        ({"tradeoffs": None}, ("tradeoffs", "None", "tuple")),
        ({"tradeoffs": (3,)}, ("metric", "3", "str")),
    ],
)
def test_an_objective_with_wrong_properties_is_refused_before_a_study_is_made(
    wrong: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    assert phyla.Study("own", Space(lr=Float(0.1, 1.0)), Own(), RandomSearch(1, 1), home=tmp_path).name == "own"
    with raises(ConfigurationError, "objective", *words):
        phyla.Study("own", Space(lr=Float(0.1, 1.0)), Own(**wrong), RandomSearch(1, 1), home=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_judgement_that_is_wrong_fails_the_study_with_what_to_change(tmp_path: Path) -> None:
    study = phyla.Study("own", Space(lr=Float(0.1, 1.0)), Own(order=None), RandomSearch(1, 1), home=tmp_path)
    trial = study.ask()
    assert trial is not None
    (trial.checkpoint_dir / "weights").write_text("w")
    with raises(StudyFailed, "trial 1", "Judgement(order=None)"):
        study.tell(trial, metrics={"loss": 1.0})
    assert study.results().counts() == {"pending": 1}
