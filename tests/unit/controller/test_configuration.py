"""A study's configuration as it is stored, and how two of them differ."""

from evaluation_simulation import nothing
from phyla.controller import from_config, known_to, suite_differences, to_config
from phyla.evaluation import EvalTask, Suite
from phyla.machine import TrainRules
from phyla.records import JsonObject, Maximize
from phyla.space import Float, Space
from phyla.strategies import PBT, MedianStopping


def with_suite(samples: int) -> JsonObject:
    return {"seed": samples, "suites": [{"name": "held-out", "samples": samples}]}


def test_suites_are_compared_by_name_and_nothing_else_is() -> None:
    assert suite_differences(with_suite(1), {**with_suite(1), "seed": 2}) == {}
    assert suite_differences(with_suite(1), with_suite(2)) == {"suites.held-out.samples": (1, 2)}
    assert suite_differences({}, with_suite(2)) == {
        "suites": ([], None),
        "suites.held-out.name": (None, "held-out"),
        "suites.held-out.samples": (None, 2),
    }
    assert suite_differences({}, {"suites": []}) == {}


def test_rules_are_read_back_as_they_were_stored() -> None:
    rules = TrainRules(
        space=Space(lr=Float(0.1, 1.0)),
        objective=Maximize("Q"),
        strategy=PBT(population_size=2, steps_per_trial=1, total_steps=2),
        suites=(Suite("held-out", (EvalTask("a", nothing),)),),
        stopping=(MedianStopping(min_steps=4),),
        max_stops=7,
        lease_s=31.0,
        keep_best=5,
    )
    stored = to_config(rules, 1, "digits.py:train", "digits.py:setup")
    assert (stored["seed"], stored["train"], stored["setup"]) == (1, "digits.py:train", "digits.py:setup")
    read = from_config(stored, known_to(rules))
    assert to_config(read, 1) == to_config(rules, 1)
    assert (read.suites, read.stopping) == (rules.suites, rules.stopping)
    assert (read.max_stops, read.lease_s, read.keep_best) == (7, 31.0, 5)
