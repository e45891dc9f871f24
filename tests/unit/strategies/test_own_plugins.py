"""Strategies and rules of a user: what they return is checked, and errors name them."""

import asyncio
import sys
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from facts import check_facts, raises
from phyla.errors import ConfigurationError, LeaseLost
from phyla.machine import Ended, TrainRules
from phyla.records import JobState, Maximize, Member, MemberState, Scored, StudyState, TrialRecord
from phyla.records.objective import _OneMetric
from phyla.space import Float, Int, Space
from phyla.strategies import (
    PB2,
    PBT,
    Context,
    Crossover,
    Exploited,
    ExploitPipeline,
    Explored,
    ExplorePipeline,
    ExploreWith,
    Last,
    Measure,
    Population,
    Start,
    Stop,
    StopWith,
    Strategy,
    Wait,
    describe,
    ranked,
)
from phyla.strategies.exploit import Exploit
from simulation import Simulation

SPACE = Space(lr=Float(0.001, 1.0), width=Int(1, 9, default=4))


def ran(strategy: Any, space: Space = SPACE) -> tuple[str, list[TrialRecord]]:
    """Run a study in memory; return how it ended and its trials."""
    rules = TrainRules(space=space, objective=Maximize("Q"), strategy=strategy)
    simulation = Simulation(rules, lambda parent, trial: (None, float(trial.member)))
    ended = simulation.run_serially()
    assert (ended.state is StudyState.FAILED) == (ended.message is not None)
    with simulation.store.reader(simulation.study.id) as reader:
        return ended.message or "", list(reader.trials())


def pbt(**rules: Any) -> PBT:
    return PBT(population_size=2, steps_per_trial=5, total_steps=10, **rules)


@dataclass(frozen=True)
class Scripted(Strategy):
    """Decides what it is told."""

    decision: Any
    population_size: int = 1
    total_steps: int = 5

    def decide(self, *_: object) -> Any:
        return self.decision


@dataclass(frozen=True)
class GoesOn(Strategy):
    """Trains each trial for the same number of steps."""

    steps: int
    population_size: int = 1
    total_steps: int = 5

    def decide(self, member: Member, *_: object) -> Start:
        return start(weights=member.head, steps=self.steps)


@dataclass(frozen=True)
class Proposes:
    """Proposes what it is told."""

    found: Any

    def propose(self, *_: object) -> Any:
        return self.found


@dataclass(frozen=True)
class Chooses(Exploit):
    """Chooses what it is told."""

    found: Any

    def choose(self, *_: object) -> Any:
        return self.found


def start(**given: Any) -> Start:
    return Start(
        **{"weights": None, "params": {"lr": 0.1}, "params_from": None, "steps": 5, "reason": {}, **given}
    )


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"lr": 99.0}, "lr: 99.0 is outside"),
        ({"lr": float("nan")}, "lr: the value of this Float must be finite, got nan"),
        ({"lr": 0.1, "width": 2.5}, "width: the value of this Int must be an integer, got 2.5"),
        ({"learning": 0.1}, "unknown parameter 'learning'; choose from 'lr', 'width'"),
        ({"width": 2}, "lr: has no value; give one from Float(0.001, 1.0)"),
    ],
)
def test_hyperparameters_that_the_space_does_not_allow_are_never_trained(params: Any, told: str) -> None:
    message, trials = ran(Scripted(start(params=params)))
    assert not trials
    check_facts(message, "SpaceError", "Scripted()", told)
    assert "/phyla/" not in message
    message, trials = ran(pbt(exploit=None, explore=Proposes(Explored(params=params))))
    assert {trial.state for trial in trials} == {JobState.COMPLETED}
    assert all(trial.reason["decision"] == "start" for trial in trials)
    assert "PBT(explore=Proposes(found=Explored(" in message
    assert told in message


def test_proposed_hyperparameters_are_stored_as_the_space_holds_them() -> None:
    message, (trial,) = ran(Scripted(start(params={"lr": np.float32(0.5), "width": np.int64(3)})))
    assert not message
    assert trial.params == {"lr": 0.5, "width": 3}
    assert ran(Scripted(start()))[1][0].params == {"lr": 0.1, "width": 4}


MEMBER: Any = Member(study=1, index=0, state=MemberState.READY)
SCORED: Any = Scored(
    trial=1, member=0, checkpoint="1.1", index=0, step=5, params={"lr": 0.1}, fitness=1.0, order=1.0
)
PROPOSED = "ConfigurationError: Proposes.propose() returned {'lr': 0.1}; it must return Explored or None"
CHOSEN = "ConfigurationError: Chooses.choose() returned None; it must return Exploited"


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        (Scripted(None), "Scripted.decide() None"),
        (Scripted({"lr": 1}), "Scripted.decide() lr 1}"),
        (pbt(exploit=None, explore=Proposes({"lr": 0.1})), PROPOSED),
        (pbt(exploit=None, explore=ExplorePipeline([Proposes(None), Proposes({"lr": 0.1})])), PROPOSED),
        (pbt(exploit=None, explore=PB2(fallback=Proposes({"lr": 0.1}))), PROPOSED),
        (pbt(exploit=None, explore=Crossover(then=Proposes({"lr": 0.1}))), PROPOSED),
        (pbt(exploit=Chooses(None)), CHOSEN),
        (pbt(exploit=ExploitPipeline([Chooses(None)])), CHOSEN),
        (pbt(exploit=Chooses(Exploited(donor=MEMBER, reason={}))), "Chooses.choose() published"),
        (
            pbt(exploit=Chooses(Exploited(donor=None, params_donor=MEMBER, reason={}))),
            "Chooses.choose() params_donor published",
        ),
    ],
)
def test_what_returns_something_else_is_named(strategy: Strategy, told: str) -> None:
    message, _ = ran(strategy)
    check_facts(message, *told.split())
    assert "/phyla/" not in message


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"reason": {"score": {"of": [1, np.int64(3)]}}},
            f"reason['score']['of'][1] of a decision of Scripted is {np.int64(3)!r}",
        ),
        ({"reason": {"best": start}}, "reason[ best <function"),
        ({"reason": "because"}, "because"),
        ({"reason": ["because"]}, "because"),
        ({"reason": {"lost": {(1, 2): 1}}}, "reason[ lost 1 2"),
        ({"reason": {}, "state": {"seen": {1}}}, "state[ seen {1}"),
    ],
)
def test_what_cannot_be_stored_is_named(given: Any, told: str) -> None:
    for decision in (start(**given), Stop(**given)):
        message, trials = ran(Scripted(decision))
        check_facts(message, *told.split())
        assert not trials
    assert not ran(Scripted(start(reason={"a": [None, True, 0.5, {"b": ("c",)}]})))[0]


def test_what_a_rule_asks_of_phyla_in_vain_has_its_file_and_line() -> None:
    @dataclass(frozen=True)
    class Outside:
        def propose(self, source: Scored, population: Population, context: Context) -> Any:
            return context.space.validate({"lr": 99.0})

    check_facts(ran(pbt(exploit=None, explore=Outside()))[0], "99.0", "[0.001", "1.0]", __file__)


def no_number(values: Any, objective: Any) -> Any:
    return None


def text(values: Any, objective: Any) -> Any:
    return "0.5"


def several(values: Any, objective: Any) -> Any:
    return np.array([1.0, 2.0])


def broken(values: Any, objective: Any) -> Any:
    raise RuntimeError("there is no such rule")


def leaving(*_: Any) -> Any:
    sys.exit("bye")


def cancelled(*_: object) -> Any:
    raise asyncio.CancelledError("bye")


@dataclass(frozen=True)
class Judges(_OneMetric):
    """Judges as it is told."""

    found: Any = None
    maximize = True

    def judge(self, values: Any) -> Any:
        if self.found is None:
            raise RuntimeError("no judgement")
        return self.found


@pytest.mark.parametrize(
    ("rule", "objective", "told"),
    [
        (no_number, Maximize("Q"), "no_number None"),
        (text, Maximize("Q"), "text '0.5'"),
        (several, Maximize("Q"), "several array("),
        (broken, Maximize("Q"), f"RuntimeError there is no such rule {__file__}"),
        (leaving, Maximize("Q"), f"SystemExit bye {__file__}"),
        (cancelled, Maximize("Q"), f"CancelledError bye {__file__}"),
        (Last(), Judges("Q", found=3.0), "Judges.judge() 3.0"),
        (Last(), Judges("Q"), f"RuntimeError no judgement {__file__}"),
    ],
)
def test_a_fitness_that_cannot_be_computed_fails_the_study_and_loses_no_attempt(
    rule: Any, objective: Any, told: str
) -> None:
    rules = TrainRules(space=SPACE, objective=objective, strategy=pbt(fitness=rule))
    simulation = Simulation(rules, lambda parent, trial: (None, 1.0))
    claimed, _ = simulation.controller.claim("w")
    done = replace(simulation.completion(claimed[0].trial), values={"Q": [1.0]})
    (answer,), _, rest = simulation.controller.complete([done], "w", 1)
    assert isinstance(answer, LeaseLost)
    assert isinstance(rest, Ended)
    assert rest.state is StudyState.FAILED
    check_facts(rest.message or "", "trial 1", *told.split())
    with simulation.store.reader(simulation.study.id) as reader:
        trial = reader.trials()[0]
    assert (trial.state, trial.failures) == (JobState.PENDING, 0)


@dataclass(frozen=True)
class Leaves(Scripted):
    """Leaves the process."""

    decide = leaving


@dataclass(frozen=True)
class LeavesToo(Exploit):
    """Leaves the process, as a rule of a strategy."""

    def choose(self, *_: object) -> Any:
        leaving()


@dataclass(frozen=True)
class IsCancelled(Scripted):
    """Raises what is no Exception."""

    decide = cancelled


@pytest.mark.parametrize(
    ("strategy", "error"),
    [
        (Leaves(None), "SystemExit"),
        (pbt(exploit=LeavesToo()), "SystemExit"),
        (IsCancelled(None), "CancelledError"),
    ],
)
def test_a_strategy_that_leaves_the_process_fails_the_study(strategy: Any, error: str) -> None:
    check_facts(ran(strategy)[0], type(strategy).__name__, error, "bye", __file__)


def test_a_fitness_of_numpy_is_a_float() -> None:
    message, trials = ran(pbt(fitness=lambda values, objective: np.float32(values[-1])))
    assert not message
    assert {type(trial.fitness) for trial in trials} == {float}


@pytest.mark.parametrize("steps", [3, 5, 6, 99])
def test_no_trial_goes_beyond_the_end_of_training(steps: int) -> None:
    message, trials = ran(GoesOn(steps))
    assert not message
    assert [trial.end_step for trial in trials] == ([3, 5] if steps == 3 else [5])


@pytest.mark.parametrize("named", [0, 99])
def test_a_start_with_hyperparameters_of_an_unknown_trial_is_refused(named: int) -> None:
    message, trials = ran(Scripted(start(params_from=named)))
    assert not trials
    check_facts(message, "Scripted", f"params_from={named}")


def test_trials_without_steps_are_refused() -> None:
    for steps in (0, -1, 2.5):
        with raises(ConfigurationError, f"Start(steps={steps})", "1"):
            start(steps=steps)
    with raises(ConfigurationError, "Measure(times=0)", "1"):
        Measure(times=0, reason={})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"weights": MEMBER}, "Start(weights=...) Member published"),
        ({"params_from": SCORED}, "Start(params_from=Scored("),
        ({"params_from": 1.5}, "Start(params_from=1.5)"),
        ({"seed": "abc"}, "Start(seed='abc')"),
        ({"seed": -1}, "Start(seed=-1)"),
        ({"seed": 2**31}, f"Start(seed={2**31})"),
        ({"exploited": "yes"}, "Start(exploited='yes')"),
    ],
)
def test_a_start_of_something_else_is_refused_where_it_is_made(given: Any, told: str) -> None:
    with raises(ConfigurationError, *told.split()):
        start(**given)
    with raises(ConfigurationError, "Measure(subject=...)", "Member"):
        Measure(times=1, reason={}, subject=MEMBER)
    ids = start(params_from=np.int64(3), seed=np.int64(4))
    assert {type(ids.params_from), type(ids.seed)} == {int}


@dataclass(frozen=True)
class Changes(Strategy):
    """Changes the hyperparameters of a member in place, in one of several ways."""

    change: Any
    population_size: int = 1
    total_steps: int = 10

    def decide(self, member: Member, population: Population, context: Context) -> Any:
        params: Any = {"lr": 0.1} if member.head is None else member.head.params
        if member.head is not None:
            self.change(params)
        return start(weights=member.head, params=params)


IN_PLACE: dict[str, Any] = {
    "an item": lambda params: params.__setitem__("lr", 99.0),
    "several": lambda params: params.update(lr=99.0),
    "less": lambda params: params.pop("width"),
    "more": lambda params: params.setdefault("other", 1),
}


@pytest.mark.parametrize("change", IN_PLACE.values(), ids=IN_PLACE)
def test_hyperparameters_of_a_state_cannot_be_changed_in_place(change: Any) -> None:
    message, trials = ran(Changes(change))
    check_facts(message, "copy", "Changes", __file__)
    assert "/phyla/" not in message
    assert [trial.params for trial in trials] == [{"lr": 0.1, "width": 4}]


def test_rules_cannot_change_hyperparameters_in_place_either() -> None:
    @dataclass(frozen=True)
    class Doubles:
        def propose(self, source: Scored, population: Population, context: Context) -> Explored:
            params: Any = source.params
            params["lr"] *= 2
            return Explored(params=params)

    message, _ = ran(pbt(exploit=None, explore=Doubles()))
    check_facts(message, "copy", __file__)


def test_copies_of_hyperparameters_can_be_changed() -> None:
    for copied in (copy(SCORED.params), deepcopy(SCORED.params), deepcopy(SCORED).params):
        copied["lr"] = 0.5
    assert SCORED.params == {"lr": 0.1}


def test_equal_hyperparameters_of_numpy_are_stored_as_they_were() -> None:
    @dataclass(frozen=True)
    class Rounds(Changes):
        def decide(self, member: Member, population: Population, context: Context) -> Any:
            head = member.head
            params = {"lr": 0.1, "width": 4}
            return start(weights=head, params=params if head is None else {**params, "lr": np.float32(0.1)})

    message, trials = ran(Rounds(None))
    assert not message
    assert [trial.params for trial in trials] == [{"lr": 0.1, "width": 4}] * 2


def test_waiting_and_stopping_need_no_reason() -> None:
    assert ran(Scripted(Stop())) == ("", [])
    message, _ = ran(Scripted(Wait()))
    assert message.startswith("every member waits for another and nothing is running")
    assert "this is a bug in the strategy: " in message


@dataclass(frozen=True)
class TakesBest(Exploit):
    """The other members take over the best one; its reason names nobody."""

    def choose(self, member: Member, population: Population, context: Context) -> Exploited:
        best = ranked(population)[0]
        return Exploited(donor=None if best == member.published else best, reason={"rule": "takes-best"})


@dataclass(frozen=True)
class Halves:
    """Halves one parameter; names no changes."""

    def propose(self, source: Scored, population: Population, context: Context) -> Explored:
        return Explored(params={**source.params, "lr": 0.25})


@pytest.mark.parametrize(
    ("copy", "explore", "told"),
    [
        ("both", None, "took over member 1's weights and hyperparameters at step 5"),
        ("hyperparameters", None, "took over member 1's hyperparameters"),
        ("both", Halves(), "took over member 1's weights at step 5; lr 0.5 to 0.25 (Halves)"),
    ],
)
def test_the_donor_and_the_changes_are_told_where_a_rule_does_not(copy: Any, explore: Any, told: str) -> None:
    space = Space(lr=Float(0.001, 1.0, initial=0.5))
    message, trials = ran(pbt(exploit=TakesBest(), explore=explore, copy=copy, quorum=1.0), space)
    assert not message
    (taken,) = [trial for trial in trials if trial.reason["decision"] == "exploit"]
    assert describe(taken.reason) == told


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ({"x": 1}, "x 1"),
        ({"rule": "mine", "score": 0.123456}, "rule mine, score 0.1235"),
        ({"x": 1, "changes": {"lr": {"from": 1, "to": 2, "by": "x2"}}}, "x 1; lr 1 to 2"),
        ({}, "no reason given"),
        ({"decision": "mine"}, "mine"),
        ({"decision": "exploit"}, "took over another member's weights and hyperparameters"),
    ],
)
def test_a_reason_of_ones_own_is_told_as_it_is(reason: Any, told: str) -> None:
    assert describe(reason) == told
    assert describe(reason, "member 3") == f"member 3 {told}"


def one_argument(first: Any) -> Any:
    return None


def two_arguments(first: Any, second: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (ExploreWith, one_argument),
        (StopWith, two_arguments),
        (lambda function: ran(pbt(fitness=function)), one_argument),
    ],
)
def test_a_function_with_other_arguments_is_refused_where_it_is_given(make: Any, function: Any) -> None:
    with raises(ConfigurationError, f"{function.__name__}("):
        make(function)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Exploited, {"donor": None, "reason": "text"}),
        (Explored, {"params": [0.1]}),
        (Explored, {"params": {}, "changes": "x"}),
        (Explored, {"params": {}, "facts": None}),
    ],
)
def test_an_outcome_of_something_else_is_refused_where_it_is_made(kind: Any, wrong: Any) -> None:
    name, value = [*wrong.items()][-1]
    with raises(ConfigurationError, f"{kind.__name__}({name}={value!r})"):
        kind(**wrong)


@dataclass(frozen=True)
class Numbered(Strategy):
    """Has the numbers that it is given, and checks none of them."""

    population_size: Any = 2
    steps_per_trial: Any = 5
    total_steps: Any = 10
    quorum: Any = 0.5
    keeps_generations: Any = 0

    def decide(self, *_: object) -> Any:
        return Stop(reason={})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("population_size", value) for value in (None, 0, -1, 2.0, "3", True, 10**7)],
        *[(name, value) for name in ("total_steps", "steps_per_trial") for value in (0, -5, 2.5, "30", 2**60)],
        *[("quorum", value) for value in (None, -0.1, 1.5, "0.8", float("nan"))],
        *[("keeps_generations", value) for value in (None, -1, 0.5)],
    ],
)
def test_numbers_with_which_no_study_could_run_are_refused(name: str, value: Any) -> None:
    with raises(ConfigurationError, f"Numbered({name}={value!r}): must be "):
        ran(Numbered(**{name: value}))


def test_numbers_of_an_own_strategy_may_be_those_of_numpy_and_steps_are_optional() -> None:
    numbers = {"population_size": np.int64(2), "total_steps": np.int64(10), "quorum": np.float32(0.5)}
    assert ran(Numbered(**numbers)) == ("", [])
    assert ran(Numbered(total_steps=None, steps_per_trial=None)) == ("", [])
