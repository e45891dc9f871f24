"""Explore rules beyond perturbing: crossover and functions of one's own."""

from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from facts import check_facts, raises
from phyla.errors import ConfigurationError, SpaceError
from phyla.records import JsonObject
from phyla.space import Choice, Float, Int, Params, Space
from phyla.strategies import Crossover, ExplorePipeline, ExploreWith, Mutate, Perturb, Resample, describe
from populations import Listed, context, source

SPACE = Space(
    lr=Float(0.1, 1.0), width=Int(1, 9), kind=Choice(["a", "b"]), momentum=Float(0.0, 0.9, when={"kind": "a"})
)
OWN: JsonObject = {"lr": 0.2, "width": 2, "kind": "b"}
BEST: JsonObject = {"lr": 0.9, "width": 9, "kind": "a", "momentum": 0.5}
RNG = np.random.default_rng


def population(*params: JsonObject) -> Listed:
    """Members of rising fitness with these hyperparameters."""
    listed = Listed(*([float(index)] for index in range(len(params))))
    for index, flat in enumerate(params):
        member = listed.slots[index]
        assert member.published
        listed.slots[index] = replace(member, states=(replace(member.published, params=flat),))
    return listed


def test_each_parameter_comes_from_one_of_the_two_parents() -> None:
    rng, seen = RNG(0), set()
    for _ in range(200):
        explored = Crossover(then=None).propose(source(OWN), population(OWN, OWN, BEST), context(rng, space=SPACE))
        assert explored is not None
        child = explored.params
        assert SPACE.contains(child)
        assert all(child[name] in (OWN.get(name), BEST[name]) for name in child)
        assert set(explored.changes) == {name for name in child if child[name] != OWN.get(name)}
        assert all(change["by"] == "member 2" for change in explored.changes.values())
        seen.add((child["lr"], child["width"], child["kind"]))
    assert len(seen) == 8


def test_the_share_and_the_quantile() -> None:
    rng = RNG(0)
    for share, expected in ((0.0, OWN), (1.0, BEST)):
        explored = Crossover(share=share, then=None).propose(
            source(OWN), population(OWN, BEST), context(rng, space=SPACE)
        )
        assert explored is not None
        assert explored.params == expected
    mates = set()
    for _ in range(200):
        explored = Crossover(quantile=0.5).propose(
            source(OWN), population(OWN, OWN, OWN, BEST, BEST, BEST), context(rng, space=SPACE)
        )
        assert explored is not None
        mates.add(explored.facts["mate"]["member"])  # type: ignore[index,call-overload]
    assert mates == {3, 4, 5}


def test_a_quantile_that_rounding_makes_too_small() -> None:
    assert int(0.29 * 100) == 28
    rng, members, mates = RNG(0), population(*[OWN] * 100), set()
    for _ in range(400):
        explored = Crossover(quantile=0.29, then=None).propose(source(OWN), members, context(rng, space=SPACE))
        assert explored is not None
        mate = explored.facts["mate"]
        assert isinstance(mate, dict)
        mates.add(mate["member"])
    assert mates == set(range(71, 100))


def test_a_crossing_is_mutated_and_the_reason_tells_both() -> None:
    explored = Crossover(share=1.0, then=Perturb(factors=(0.5,))).propose(
        source(OWN), population(OWN, BEST), context(space=SPACE)
    )
    assert explored is not None
    assert explored.params["lr"] == 0.45
    assert explored.changes["lr"] == {"from": 0.2, "to": 0.45, "by": "member 1, x0.5"}
    line = describe({"decision": "explore", "changes": explored.changes, **explored.facts})
    check_facts(line, "member 1", "0.2", "0.45", "x0.5")


def test_all_is_drawn_again_with_the_probability_or_nothing() -> None:
    for probability, least, most in ((0.0, 0, 0), (0.25, 30, 70), (1.0, 200, 200)):
        found = [
            Resample(probability).propose(source(OWN), Listed(), context(seed, space=SPACE)) for seed in range(200)
        ]
        drawn = [explored for explored in found if explored is not None]
        assert least <= len(drawn) <= most
        for explored in drawn:
            assert SPACE.contains(explored.params)
            assert explored.params["lr"] != OWN["lr"]
            assert explored.changes["lr"]["from"] == OWN["lr"]
            assert explored.changes["lr"]["to"] == explored.params["lr"]
            assert explored.facts == {}


def test_every_rule_of_a_pipeline_sees_the_population() -> None:
    pipeline = ExplorePipeline([Resample(0.0), Crossover(share=1.0, then=None)])
    explored = pipeline.propose(source(OWN), population(OWN, BEST), context(space=SPACE))
    assert explored is not None
    assert explored.params == BEST


def test_what_neither_parent_has_is_drawn_and_said_to_be_new() -> None:
    space = Space(a=Choice([0, 1]), b=Choice([0, 1]), c=Float(0.0, 1.0, when={"a": 1, "b": 1}))
    crossing, second = Crossover(then=None), population({"a": 0, "b": 0}, {"a": 0, "b": 1})
    found = [crossing.propose(source({"a": 1, "b": 0}), second, context(seed, space=space)) for seed in range(20)]
    new = [explored.changes["c"] for explored in found if explored is not None and "c" in explored.params]
    assert new
    assert {str(change["by"]) for change in new} == {"activated"}


def test_nobody_to_cross_with() -> None:
    nobody = Listed([], [float("nan")])
    explored = Crossover(then=None).propose(source(OWN), nobody, context(space=SPACE))
    assert explored is not None
    assert (explored.params, explored.changes, explored.facts) == (OWN, {}, {})


def same(params: Params) -> bool:
    return bool(params["a"] == params["b"])


def test_parents_whose_mixtures_are_not_allowed_are_not_crossed() -> None:
    space = Space({f"x{index}": Int(0, 9) for index in range(20)}, a=Int(0, 9), b=Int(0, 9), constraints=[same])
    zeros: JsonObject = dict.fromkeys(space.parameters, 0)
    nines: JsonObject = dict.fromkeys(space.parameters, 9)
    explored = Crossover(then=None).propose(source(zeros), population(zeros, nines), context(space=space))
    assert explored is not None
    assert explored.params["a"] == explored.params["b"]
    never = Space(a=Int(0, 9), b=Int(0, 9), constraints=[same, never_nine])
    kept = Crossover(share=1.0, then=None).propose(
        source({"a": 0, "b": 0}), population({"a": 9, "b": 9}), context(space=never)
    )
    assert kept is not None
    assert kept.params == {"a": 0, "b": 0}
    assert "never_nine" in str(kept.facts["not_crossed"])


def never_nine(params: Params) -> bool:
    return bool(params["a"] != 9)


def halve(params: Params, rng: np.random.Generator) -> dict[str, Any]:
    return {**params, "lr": max(0.1, params["lr"] / 2)}


def decline(params: Params, rng: np.random.Generator) -> None:
    return None


def outside(params: Params, rng: np.random.Generator) -> dict[str, Any]:
    return {**params, "lr": 7.0}


def test_a_function_explores() -> None:
    nobody = Listed()
    explored = ExploreWith(halve, after=None).propose(source(OWN), nobody, context(space=SPACE))
    assert explored is not None
    assert explored.params == {**OWN, "lr": 0.1}
    assert explored.changes == {"lr": {"from": 0.2, "to": 0.1, "by": "halve"}}
    assert ExploreWith(decline).propose(source(OWN), nobody, context(space=SPACE)) is None
    piped = ExplorePipeline([ExploreWith(decline), ExploreWith(halve, None)]).propose(
        source(OWN), nobody, context(space=SPACE)
    )
    assert piped == explored
    with raises(SpaceError, "ExploreWith(outside)"):
        ExploreWith(outside).propose(source(OWN), nobody, context(space=SPACE))
    unnamed = ExploreWith(partial(halve), after=None).propose(source(OWN), nobody, context(space=SPACE))
    assert unnamed is not None
    assert "halve" in str(unnamed.changes["lr"]["by"])


def even(params: Params, rng: np.random.Generator) -> dict[str, Any]:
    """Correct a width that depends on nothing else, as functions for Ray Tune correct what was perturbed."""
    return {**params, "width": 2 * max(1, params["width"] // 2)}


def test_a_function_corrects_what_another_rule_proposed() -> None:
    """As `custom_explore_fn`: exploration goes on, and every result is as the function makes it."""
    seen: set[float] = set()
    told: set[str] = set()
    own = {**OWN, "width": 4}
    for seed in range(100):
        explored = ExploreWith(even).propose(source(own), Listed(), context(seed, space=SPACE))
        assert explored is not None
        assert int(str(explored.params["width"])) % 2 == 0
        assert set(explored.changes) == {
            name for name in {**explored.params, **own} if explored.params.get(name) != own.get(name)
        }
        seen.add(float(str(explored.params["lr"])))
        by = str(explored.changes["lr"]["by"])
        assert by.startswith("x")
        assert "even" not in by
        told.add(str(explored.changes["width"]["by"]) if "width" in explored.changes else "kept")
    assert len(seen) > 1
    assert told == {"kept", "x0.8, even", "step, even"}


def test_a_function_corrects_any_rule() -> None:
    rule = ExploreWith(even, after=Crossover(share=1.0, then=Perturb(factors=(0.5,))))
    explored = rule.propose(source(OWN), population(OWN, BEST), context(space=SPACE))
    assert explored is not None
    assert explored.params["lr"] == 0.45
    assert explored.changes["lr"]["by"] == "member 1, x0.5"
    assert explored.facts["mate"]["member"] == 1  # type: ignore[index,call-overload]


def test_where_the_rule_before_declines_the_function_gets_what_was_taken_over() -> None:
    rule = ExploreWith(halve, after=ExploreWith(decline))
    explored = rule.propose(source(OWN), Listed(), context(space=SPACE))
    assert explored is not None
    assert explored.params == {**OWN, "lr": 0.1}


def test_a_decision_tells_the_scale_on_which_a_value_moved() -> None:
    space = Space(lr=Float(1e-4, 1.0, log=True), beta=Float(0.9, 0.9999, log="1-x"), ema=Float(0.95, 0.998))
    params: JsonObject = {"lr": 0.01, "beta": 0.99, "ema": 0.97}
    explored = Perturb(factors=(1.25,)).propose(source(params), Listed(), context(space=space))
    assert explored is not None
    line = describe({"decision": "explore", "changes": explored.changes})
    assert "lr 0.01 to 0.0125, beta 0.99 to 0.992 (1 - x, x0.8), ema 0.97 to 0.97" in line
    assert line.endswith("% of the range)")


@pytest.mark.parametrize("rule", [Perturb(), Crossover(), Mutate()])
def test_a_pipeline_with_a_rule_that_is_never_asked_is_refused(rule: Any) -> None:
    name = type(rule).__name__
    with raises(ConfigurationError, name, "ExploreWith(function", f"after={name}"):
        ExplorePipeline([rule, ExploreWith(halve)])
    assert ExplorePipeline([Resample(0.5), rule]).rules[-1] is rule


def test_only_named_parameters_are_perturbed() -> None:
    rule = Perturb(names=["lr"], resample=0.5)
    for seed in range(50):
        explored = rule.propose(source(BEST), Listed(), context(seed, space=SPACE))
        assert explored is not None
        assert set(explored.changes) == {"lr"}
    rule.check_space(SPACE)
    with raises(SpaceError, "Perturb(names=(", "width", "l"):
        Perturb(names=["width", "l"]).check_space(SPACE)


def test_clipping_is_the_rule_of_ray() -> None:
    """Multiply by 0.8 or 1.2, each half of the time, and clip: what a narrow range is left with are its ends."""
    space = Space(lr=Float(1e-3, 1.0), ema=Float(0.9, 0.999))
    found = [
        Perturb(clip=True).propose(source({"lr": 0.1, "ema": 0.95}), Listed(), context(seed, space=space))
        for seed in range(400)
    ]
    moved = [one.params["lr"] for one in found if one is not None]
    assert set(moved) == {0.1 * 0.8, 0.1 * 1.2}
    assert 160 < moved.count(0.1 * 1.2) < 240
    assert {one.params["ema"] for one in found if one is not None} == {0.9, 0.999}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Perturb(names=cast("Any", "lr")), "Perturb(names= lr"),
        (lambda: Perturb(names=[]), "Perturb(names="),
        (lambda: Perturb(clip=cast("Any", "yes")), "Perturb(clip= yes True False"),
        (lambda: Perturb(factors=(10**400, 0.5)), "Perturb"),
        (lambda: ExploreWith(halve, after=cast("Any", 3)), "ExploreWith(after=3)"),
        (lambda: Crossover(quantile=0.0), "Crossover(quantile=0.0)"),
        (lambda: Crossover(share=1.5), "Crossover(share=1.5)"),
        (lambda: ExploreWith(cast("Any", 3)), "ExploreWith(function=3)"),
    ],
)
def test_settings_that_make_no_sense(make: Any, message: str) -> None:
    with raises(ConfigurationError, *message.split()):
        make()


def test_where_constraints_allow_no_change_the_parents_values_are_kept() -> None:
    def fixed(params: Params) -> bool:
        return bool(params["lr"] == 0.5)

    space = Space(lr=Float(0.1, 1.0), constraints=[fixed])
    explored = Perturb().propose(source({"lr": 0.5}), population({"lr": 0.5}), context(RNG(0), space=space))
    assert explored is not None
    assert (dict(explored.params), explored.changes) == ({"lr": 0.5}, {})
    assert "kept" in explored.facts


def test_the_probability_of_resampling_needs_no_name() -> None:
    assert Resample(0.3) == Resample(probability=0.3)
