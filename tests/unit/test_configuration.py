"""A study's configuration as it is stored, and how two of them differ."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pytest

from evaluation_simulation import nothing
from facts import raises
from phyla import plugins
from phyla.configuration import (
    check_extension,
    check_unchanged,
    command_differences,
    differences,
    from_config,
    keeping_of,
    make_resolver,
    settings_digest,
    suite_differences,
    suites_from,
    to_config,
)
from phyla.errors import ConfigurationError, NotImportable, SpaceError, StudyChanged
from phyla.evaluation import EvalTask, Suite
from phyla.machine import TrainRules
from phyla.records import Json, JsonObject, Judgement, Maximize, Minimize, StartFrom
from phyla.space import Choice, Float, Params, Space
from phyla.store import open_store
from phyla.strategies import (
    ASHA,
    PBT,
    Backtrack,
    Divergence,
    ExploreWith,
    Final,
    FixedSchedule,
    FromSuite,
    GridSearch,
    MeanOfLast,
    MedianStopping,
    Others,
    RandomSearch,
    Reported,
    Resample,
    StoppingRule,
    Truncation,
)

HELD_OUT = Suite("held-out", (EvalTask("a", nothing),))
LR = Float(0.1, 1.0)


def pbt(**given: Any) -> PBT:
    return PBT(**{"population_size": 4, "steps_per_trial": 5, "total_steps": 20, **given})


def rules(strategy: Any = None, **given: Any) -> TrainRules:
    return TrainRules(
        **{"space": Space(lr=LR), "objective": Maximize("Q"), "strategy": strategy or pbt(), **given}
    )


def config(
    strategy: Any = None, *, seed: int = 0, start_from: Sequence[StartFrom] = (), **given: Any
) -> JsonObject:
    """Return a configuration as a database gives it back."""
    made = to_config(rules(strategy, **given), seed, start_from=start_from)
    read: JsonObject = json.loads(json.dumps(made))
    return read


def constrained(params: Params) -> bool:
    return bool(params["lr"] < 2)


def halved(params: Params, rng: np.random.Generator) -> Any:
    return {"lr": params["lr"] / 2}


def with_suite(samples: int) -> JsonObject:
    return {"seed": samples, "suites": [{"name": "held-out", "samples": samples}]}


def test_suites_are_compared_by_name_and_nothing_else_is() -> None:
    assert suite_differences(with_suite(1), {**with_suite(1), "seed": 2}) == {}
    assert suite_differences(with_suite(1), with_suite(2)) == {"suites.held-out.samples": (1, 2)}
    added: dict[str, tuple[Json, Json]] = {
        "suites": ([], None),
        "suites.held-out.name": (None, "held-out"),
        "suites.held-out.samples": (None, 2),
    }
    assert suite_differences({}, with_suite(2)) == added
    assert suite_differences(with_suite(2), {}) == {name: (new, old) for name, (old, new) in added.items()}
    assert suite_differences({}, {"suites": []}) == suite_differences({"suites": []}, {}) == {}


def test_a_digest_of_settings_tells_what_decides_and_the_suites_apart() -> None:
    stored = config(seed=1)
    assert re.fullmatch("[0-9a-f]{16}", settings_digest(stored))
    assert settings_digest(stored) == settings_digest(config(seed=1))
    others = [config(seed=1, suites=(HELD_OUT,)), config(pbt(quorum=1.0), seed=1), config(seed=2)]
    assert len({settings_digest(each) for each in (stored, *others)}) == 4
    assert settings_digest({**stored, "train": {"arguments": ["sh"]}}) == settings_digest(stored)
    turned = json.loads(json.dumps(stored), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert settings_digest(turned) == settings_digest(stored)


def test_commands_are_compared_part_by_part_and_functions_are_not() -> None:
    first, second = {"train": {"arguments": ["sh", "a"]}}, {"train": {"arguments": ["sh", "b"]}}
    assert command_differences(first, first) == {}
    assert command_differences(first, second) == {"train.arguments": (["sh", "a"], ["sh", "b"])}
    assert command_differences({"train": "a.py:train"}, {"train": "b.py:train"}) == {}
    assert command_differences({}, {}) == {}
    assert command_differences({"train": None}, first)["train.arguments"] == (None, ["sh", "a"])


def test_rules_are_read_back_as_they_were_stored() -> None:
    made = TrainRules(
        space=Space({"lr": LR}, constraints=[constrained]),
        objective=Maximize("Q"),
        strategy=PBT(population_size=2, steps_per_trial=5, total_steps=10, explore=ExploreWith(halved)),
        suites=(HELD_OUT,),
        stopping=(MedianStopping(min_steps=4),),
        final=Final(candidates=3, measurements=12),
        max_stops=7,
        lease_s=31.0,
        keep_best=5,
    )
    stored = to_config(made, 1, "digits.py:train", "digits.py:setup")
    assert (stored["seed"], stored["train"], stored["setup"]) == (1, "digits.py:train", "digits.py:setup")
    for find in (make_resolver(made), plugins.resolve):
        read = from_config(stored, find)
        assert to_config(read, 1) == to_config(made, 1)
        assert (read.suites, read.stopping, read.final) == (made.suites, made.stopping, made.final)
        assert suites_from(stored, find) == made.suites
        assert (read.max_stops, read.lease_s, read.keep_best) == (7, 31.0, 5)
    assert suites_from({}) == ()


def test_the_default_for_how_often_a_member_is_stopped_is_that_of_the_rules() -> None:
    assert from_config(config()).max_stops == from_config({**config(), "stopping": {"rules": []}}).max_stops == 3


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (rules(space=Space({"lr": LR}, constraints=[constrained])), f"{__name__}:constrained"),
        (rules(pbt(explore=ExploreWith(halved))), f"{__name__}:halved"),
        (rules(suites=(HELD_OUT,)), "evaluation_simulation:nothing"),
    ],
    ids=["space", "strategy", "suites"],
)
def test_what_only_the_database_names_is_not_called(made: TrainRules, name: str) -> None:
    stored = to_config(made, 0)
    with raises(NotImportable, name):
        from_config(stored)
    with raises(NotImportable, name):
        from_config(stored, make_resolver(rules()))
    assert from_config(stored, make_resolver(made)) == made


@dataclass(frozen=True)
class OwnGoal:
    """An objective that is not registered."""

    metric: str = "Q"
    name = "Q"
    maximize = True
    description = "own"
    tradeoffs = ()

    @property
    def goals(self) -> tuple[Maximize, ...]:
        return (Maximize(self.metric),)

    def judge(self, values: Mapping[str, float]) -> Judgement:
        return Maximize(self.metric).judge(values)


@dataclass(frozen=True)
class OwnRule(StoppingRule):
    """A stopping rule that is not registered."""

    above: float = 2.0

    def judge(self, reported: Reported, others: Others) -> JsonObject | None:
        return None


def test_functions_and_classes_of_ones_own_are_stored_under_the_names_that_are_given() -> None:
    made = rules(
        pbt(explore=ExploreWith(halved)),
        space=Space({"lr": LR}, constraints=[constrained]),
        objective=OwnGoal(),
        suites=(HELD_OUT,),
        stopping=(OwnRule(above=3.0),),
    )
    own: list[Any] = [OwnGoal, OwnRule, constrained, halved, nothing]

    def name_of(target: Any) -> str:
        return f"mine:{own.index(target)}" if target in own else plugins.reference(target)

    stored = to_config(made, 0, name_of=name_of)
    text = json.dumps(stored)
    assert all(f'"mine:{index}"' in text for index in range(len(own)))
    found = {f"mine:{index}": target for index, target in enumerate(own)}
    assert from_config(stored, found.__getitem__) == made
    assert from_config(to_config(made, 0), make_resolver(made)) == made
    with raises(NotImportable, ":OwnGoal'"):
        make_resolver(rules())("tests:OwnGoal")


def test_what_is_stored_beside_the_rules() -> None:
    start = StartFrom(path="/a", params={"lr": 0.5}, step=3)
    given = config(seed=5, start_from=[start], max_attempts=9, keep_every_steps=7)
    assert given["seed"] == 5
    assert given["start_from"] == [asdict(start)]
    assert (given["changes"], given["stopping"], given["suites"]) == ([], None, [])
    assert (given["train"], given["setup"]) == (None, None)
    assert given["plan"] == {"member_steps": 20, "steps_per_trial": 5}
    assert config(ASHA(9, 18, 2))["plan"] == {"member_steps": None, "steps_per_trial": 0}
    assert given["options"] == {
        "lease_s": 60.0,
        "max_attempts": 9,
        "max_claims": 30,
        "max_broken": 10,
        "keep_best": 1,
        "keep_front": 100,
        "keep_every_steps": 7,
    }
    stopped: Any = config(stopping=(Divergence(above=2.0),), max_stops=4)["stopping"]
    assert (stopped["max_stops"], len(stopped["rules"])) == (4, 1)
    aim: Any = config(objective=Minimize("loss"))["aim"]
    assert aim == {"name": "loss", "maximize": False, "description": "minimize loss", "tradeoffs": []}
    suite = replace(HELD_OUT, name="s")
    aim = config(pbt(fitness=FromSuite("s", "err_mean")), objective=Minimize("loss"), suites=(suite,))["aim"]
    assert (aim["name"], aim["description"]) == ("err_mean", "minimize err_mean of suite 's'")
    aim = config(pbt(fitness=FromSuite("s")), objective=Minimize("loss"), suites=(suite,))["aim"]
    assert aim["name"] == "loss"


def test_which_checkpoints_are_kept_is_read_without_making_the_rules() -> None:
    suite = replace(HELD_OUT, name="absent")
    for made in (
        rules(keep_best=3, keep_front=7, keep_every_steps=11),
        rules(pbt(exploit=Backtrack(), quorum=1.0)),
        rules(pbt(fitness=FromSuite("absent", "a", max_lag=2)), suites=(suite, HELD_OUT)),
    ):
        stored = json.loads(json.dumps(to_config(made, 0)))
        assert keeping_of({"keeping": stored["keeping"]}) == made.keeping
    keeping = keeping_of(config(keep_best=3))
    assert (keeping.population_size, keeping.lead, keeping.elites, keeping.suite) == (4, 2, False, None)


SPACE = Space({"lr": LR, "kind": Choice(["a", "b"])})
CHANGES: dict[str, tuple[JsonObject, JsonObject, dict[str, tuple[Json, Json]]]] = {
    "nothing": (config(), config(), {}),
    "what operates": (config(), config(lease_s=5.0, keep_best=9, max_claims=2, max_broken=4), {}),
    "suites": (config(), config(suites=(HELD_OUT,)), {}),
    "what trains": (config(), {**config(), "train": "a.py:train", "changes": [{"at": 1.0}]}, {}),
    "seed": (config(), config(seed=1), {"seed": (0, 1)}),
    "objective": (
        config(),
        config(objective=Minimize("Q")),
        {"objective.plugin": ("phyla.objectives/maximize", "phyla.objectives/minimize")},
    ),
    "a setting": (config(), config(pbt(burn_in=5)), {"strategy.burn_in": (0, 5)}),
    "a setting within one": (
        config(pbt(exploit=Truncation(0.2))),
        config(pbt(exploit=Truncation(0.4))),
        {"strategy.exploit.quantile": (0.2, 0.4)},
    ),
    "a parameter": (
        config(),
        config(space=Space(lr=Float(0.1, 2.0))),
        {"space.parameters.lr.high": (1.0, 2.0)},
    ),
    "values of a parameter": (
        config(space=SPACE),
        config(space=Space({"lr": LR, "kind": Choice(["a", "b", "c"])})),
        {"space.parameters.kind.values": (["a", "b"], ["a", "b", "c"])},
    ),
    "truth values in place of numbers": (
        config(space=Space({"lr": LR, "flag": Choice([0, 1])})),
        config(space=Space({"lr": LR, "flag": Choice([False, True])})),
        {"space.parameters.flag.values": ([0, 1], [False, True])},
    ),
    "floats in place of integers": (
        config(space=Space({"lr": LR, "size": Choice([1, 2])})),
        config(space=Space({"lr": LR, "size": Choice([1.0, 2.0])})),
        {},
    ),
    "the first hyperparameters": (
        config(),
        config(space=Space({"lr": LR}, initial=[{"lr": 0.5}])),
        {"space.initial": ([], None), "space.initial.0.lr": (None, 0.5)},
    ),
    "what members start from": (
        config(start_from=[StartFrom("/a"), StartFrom("/b")]),
        config(start_from=[StartFrom("/a"), StartFrom("/b", index=1)]),
        {"start_from.1.index": (0, 1)},
    ),
    "the stopping rules": (
        config(stopping=(Divergence(above=1.0),)),
        config(stopping=(Divergence(above=2.0),), max_stops=4),
        {"stopping.rules.0.above": (1.0, 2.0), "stopping.max_stops": (3, 4)},
    ),
    "a schedule, which is a list of lists": (
        config(FixedSchedule([(0, {"lr": 0.5})], 20)),
        config(FixedSchedule([(0, {"lr": 0.25})], 20)),
        {"strategy.schedule": ([[0, {"lr": 0.5}]], [[0, {"lr": 0.25}]])},
    ),
}


@pytest.mark.parametrize(("old", "new", "changed"), CHANGES.values(), ids=CHANGES)
def test_what_decides_differently_is_named(
    old: JsonObject, new: JsonObject, changed: dict[str, tuple[Json, Json]]
) -> None:
    assert differences(old, new) == changed
    assert differences(new, old) == {name: (given, stored) for name, (stored, given) in changed.items()}


def test_the_stored_names_come_first_in_their_order() -> None:
    found = differences(config(), config(ASHA(9, 18, 2), seed=1))
    assert list(found)[:4] == ["seed", "strategy.plugin", "strategy.population_size", "strategy.steps_per_trial"]
    assert list(found)[-3:] == ["strategy.members", "strategy.min_steps", "strategy.reduction_factor"]


def test_a_function_is_the_same_wherever_its_file_is_and_in_whichever_form_it_was_written() -> None:
    def at(folder: str, name: str) -> JsonObject:
        constraints: Json = [f"{folder}/study.py:{name}"]
        space: JsonObject = {"parameters": [], "constraints": constraints}
        return {"space": space, "strategy": {"explore": {"function": f"{folder}/study.py:{name}"}}}

    assert differences(at("/a", "double"), at("/b", "double")) == {}
    assert differences(at("/a", "double"), at("/a", "halve")) == {
        "space.constraints": (["/a/study.py:double"], ["/a/study.py:halve"]),
        "strategy.explore.function": ("/a/study.py:double", "/a/study.py:halve"),
    }
    in_memory: JsonObject = {"strategy": {"factors": (0.8, 1.2)}}
    assert differences(in_memory, {"strategy": {"factors": [0.8, 1.2]}}) == {}


def test_a_change_that_came_between_is_named() -> None:
    study = open_store("memory://").create_study("s", config(pbt(burn_in=5)), 0, 4)
    check_unchanged(study, config(pbt(burn_in=5), keep_best=7))
    with raises(StudyChanged, "s", "strategy.burn_in", "phyla status s"):
        check_unchanged(study, config(seed=1))


def extend(old: JsonObject, new: JsonObject) -> None:
    check_extension(differences(old, new), old, new, from_config(new, plugins.resolve).strategy)


ONE, FINER = GridSearch({"lr": [0.5]}, 20), GridSearch({"lr": [0.5, 1.0]}, 20)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            config(),
            config(pbt(population_size=9, total_steps=90, fitness=MeanOfLast(2), explore=Resample())),
        ),
        (config(), config(stopping=(Divergence(above=1.0),))),
        (config(stopping=(Divergence(above=1.0),)), config()),
        (config(), config(space=Space(lr=Float(0.01, 2.0), decay=Float(0.0, 1.0, default=0.5)))),
        (config(), config(space=Space({"lr": LR}, initial=[{"lr": 0.5}]))),
        (config(RandomSearch(2, 20)), config(RandomSearch(2, 40))),
        (config(ASHA(27, 18, 2)), config(ASHA(27, 54, 2))),
        (config(ASHA(9, 18, 2)), config(ASHA(9, 17, 2))),
    ],
    ids=["settings", "stopping", "no stopping", "wider", "initial", "steps", "another rung", "fewer steps"],
)
def test_what_an_existing_study_can_take(old: JsonObject, new: JsonObject) -> None:
    assert differences(old, new)
    extend(old, new)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (config(), config(seed=1), "seed 0 1"),
        (
            config(),
            config(objective=Minimize("Q")),
            "objective.plugin maximize minimize",
        ),
        (config(), config(RandomSearch(4, 20)), "strategy.plugin pbt random-search"),
        (
            config(RandomSearch(2, 20)),
            config(RandomSearch(3, 20)),
            "strategy.members 2 3",
        ),
        (config(ONE), config(FINER), "strategy.grid.lr [0.5] [0.5, 1.0]"),
        # Members of one rung would have trained for different numbers of steps.
        (config(ASHA(9, 18, 2)), config(ASHA(9, 18, 3)), "strategy.min_steps 2 3"),
        (config(ASHA(9, 8, 2)), config(ASHA(9, 8, 2, 2)), "strategy.reduction_factor 3 2"),
        # Members that ended at step 16 would train no more, with as many rungs or with another one.
        (config(ASHA(9, 16, 2)), config(ASHA(9, 18, 2)), "total_steps=18 16 2, 6, 18"),
        (config(ASHA(27, 16, 2)), config(ASHA(27, 54, 2)), "total_steps=54 16 2, 6, 18, 54"),
        (
            config(),
            config(start_from=[StartFrom("/a")]),
            "start_from.0.path /a",
        ),
        (
            config(),
            config(space=Space({"lr": LR}, constraints=[constrained])),
            "space.constraints",
        ),
    ],
    ids=[
        "seed",
        "objective",
        "kind",
        "members",
        "grid",
        "first rung",
        "rungs",
        "no rung",
        "no rung of more",
        "start",
        "constraints",
    ],
)
def test_what_an_existing_study_cannot_take(old: JsonObject, new: JsonObject, named: str) -> None:
    with raises(ConfigurationError, *named.split()):
        extend(old, new)


def test_a_plug_in_whose_package_is_gone_is_told_from_another_kind() -> None:
    gone: Any = config()
    gone["strategy"]["plugin"] = "phyla.strategies/follow"
    with raises(ConfigurationError, "strategy.plugin", "install", "phyla.strategies/follow"):
        extend(gone, config())
    with pytest.raises(ConfigurationError) as raised:
        extend(config(RandomSearch(4, 20)), config())
    assert "install" not in str(raised.value)


@pytest.mark.parametrize(
    "space",
    [Space(lr=Float(0.1, 0.9)), Space(other=Float(0.0, 1.0, default=0.5)), Space(lr=LR, new=Float(0.0, 1.0))],
    ids=["narrower", "gone", "without a default"],
)
def test_a_space_does_not_get_narrower(space: Space) -> None:
    with pytest.raises(SpaceError, match=r"can only be widened: (lr|new)"):
        extend(config(), config(space=space))
    extend(config(space=space), config(space=space))


def test_a_space_is_widened_whatever_constrains_it() -> None:
    wider = Space({"lr": Float(0.1, 2.0)}, constraints=[constrained], initial=[{"lr": 1.5}])
    old = config(space=Space({"lr": LR}, constraints=[constrained]))
    extend(old, config(space=wider))
