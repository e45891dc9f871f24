"""Strategies and their rules are checked when a study is made: what they are, and what they use of the space."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import phyla
from facts import check_facts, raises
from phyla.cli.app import run_app
from phyla.errors import ConfigurationError, SpaceError, StudyChanged
from phyla.space import Params
from phyla.strategies import Explored, ExplorePipeline, StoppingRule, Strategy
from phyla.study import Places

PERTURB: Any = phyla.Perturb
"""The class, which is no rule."""

TEXT: Any = "perturb"
NOTHING: Any = None

RUN = Path(__file__).parents[3] / "docs" / "how-to" / "run.md"

LR = phyla.Float(0.001, 0.1)


def light(params: Params) -> bool:
    return bool(params["lr"] * params["width"] < 0.1)


LIMITED = phyla.Space(lr=LR, width=phyla.Int(1, 9), constraints=[light])


def study(strategy: Strategy, space: phyla.Space | None = None, **options: Any) -> phyla.Study:
    return phyla.Study("checked", space or phyla.Space(lr=LR), phyla.Minimize("loss"), strategy, **options)


def pbt(**settings: Any) -> phyla.PBT:
    return phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2, **settings)


def median(values: Any, objective: Any) -> float:
    return float(sorted(values)[len(values) // 2])


def again(lr: float, **changes: Any) -> dict[str, Any]:
    return {"trial": 1, "start_step": 0, "end_step": 5, "seed": 3, "params": {"lr": lr}} | changes


@pytest.mark.parametrize(
    ("strategy", "space", "match"),
    [
        (
            phyla.strategies.FixedSchedule([(0, {"lr": 0.01}), (100, {"lr": 0.5})], 200),
            None,
            "FixedSchedule( 1 step 100 lr 0.5}",
        ),
        (
            phyla.strategies.FixedSchedule([(0, {"lr": 0.01, "width": 1}), (5, {"lr": 0.02})], 10),
            LIMITED,
            "1 step 5 lr 0.02}",
        ),
        (phyla.strategies.FixedSchedule([(0, {"lrr": 0.01})], 10), None, "0 lrr lr"),
        (
            phyla.strategies.FixedSchedule([(0, {"lr": 0.1, "width": 1})], 10),
            LIMITED,
            "entry 0 constraint light does not",
        ),
        (phyla.GridSearch({"lrr": [0.1]}, 10), None, "GridSearch( lrr 0.1} lr"),
        (phyla.GridSearch({"lr": [0.1, 0.2]}, 10), None, "1 lr 0.2}"),
        (phyla.GridSearch({"lr": [0.01, 0.1], "width": [1, 5]}, 10), LIMITED, "2 lr 0.1 width 1}"),
        (phyla.GridSearch({"lr": [0.01, 0.1]}, 10), LIMITED, "lr 0.1}"),
        (phyla.GridSearch({"width": [3]}, 10), None, "0 width 3}"),
        (
            phyla.strategies.Replay(trials=[again(0.1), again(7.0, trial=9, start_step=5, end_step=9)]),
            None,
            "Replay( 1 trial 9 step 5 7.0",
        ),
    ],
)
def test_values_that_the_space_does_not_allow(strategy: Strategy, space: phyla.Space | None, match: str) -> None:
    with raises(SpaceError, *match.split()) as refused:
        study(strategy, space)
    assert "initial" not in str(refused.value)


def test_values_that_the_space_allows() -> None:
    study(phyla.strategies.FixedSchedule([(0, {"lr": 0.01}), (100, {"lr": 0.1})], 200))
    study(phyla.GridSearch({"lr": [0.1, 0.01]}, 10))
    study(phyla.GridSearch({"width": [1, 9]}, 10), LIMITED)
    study(phyla.strategies.Replay(trials=[again(0.1)]))
    added = phyla.Space(lr=LR, width=phyla.Int(1, 9, default=3))
    study(phyla.strategies.FixedSchedule([(0, {"lr": 0.01})], 10), added)


@pytest.mark.parametrize(
    ("before", "after", "fixed"),
    [
        (phyla.GridSearch({"lr": [0.1, 0.2]}, 10), phyla.GridSearch({"lr": [0.1, 0.3]}, 10), "grid"),
        (phyla.RandomSearch(2, 10), phyla.RandomSearch(3, 10), "members"),
    ],
)
def test_settings_of_a_strategy_that_never_change_are_not_said_to_change(
    tmp_path: Path, before: Any, after: Any, fixed: str
) -> None:
    def made(strategy: Any) -> phyla.Study:
        return phyla.Study("fixed", {"lr": phyla.Float(0.1, 0.5)}, phyla.Maximize("q"), strategy, home=tmp_path)

    made(before).results()
    with pytest.raises(ConfigurationError) as refused:
        made(after).change()
    told, _, can_change = str(refused.value).partition("What can change: ")
    assert f"strategy.{fixed}" in told
    assert re.search(rf"settings of the strategy, but not its kind, .*\b{fixed}\b", can_change)
    assert re.search(rf"are fixed, and so are .*`{fixed}` of", RUN.read_text(), re.DOTALL)


def test_a_study_is_not_extended_with_values_that_the_space_does_not_allow(tmp_path: Path) -> None:
    def made(high: float, **options: Any) -> phyla.Study:
        return study(
            phyla.strategies.FixedSchedule([(0, {"lr": 0.01}), (5, {"lr": high})], 10), home=tmp_path, **options
        )

    trial = made(0.02).ask()
    assert trial is not None
    with raises(SpaceError, "step 5"):
        made(0.2)
    with raises(SpaceError, "step 5"):
        made(0.2).change()
    other = made(0.03)
    other.change()
    assert other.ask() is None


FILE = """
import phyla

study = phyla.Study(
    "checked", {"lr": phyla.Float(0.001, 0.1)}, phyla.Minimize("loss"), phyla.GridSearch({"lr": [0.1, 0.2]}, 10)
)
"""


@pytest.mark.parametrize("command", ["run", "change"])
def test_the_command_line_says_so_in_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "checked.py"
    file.write_text(FILE)
    monkeypatch.setattr(sys, "argv", ["phyla", command, str(file), "--home", str(tmp_path / "home")])
    with pytest.raises(SystemExit) as ended:
        run_app()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    check_facts(told, "line 4", "SpaceError", "GridSearch(grid=...)", "{'lr': 0.2}")
    assert "Traceback" not in told
    assert not (tmp_path / "home").exists()


@dataclass(frozen=True)
class Halve:
    """A rule of a third party that names a parameter."""

    name: str

    def propose(self, source: Any, population: Any, context: Any) -> Explored | None:
        return None

    def check_space(self, space: phyla.Space) -> None:
        if self.name not in space.parameters:
            raise SpaceError(f"Halve(name={self.name!r}): there is no such parameter")


@dataclass(frozen=True)
class StopLarge(StoppingRule):
    """The same, a stopping rule."""

    name: str
    marks_every: int | None = None
    history: int = 0

    def judge(self, reported: Any, others: Any) -> None:
        return

    check_space = Halve.check_space


@pytest.mark.parametrize(
    "make",
    [
        lambda rule: study(
            pbt(
                explore=ExplorePipeline(
                    [phyla.strategies.Resample(probability=0.1), phyla.strategies.Crossover(then=rule)]
                )
            )
        ),
        lambda rule: study(phyla.RandomSearch(1, 1), stopping=StopLarge(rule.name)),
    ],
)
def test_rules_deep_in_a_strategy_are_asked_too(make: Callable[[Halve], phyla.Study]) -> None:
    make(Halve("lr"))
    with raises(SpaceError, "Halve(name=", "decay"):
        make(Halve("decay"))


def test_a_grid_without_parameters_says_what_to_use() -> None:
    with raises(ConfigurationError, "RandomSearch(members=1"):
        phyla.GridSearch({}, 10)


@pytest.mark.parametrize(
    ("strategy", "match"),
    [
        (phyla.PBT, "strategy=PBT PBT(population_size= steps_per_trial= total_steps="),
        (phyla.RandomSearch, "strategy=RandomSearch RandomSearch(members= total_steps="),
        (3, "strategy=3 population_size"),
        (phyla.Truncation(), "population_size quorum"),
        (pbt(exploit=phyla.Truncation), "PBT(exploit=...) Truncation()"),
        (pbt(explore=phyla.Perturb), "PBT(explore=...)"),
        (pbt(fitness=phyla.strategies.MeanOfLast), "PBT(fitness=...) MeanOfLast MeanOfLast(k=...)"),
        (pbt(fitness=phyla.FromSuite), "FromSuite(suite=...)"),
        (
            pbt(explore=phyla.strategies.ExplorePipeline([phyla.strategies.Resample(probability=0.5), PERTURB])),
            "ExplorePipeline(rules=...)",
        ),
        (pbt(explore=phyla.strategies.Crossover(then=PERTURB)), "Crossover(then=...)"),
    ],
)
def test_what_is_no_strategy_and_classes_in_place_of_objects(strategy: Any, match: str) -> None:
    with raises(ConfigurationError, *match.split()):
        study(strategy)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: pbt(exploit="t-test"), "PBT(exploit= t-test"),
        (lambda: pbt(exploit=phyla.Perturb()), "PBT(exploit=Perturb("),
        (lambda: pbt(explore="perturb"), "PBT(explore= perturb Perturb() ExploreWith(function)"),
        (lambda: pbt(explore=lambda params, rng: params), "it has no propose"),
        (lambda: pbt(fitness=TEXT), "PBT(fitness= perturb Last()"),
        (lambda: phyla.RandomSearch(1, 1, fitness=TEXT), "RandomSearch(fitness= perturb"),
        (lambda: phyla.strategies.ExploitPipeline([TEXT]), "ExploitPipeline(rules= perturb"),
        (lambda: phyla.strategies.ExplorePipeline([TEXT]), "ExplorePipeline(rules= perturb"),
        (lambda: phyla.strategies.Crossover(then=TEXT), "Crossover(then= perturb"),
        (lambda: phyla.strategies.PB2(fallback=NOTHING), "PB2(fallback=None)"),
        (lambda: phyla.strategies.PB2(fallback=TEXT), "PB2(fallback= perturb"),
        (
            lambda: phyla.InitiatorPBT(population_size=1, steps_per_trial=1, total_steps=1, explore=TEXT),
            "InitiatorPBT(explore= perturb",
        ),
    ],
)
def test_what_is_no_rule_is_refused_before_a_worker_needs_it(make: Callable[[], Any], match: str) -> None:
    with raises(ConfigurationError, *match.split()):
        study(make())


def test_other_classes_in_place_of_objects() -> None:
    with raises(ConfigurationError, "Divergence"):
        study(phyla.RandomSearch(1, 1), stopping=phyla.strategies.Divergence)
    objective: Any = phyla.Minimize
    with raises(ConfigurationError, "Maximize(", "accuracy"):
        phyla.Study("checked", {"lr": LR}, objective, phyla.RandomSearch(1, 1))


def test_functions_and_classes_that_are_no_plug_ins_are_settings() -> None:
    maker: Any = dict
    study(pbt(fitness=median, explore=phyla.strategies.ExploreWith(maker)))


def test_a_space_that_became_narrower_is_a_changed_study_that_cannot_be_extended(tmp_path: Path) -> None:
    study(pbt(), home=tmp_path, train=print).ask()
    narrower = study(pbt(), phyla.Space(lr=phyla.Float(0.001, 0.05)), home=tmp_path, train=print)
    with raises(StudyChanged, "lr", "high", 0.1, 0.05):
        narrower.ask()


THREE = phyla.Space(lr=phyla.Float(0.0, 1.0), initial=[{"lr": 0.3}, {"lr": 0.2}, {"lr": 0.1}])


@pytest.mark.parametrize(
    "strategy",
    [
        phyla.RandomSearch(members=2, total_steps=1),
        pbt(),
        phyla.ASHA(members=2, total_steps=4, min_steps=2, reduction_factor=2),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_a_starting_point_for_no_member_is_refused(strategy: Any) -> None:
    members = strategy.population_size
    first = f"{{'lr': {0.3 - members / 10:.1f}}}"
    with raises(SpaceError, "3 starting points", members, first):
        study(strategy, THREE)


@pytest.mark.parametrize(
    "strategy",
    [
        phyla.RandomSearch(members=3, total_steps=1),
        phyla.GridSearch({"lr": [0.5, 0.6]}, total_steps=1),
        phyla.strategies.FixedSchedule([(0, {"lr": 0.5})], 3),
        phyla.strategies.SingleWorkerExplore(explore_steps=1, exploit_steps=1, total_steps=9),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_starting_points_for_members_are_taken(strategy: Any) -> None:
    assert study(strategy, THREE).rules.space is THREE


@pytest.mark.parametrize("place", [r"C:\runs\study", "d:/runs", r"\\server\runs", "file:///runs"])
@pytest.mark.parametrize("name", ["home", "checkpoints"])
def test_places_of_other_systems_are_refused(name: str, place: str) -> None:
    with raises(ConfigurationError, f"{name}={place!r}"):
        Places.of(**{name: place})
    with raises(ConfigurationError, "Windows"):
        Places.of(storage=r"sqlite:///C:\runs\s.db")
    assert Places.of(storage="sqlite:///a/s.db").storage == "sqlite:///a/s.db"
