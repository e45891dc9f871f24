"""Numbers that make no sense are refused in a sentence; what is accepted can be trained."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phyla
from command_line import Phyla
from facts import check_facts, raises
from phyla.errors import ConfigurationError, UsageError

EXTREME = (0, -1, 2**31, 2**62, 2**63, 10**12, 10**30, math.nan, math.inf, -math.inf, True, "4", None, 0.5)

SPACE = {"lr": phyla.Float(0.1, 1.0)}
LENGTHS: dict[str, Any] = {"steps_per_trial": 1, "total_steps": 4}

MAKERS: dict[Callable[..., Any], tuple[dict[str, Any], tuple[str, ...]]] = {
    phyla.PBT: (
        {"population_size": 2, **LENGTHS},
        (
            "population_size",
            "steps_per_trial",
            "total_steps",
            "ready_interval",
            "burn_in",
            "min_scores",
            "quorum",
        ),
    ),
    phyla.RandomSearch: ({"members": 2, **LENGTHS}, ("members", "total_steps", "steps_per_trial")),
    phyla.GridSearch: ({"grid": {"lr": [0.5]}, **LENGTHS}, ("total_steps", "steps_per_trial")),
    phyla.InitiatorPBT: (
        {"population_size": 4, **LENGTHS},
        ("population_size", "total_steps", "steps_per_trial"),
    ),
    phyla.ASHA: (
        {"members": 3, "total_steps": 3, "min_steps": 1},
        ("members", "total_steps", "min_steps", "reduction_factor", "quorum"),
    ),
    phyla.strategies.SingleWorkerExplore: (
        {"explore_steps": 1, "exploit_steps": 1, "total_steps": 9},
        ("explore_steps", "exploit_steps", "total_steps", "factor"),
    ),
    phyla.strategies.FixedSchedule: (
        {"schedule": [(0, {"lr": 0.5})], "total_steps": 4},
        ("total_steps", "members", "steps_per_trial"),
    ),
}
OPTIONS: dict[str, Any] = {
    "seed": lambda value: {"seed": value},
    **{
        name: lambda value, name=name: {"retries": phyla.Retries(**{name: value})}
        for name in ("attempts", "broken", "stops")
    },
    **{
        name: lambda value, name=name: {"retention": phyla.Retention(**{name: value})}
        for name in ("best", "front", "every_steps")
    },
}
CASES = [(maker, name, value) for maker, (_, names) in MAKERS.items() for name in names for value in EXTREME]


def asked(home: Path, name: str, strategy: Any, **options: Any) -> None:
    study = phyla.Study(name, SPACE, phyla.Maximize("score"), strategy, home=home, **options)
    trial = study.ask()
    assert trial is not None
    (trial.checkpoint_dir / "weights").write_text("w")
    study.tell(trial, metrics={"score": 1.0})


def test_a_strategy_takes_an_extreme_number_or_says_why_not(tmp_path: Path) -> None:
    for number, (maker, name, value) in enumerate(CASES):
        settings, _ = MAKERS[maker]
        try:
            strategy = maker(**{**settings, name: value})
        except UsageError as error:
            told = str(error)
        else:
            told = name
            asked(tmp_path, f"s{number}", strategy)
        assert name in told, (maker, name, value)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_study_takes_an_extreme_number_or_says_why_not(tmp_path: Path, name: str) -> None:
    for number, value in enumerate(EXTREME):
        told = name
        try:
            asked(tmp_path, f"s{number}", phyla.PBT(population_size=2, **LENGTHS), **OPTIONS[name](value))
        except ConfigurationError as error:
            told = str(error)
        assert name in told


@pytest.mark.parametrize("name", ["lease_s", "stall_timeout_s"])
def test_a_run_takes_an_extreme_number_or_says_why_not(tmp_path: Path, name: str) -> None:
    def train(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "weights").write_text("w")
        trial.report(score=1.0)

    for number, value in enumerate(EXTREME):
        strategy = phyla.PBT(population_size=1, steps_per_trial=4, total_steps=4)
        study = phyla.Study(f"s{number}", SPACE, phyla.Maximize("score"), strategy, train, home=tmp_path)
        told = name
        try:
            given: Any = {name: value}
            study.run(**given)
        except ConfigurationError as error:
            told = str(error)
        assert name in told


@pytest.mark.parametrize("kind", [phyla.Float, phyla.Int])
@given(data=st.data())
def test_a_parameter_takes_extreme_bounds_or_says_why_not(kind: Any, data: Any) -> None:
    values = st.sampled_from(EXTREME)
    low, high = data.draw(values), data.draw(values)
    options = {name: data.draw(values) for name in data.draw(st.sets(st.sampled_from(["step", "initial", "log"])))}
    try:
        space = phyla.Space(p=kind(low, high, **options))
    except phyla.PhylaError:
        return
    strategy = phyla.PBT(population_size=2, **LENGTHS)
    study = phyla.Study("bounds", space, phyla.Maximize("score"), strategy, storage="memory://")
    trial = study.ask()
    assert trial is not None
    assert space.parameters["p"].check(trial.params["p"]) == trial.params["p"]


@given(
    maker=st.sampled_from(
        [
            phyla.Truncation,
            phyla.Perturb,
            phyla.strategies.Resample,
            phyla.strategies.TTest,
            phyla.strategies.PB2,
            phyla.MedianStopping,
            phyla.Policy,
        ]
    ),
    data=st.data(),
)
def test_rules_take_extreme_numbers_or_say_why_not(maker: Any, data: Any) -> None:
    import inspect

    name = data.draw(st.sampled_from(sorted(inspect.signature(maker).parameters)))
    try:
        maker(**{name: data.draw(st.sampled_from(EXTREME))})
    except phyla.PhylaError:
        return


FILE = """\
import phyla

def train(trial):
    pass

study = phyla.Study("extreme", {{"lr": {space}}}, phyla.Maximize("score"), {strategy}, train{options})
"""
PBT = "phyla.PBT(population_size=2, steps_per_trial=1, total_steps=4)"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": ", seed=2**63"}, "seed=9223372036854775808 0 2**63"),
        (
            {"options": ", retries=phyla.Retries(attempts=10**30)"},
            "Retries(attempts=1000000000000000000000000000000)",
        ),
        ({"options": ", retries=phyla.Retries(attempts='4')"}, "Retries(attempts= 4"),
        ({"options": ", retention=phyla.Retention(best=0)"}, "Retention(best=0)"),
        ({"options": ", retries=3"}, "retries=3 phyla.Retries(...)"),
        ({"space": "phyla.Int(0, 2**80)"}, "the bounds must fit in 64 bits"),
        ({"strategy": PBT.replace("population_size=2", "population_size=10**12")}, "1,000,000"),
        (
            {"strategy": PBT.replace("steps_per_trial=1", "steps_per_trial=2**62")},
            "PBT(steps_per_trial=4611686018427387904)",
        ),
        ({"strategy": PBT.replace("total_steps=4", "total_steps=2**63")}, "9,007,199,254,740,992"),
        ({"strategy": PBT.replace("population_size=2", "population=2")}, "population_size"),
        ({"options": ", retry=phyla.Retries()"}, "retries"),
        ({"space": "phyla.Float(lo=0.1, high=1)"}, "low"),
        ({"space": "phyla.Float(0.1)"}, "1 high"),
    ],
)
def test_a_study_file_names_its_line_and_what_is_wrong(
    cli: Phyla, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "study.py"
    file.write_text(FILE.format(**{"space": "phyla.Float(0.1, 1.0)", "strategy": PBT, "options": "", **changes}))
    told = cli("run", file, code=2)
    assert f"{file}, line 6:" in told
    check_facts(told, *words.split())


def test_who_catches_a_type_error_still_does(tmp_path: Path) -> None:
    with raises(TypeError, "quantile"):
        phyla.Truncation(quantil=0.2)  # type: ignore[call-arg]
