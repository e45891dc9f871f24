"""Whole runs proposed by Optuna's samplers: translation, what they are shown, and that they learn."""

import itertools
import json
import math
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest

import forked
import phyla
from effort import rarely
from facts import raises
from phyla.errors import ConfigurationError
from phyla.integrations.optuna_search import SAMPLERS, Optuna, _frozen, _make_trials, view
from phyla.machine import Ended, Failure, TrainRules
from phyla.records import (
    JobKind,
    JobState,
    JsonObject,
    Maximize,
    Minimize,
    Objective,
    Report,
    StudyState,
    TrialRecord,
)
from phyla.settings import child_environment
from phyla.space import Choice, Float, Int, Ordinal, Parameter, Params, Space
from phyla.strategies import Divergence
from simulation import Simulation

PLANE = Space(x=Float(-5.0, 5.0), y=Float(-5.0, 5.0))
Fitness = Callable[[TrialRecord], float]


def bowl(trial: TrialRecord) -> float:
    x: Any = trial.params["x"]
    y: Any = trial.params["y"]
    return float((x - 2) ** 2 + (y + 3) ** 2)


def ran(
    strategy: Optuna,
    fitness: Fitness = bowl,
    *,
    space: Space = PLANE,
    objective: Objective | None = None,
    workers: int = 1,
    seed: int = 0,
    failure_rate: float = 0.0,
    broken: bool = False,
) -> list[TrialRecord]:
    rules = TrainRules(
        space=space,
        objective=objective or Minimize("Q"),
        strategy=strategy,
        max_attempts=1,
        max_broken=1000,
    )
    simulation = Simulation(rules, lambda parent, trial: (None, fitness(trial)), seed=seed)
    ended = simulation.run(workers, np.random.default_rng(seed), failure_rate=failure_rate)
    assert ended.state is StudyState.COMPLETED, ended.message
    with simulation.store.reader(simulation.study.id) as reader:
        return [trial for trial in reader.trials() if broken or trial.state is JobState.COMPLETED]


def distances(done: list[TrialRecord], fitness: Fitness = bowl) -> list[float]:
    return [math.sqrt(fitness(trial)) for trial in sorted(done, key=lambda trial: trial.id)]


@pytest.mark.parametrize(
    ("sampler", "maximise"),
    [
        ("tpe", False),
        ("tpe", True),
        ("gp", False),
        # Below: generation by generation.
        *(rarely(*case) for case in [("gp", True), ("cma-es", False), ("cma-es", True)]),
    ],
)
def test_samplers_that_learn_come_near_the_optimum(sampler: str, maximise: bool) -> None:
    sign = -1 if maximise else 1
    strategy = Optuna({"gp": 20, "tpe": 50, "cma-es": 80}[sampler], 1, sampler)
    objective = Maximize("Q") if maximise else Minimize("Q")
    far = distances(ran(strategy, lambda trial: sign * bowl(trial), objective=objective))
    assert np.mean(far[-8:]) < 0.45 * np.mean(far[:8])
    assert min(far) < 0.7


@pytest.mark.xdist_group("frameworks")
def test_a_package_that_optuna_does_without_is_not_warned_of() -> None:
    code = """
import sys

sys.modules["greenlet"] = None
sys.path.insert(0, sys.argv[1])
from test_optuna import Optuna, ran

assert len(ran(Optuna(12, 1, "gp"))) == 12
assert "optuna._gp.batched_lbfgsb" in sys.modules
"""
    here = Path(__file__).parent
    environment = child_environment({"PYTHONPATH": os.pathsep.join(sys.path)})
    done = forked.run(["-c", code, here], env=environment, frameworks=True)
    assert done.returncode == 0, done.stderr
    assert "greenlet" not in done.stdout + done.stderr


def test_cma_es_goes_on_where_it_was_generation_by_generation() -> None:
    # What broke counts in its generation, too.
    done = sorted(ran(Optuna(61, 1, "cma-es"), failure_rate=0.1, broken=True), key=lambda trial: trial.id)
    notes: list[Any] = [trial.reason["optuna"] for trial in done]
    generations = [note.get("attributes", {}).get("cma:generation") for note in notes]
    assert generations[0] is None
    assert generations[1:] == sorted(generations[1:])
    assert max(generations[1:]) >= 8
    counts = Counter(generations[1:])
    assert set(list(counts.values())[:-1]) <= {6, 7, 8}
    spread = [float(np.std([float(str(t.params["x"])) for t in part])) for part in (done[1:13], done[-12:])]
    assert spread[1] < 0.5 * spread[0]
    assert min(distances([trial for trial in done if trial.state is JobState.COMPLETED])) < 0.7
    assert "optimizer" not in json.dumps([dict(trial.reason) for trial in done])


def test_a_pickle_that_was_written_into_the_store_is_never_loaded(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "harm"),)

    strategy = Optuna(8, 1, "cma-es")
    noted: JsonObject = {
        "optuna": {"attributes": {"cma:generation": 0, "cma:optimizer:0": pickle.dumps(Harmful()).hex()}}
    }
    stored = [replace(trial, reason=noted) for trial in ran(strategy)]
    history: Any = SimpleNamespace(ended=lambda step: stored, unfinished=list)
    shown, _ = _make_trials(history, 1, PLANE)
    assert shown[0].system_attrs == {"cma:generation": 0}
    strategy._make_study(shown, PLANE, 1).ask().suggest_float("x", -5.0, 5.0)
    assert not (tmp_path / "harm").exists()


def test_the_state_of_cma_es_that_is_computed_again_is_the_one_optuna_kept() -> None:
    def newest(study: optuna.Study) -> Any:
        kept = [
            "".join(value for key, value in trial.system_attrs.items() if ":optimizer:" in key)
            for trial in study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
        ]
        return pickle.loads(bytes.fromhex([one for one in kept if one][-1]))  # noqa: S301  # Optuna's own

    def objective(trial: optuna.Trial) -> float:
        x, y = (trial.suggest_float(name, -5.0, 5.0) for name in "xy")
        return -((x - 2) ** 2) - (y + 3) ** 2

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    native = optuna.create_study(direction="maximize", sampler=optuna.samplers.CmaEsSampler(seed=1))
    native.optimize(objective, n_trials=40)
    shown = [
        _frozen(PLANE, trial.params, trial.value, {"cma:generation": trial.system_attrs.get("cma:generation")})
        for trial in native.trials
    ]
    ours, theirs = newest(Optuna(1, 1, "cma-es")._make_study(shown, PLANE, 7)), newest(native)
    assert ours.generation == theirs.generation >= 5
    assert ours.mean == pytest.approx(theirs.mean)
    assert ours._sigma == pytest.approx(theirs._sigma)
    assert pytest.approx(theirs._C) == ours._C


def test_stopped_runs_are_shown_as_the_worst_and_avoided() -> None:
    def half(trial: TrialRecord) -> float:
        return math.nan if float(str(trial.params["x"])) > 0 else 1.0

    rules = TrainRules(
        space=Space(x=Float(-5.0, 5.0)),
        objective=Minimize("Q"),
        strategy=Optuna(40, 1, "tpe"),
        stopping=(Divergence(),),
        max_stops=100,
    )
    simulation = Simulation(rules, lambda parent, trial: (None, half(trial)))
    while True:
        claimed, rest = simulation.controller.claim("w")
        if isinstance(rest, Ended):
            break
        trial = claimed[0].trial
        if not simulation.controller.report(trial.id, 1, [Report(1, {"Q": half(trial)})]).cancelled:
            simulation.controller.complete([simulation.completion(trial)])
    with simulation.store.reader(simulation.study.id) as reader:
        ended = list(reader.trials())
    stopped = [trial for trial in ended if trial.stop_reason is not None]
    assert len(ended) - len(stopped) == 40
    notes: list[Any] = [trial.reason["optuna"] for trial in ended]
    assert [note["finished"] + note.get("broken or stopped", 0) for note in notes] == list(range(len(ended)))
    assert notes[-1].get("broken or stopped", 0) >= len(stopped) - 1
    # A sampler that is not shown them draws every second one from where all are stopped.
    early, late = ended[:12], ended[-24:]
    assert sum(trial in stopped for trial in early) >= 4
    assert sum(trial in stopped for trial in late) <= 4


@pytest.mark.parametrize(
    ("sampler", "members"),
    [*itertools.product(SAMPLERS, [8]), ("tpe", 16), rarely("gp", 16), rarely("cma-es", 16)],
)
def test_replacements_leave_where_runs_always_break(sampler: str, members: int) -> None:
    rules = TrainRules(
        space=Space(lr=Float(1e-3, 2.0, log=True)),
        objective=Minimize("Q"),
        strategy=Optuna(members, 1, sampler, {"n_startup_trials": 4} if sampler in ("gp", "tpe") else {}),
        max_attempts=1,
        max_broken=8,
    )
    simulation = Simulation(rules, lambda parent, trial: (None, -float(str(trial.params["lr"]))))
    rest = None
    while not isinstance(rest, Ended):
        claimed, rest = simulation.controller.claim("w")
        for work in claimed:
            if float(str(work.trial.params["lr"])) > 0.2:
                simulation.controller.fail(Failure(job=work.trial.id, token=1, error="out of memory"))
            else:
                simulation.controller.complete([simulation.completion(work.trial)])
    assert rest.state is StudyState.COMPLETED, rest.message


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_runs_in_pieces_with_many_workers_and_broken_trials(sampler: str) -> None:
    members = 14
    strategy = Optuna(members, 10, sampler, steps_per_trial=4)
    done = ran(strategy, workers=3, failure_rate=0.2)
    assert Counter(trial.member for trial in done) == dict.fromkeys(range(members), 3)
    for member in range(members):
        own = [trial for trial in done if trial.member == member]
        assert len({str(trial.params) for trial in own}) == 1
        assert len({json.dumps(trial.reason["optuna"], sort_keys=True) for trial in own}) == 1
    starts: list[Any] = [trial.reason["optuna"] for trial in done if trial.generation == 0]
    assert {note["sampler"] for note in starts} == {sampler}
    assert max(note["running"] for note in starts) == 2
    assert max(note["finished"] for note in starts) >= members - 3


def test_runs_that_break_late_and_are_given_up_are_shown_as_the_worst() -> None:
    rules = TrainRules(
        space=Space(x=Float(-5.0, 5.0)),
        objective=Minimize("Q"),
        strategy=Optuna(20, 2, steps_per_trial=1),
        max_attempts=1,
        max_broken=1000,
    )
    simulation = Simulation(rules, lambda parent, trial: (None, 1.0))
    rest = None
    while not isinstance(rest, Ended):
        claimed, rest = simulation.controller.claim("w")
        for work in claimed:
            if work.trial.generation and float(str(work.trial.params["x"])) > 0:
                simulation.controller.fail(Failure(job=work.trial.id, token=1, error="out of memory"))
            else:
                simulation.controller.complete([simulation.completion(work.trial)])
    with simulation.store.reader(simulation.study.id) as reader:
        started = [trial for trial in reader.trials() if trial.generation == 0]
    notes: list[Any] = [trial.reason["optuna"] for trial in started]
    assert [note["finished"] + note.get("broken or stopped", 0) for note in notes] == list(range(20))
    broke = [float(str(trial.params["x"])) > 0 for trial in started]
    assert [note.get("broken or stopped", 0) for note in notes] == [sum(broke[:place]) for place in range(20)]
    assert sum(broke) >= 4


@pytest.mark.parametrize("step", [0, 1000])
def test_a_run_is_finished_after_all_its_steps_wherever_it_started(tmp_path: Path, step: int) -> None:
    (tmp_path / "w.txt").write_text("1")

    def train(trial: phyla.Trial) -> None:
        assert trial.source is not None
        for _ in trial.steps():
            pass
        (trial.checkpoint_dir / "w.txt").write_text(str(trial.end_step))
        trial.report(Q=0.0)

    start = [phyla.StartFrom(tmp_path / "w.txt", step=step)] * 3
    strategy = Optuna(3, 20, steps_per_trial=5)
    study = phyla.Study("runs", PLANE, Minimize("Q"), strategy, train, start_from=start, home=tmp_path / "home")
    trials = [trial for trial in study.run().trials() if trial.kind is JobKind.TRAIN]
    notes: list[Any] = [trial.reason["optuna"] for trial in trials]
    assert [note["finished"] for note in notes] == [0] * 4 + [1] * 4 + [2] * 4


def sparse(params: Params) -> bool:
    return bool(params["kind"] == "sgd" or params["width"] >= 4)


CONDITIONAL = Space(
    kind=Choice(["sgd", "adam", None]),
    opt={
        "lr": Float(1e-4, 1.0, log=True),
        "momentum": Float(0.0, 0.9, step=0.1, when={"/kind": "sgd"}),
        "beta": Float(0.001, 0.5, log=True, step=0.001, when={"/kind": "adam"}),
    },
    width=Int(1, 9, step=2),
    depth=Int(1, 64, log=True),
    size=Ordinal([16, 64, 256]),
    constraints=[sparse],
    initial=[{"kind": "adam", "width": 5}],
)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_conditional_nested_and_constrained_spaces(sampler: str) -> None:
    def fitness(trial: TrialRecord) -> float:
        return math.nan if trial.seed % 5 == 0 else abs(math.log10(float(str(trial.params["opt/lr"]))) + 2)

    members, early = (7, {"n_startup_trials": 5}) if sampler == "gp" else (15, {})
    done = ran(Optuna(members, 1, sampler, early), fitness, space=CONDITIONAL, workers=2)
    assert all(CONDITIONAL.contains(trial.params) for trial in done)
    assert len({str(trial.params) for trial in done}) > members - 3
    first = min(done, key=lambda trial: trial.member)
    assert (first.params["kind"], first.params["width"]) == ("adam", 5)
    assert "optuna" not in first.reason


def never(params: Params) -> bool:
    return bool(params["x"] > 4.5)


def test_what_constraints_mostly_reject_is_drawn_from_the_priors() -> None:
    space = Space(x=Float(0.0, 5.0), constraints=[never])
    done = ran(Optuna(4, 1, "cma-es"), lambda trial: 1.0, space=space)
    assert all(float(str(trial.params["x"])) > 4.5 for trial in done)


@pytest.mark.parametrize(
    "parameter",
    [
        Float(-1.0, 2.5),
        Float(1e-5, 10.0, log=True),
        Float(0.9, 0.9999, log="1-x"),
        Float(0.0, 0.9, step=0.1),
        Float(0.1, 1.0, log=True, step=0.1),
        Int(-3, 9),
        Int(0, 30, step=5),
        Int(1, 100, log=True),
        Int(2, 20, log=True, step=3),
        Choice([True, "a", 0, None, 2.5]),
        Ordinal([8, 16, 64]),
    ],
    ids=repr,
)
def test_values_survive_the_translation_and_stay_in_the_distribution(parameter: Parameter) -> None:
    rng = np.random.default_rng(0)
    told: Any
    told, write, read = view(parameter)
    for _ in range(200):
        value = parameter.draw(rng)
        there = write(value)
        assert told._contains(told.to_internal_repr(there))
        back = read(there)
        assert type(back) is type(value)
        assert back == pytest.approx(value) if isinstance(value, float) else back == value


def test_running_members_count_so_that_nothing_is_suggested_twice() -> None:
    space = Space(x=Float(-5.0, 5.0))
    strategy = Optuna(24, 1, "gp", {"n_startup_trials": 4})
    rules = TrainRules(space=space, objective=Minimize("Q"), strategy=strategy)
    simulation = Simulation(rules, lambda parent, trial: (None, float(str(trial.params["x"])) ** 2))
    for _ in range(8):
        claimed, _ = simulation.controller.claim("w")
        simulation.controller.complete([simulation.completion(claimed[0].trial)])
    at_once, _ = simulation.controller.claim("w", 6)
    points = sorted(float(str(work.trial.params["x"])) for work in at_once)
    assert min(b - a for a, b in itertools.pairwise(points)) > 1e-3
    notes: list[Any] = [work.trial.reason["optuna"] for work in at_once]
    assert [note["running"] for note in notes] == list(range(6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Optuna(0, 1), "Optuna(members=0)"),
        (lambda: Optuna(1, 5, steps_per_trial=6), "a trial may not be longer"),
        (lambda: Optuna(1, 1, "annealing"), "tpe gp cma-es"),
        (lambda: Optuna(1, 1, "tpe", {"seed": 3}), "seed"),
        (lambda: Optuna(1, 1, "tpe", {"sigma": 3}), "sigma 3}"),
    ],
)
def test_settings_that_make_no_sense(make: Callable[[], Any], message: str) -> None:
    with raises(ConfigurationError, *message.split()):
        make()


@pytest.mark.parametrize(
    ("sampler", "package", "how"),
    [
        ("tpe", "optuna", 'pip install "phyla'),
        ("cma-es", "cmaes", 'pip install "phyla'),
        ("gp", "torch", 'pip install "phyla'),
    ],
)
def test_what_is_not_installed_is_named(
    sampler: str, package: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with raises(ConfigurationError, *how.split()):
        Optuna(1, 1, sampler)
