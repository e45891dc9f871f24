"""Mutate: which hyperparameters change, and how far."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phyla
from facts import raises
from phyla.errors import ConfigurationError, SpaceError
from phyla.records import JsonObject
from phyla.space import Choice, Float, Int, Params, Space
from phyla.strategies import Explored, Mutate
from populations import Listed, context, source

SPACE = Space(
    lr=Float(1e-5, 1e-2, log=True, initial=3e-4),
    gamma=Float(0.5, 0.9999, initial=0.99),
    epochs=Int(1, 8, initial=4),
    kind=Choice(["a", "b"]),
    extra=Float(0.1, 0.9, when={"kind": "a"}),
)
OWN: JsonObject = {"lr": 3e-4, "gamma": 0.99, "epochs": 4, "kind": "b"}


def proposed(rule: Mutate, params: JsonObject = OWN, seed: int = 0, space: Space = SPACE) -> Explored:
    explored = rule.propose(source(params), Listed(), context(seed, space=space))
    assert explored is not None
    return explored


@given(st.integers(0, 10_000), st.floats(1.01, 3), st.floats(0, 2))
def test_numbers_change_by_a_factor_of_the_range_and_discounts_by_their_distance_from_1(
    seed: int, low: float, more: float
) -> None:
    found = proposed(Mutate(mutation_rate=1, change_range=(low, low + more), discounts=["gamma"]), seed=seed)
    assert SPACE.contains(found.params)
    lr, gamma = float(found.params["lr"]), float(found.params["gamma"])  # type: ignore[arg-type]
    assert low * 0.999 <= max(lr / 3e-4, 3e-4 / lr) <= (low + more) * 1.001
    distance = (1 - gamma) / 0.01
    assert 1.0999 <= max(distance, 1 / distance) <= 1.2001
    assert 1 <= int(str(found.params["epochs"])) <= 8
    assert ("extra" in found.params) == (found.params["kind"] == "a")
    assert {name for name in OWN if found.params[name] != OWN[name]} == set(found.changes) - {"extra"}
    assert str(found.changes["gamma"]["by"]).startswith("1 - x, x")


def test_each_parameter_changes_with_the_rate_up_or_down_alike() -> None:
    found = [proposed(Mutate(mutation_rate=0.25), seed=seed).params for seed in range(1000)]
    changed = [params for params in found if params["lr"] != OWN["lr"]]
    assert 200 < len(changed) < 300
    up = sum(float(params["lr"]) > 3e-4 for params in changed)  # type: ignore[arg-type]
    assert 0.4 < up / len(changed) < 0.6
    both = sum(params["gamma"] != OWN["gamma"] for params in changed)
    assert 0.15 < both / len(changed) < 0.35
    assert proposed(Mutate(mutation_rate=0)).changes == {}


def test_a_linear_number_goes_up_more_often_than_down() -> None:
    """By a factor of 2 in two of three cases, since there is more room above."""
    space = Space(width=Float(0.0, 100.0))
    rule = Mutate(mutation_rate=1, change_range=(2.0, 2.0))
    found = [proposed(rule, {"width": 5.0}, seed, space).params["width"] for seed in range(1000)]
    assert set(found) == {2.5, 10.0}
    assert 0.6 < found.count(10.0) / len(found) < 0.73


@pytest.mark.parametrize("factor", [1.25, 2.0])
def test_a_range_of_one_factor_is_that_factor_up_or_down(factor: float) -> None:
    rule = Mutate(mutation_rate=1, change_range=(factor, factor))
    found = [float(str(proposed(rule, seed=seed).params["lr"])) for seed in range(20)]
    up, down = pytest.approx(3e-4 * factor), pytest.approx(3e-4 / factor)
    assert all(lr in (up, down) for lr in found)
    assert up in found
    assert down in found


@given(st.floats(0.001, 0.999), st.integers(0, 1000))
def test_discounts_stay_in_their_bounds_wherever_they_are(gamma: float, seed: int) -> None:
    space = Space(gamma=Float(0.001, 0.999))
    rule = Mutate(mutation_rate=1, discounts=["gamma"], discount_range=(1.5, 9.0))
    assert space.contains(proposed(rule, {"gamma": gamma}, seed, space).params)


def small(params: Params) -> bool:
    return bool(params["a"] * params["b"] <= 1)


def test_what_constraints_do_not_allow_is_kept() -> None:
    space = Space(a=Float(0.1, 10.0), b=Float(0.1, 10.0), constraints=[small])
    for seed in range(50):
        found = proposed(Mutate(mutation_rate=1), {"a": 1.0, "b": 1.0}, seed, space)
        assert small(Params(found.params))


def test_members_start_from_the_configured_values() -> None:
    strategy = phyla.PBT(population_size=3, steps_per_trial=1, total_steps=4, explore=Mutate(discounts=["gamma"]))
    study = phyla.Study("start", SPACE, phyla.Maximize("score"), strategy, storage="memory://")
    assert [dict(trial.params)["lr"] for trial in study.ask(3)] == [3e-4] * 3


@pytest.mark.parametrize("given", [(1.0, 2.0), (2.0, 1.5), (1.1,), (1.1, float("inf"))])
def test_ranges_that_make_no_sense(given: tuple[float, ...]) -> None:
    with raises(ConfigurationError, "change_range"):
        Mutate(change_range=given)


def test_discounts_have_to_be_numbers_below_1_of_the_space() -> None:
    with raises(ConfigurationError, "Mutate(discounts='gamma')", "['gamma']"):
        Mutate(discounts="gamma")
    for name in ("epochs", "kind", "gama"):
        strategy = phyla.PBT(population_size=3, steps_per_trial=1, total_steps=4, explore=Mutate(discounts=[name]))
        with raises(SpaceError, "Mutate(discounts=", "0", "1"):
            phyla.Study("start", SPACE, phyla.Maximize("score"), strategy, storage="memory://")


def test_discounts_have_no_steps() -> None:
    space = Space(gamma=Float(0.9, 0.999, step=0.001))
    strategy = phyla.PBT(population_size=3, steps_per_trial=1, total_steps=4, explore=Mutate(discounts=["gamma"]))
    with raises(SpaceError, "Mutate(discounts=", "step"):
        phyla.Study("start", space, phyla.Maximize("score"), strategy, storage="memory://")
