"""The benchmarks of quality, on small budgets: their studies, their statistics, their tables and figures."""

import concurrent.futures
import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import comparing
import numpy as np
import psutil
import pytest
from ablations import AS_FOUND, FIRST, HELD, REPLAYS, intervals, parts, populations, replays
from compare import compare
from comparing import Budget, Cell, Outcome, finished, module_of, run_cell, run_cells
from contenders import BASELINE, CONTENDERS, Contender, pbt, tuned
from results_page import page
from summaries import table, write
from tables import needed, rows

import phyla
from effort import times
from facts import check_facts, raises
from phyla.strategies import Strategy


class Threads(ThreadPoolExecutor):
    """Runs in one thread of this process what is given to a pool of processes."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__(1)


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start none: those that run cells are in `test_what_was_found_is_not_run_again_...`."""
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", Threads)


PROBLEMS = ["fig2", "digits", "cartpole", "ring"]
SMALL = Budget(members=2, steps_per_trial=5, total_steps=20, grid={"h0": [0.0, 1.0]})


def without_time(outcome: Outcome) -> Outcome:
    return {name: value for name, value in outcome.items() if name != "process_s"}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_study_of_every_problem_repeats_exactly(problem: str) -> None:
    budget: Budget = module_of(problem).QUICK
    budget = replace(budget, members=2, total_steps=2 * budget.steps_per_trial)
    cell = Cell(problem=problem, label=BASELINE, strategy=pbt(budget), seed=3)
    outcome = run_cell(cell)
    assert outcome["spent"] == budget.all_steps
    assert np.isfinite([outcome["final"]["report"], outcome["final"]["tune"]]).all()
    assert without_time(run_cell(cell)) == without_time(outcome)
    assert replace(cell, seed=4).key != cell.key
    grid = phyla.GridSearch(module_of(problem).BUDGET.grid, 1)
    assert grid.population_size == module_of(problem).BUDGET.members


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.label)
def test_every_contender_spends_the_same_steps_with_every_option(contender: Contender) -> None:
    options = [*contender.options.values()]
    for make in options[: times(1, len(options))]:
        outcome = run_cell(Cell(problem="fig2", label=contender.label, strategy=make(SMALL), seed=1))
        # Of two members that never wait, one that copies the other may skip half of its own steps.
        assert 0.75 * SMALL.all_steps <= outcome["spent"] <= SMALL.all_steps


def test_what_was_found_is_not_run_again_and_a_line_that_is_cut_off_is(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cells = [Cell(problem="fig2", label="PBT", strategy=pbt(SMALL), seed=seed) for seed in range(2)]
    first = run_cells(cells, processes=1, folder=tmp_path)
    path = tmp_path / "fig2.jsonl"
    written = path.read_text()
    kept, last = filter(None, written.splitlines())
    assert run_cells(cells, folder=tmp_path) == first
    assert path.read_text() == written
    path.write_text(kept + "\n" + last[:40])
    assert len(finished("fig2", tmp_path)) == 1
    request.getfixturevalue("no_processes")
    again = run_cells(cells, processes=1, folder=tmp_path)
    assert [without_time(one) for one in again] == [without_time(one) for one in first]


@pytest.mark.usefixtures("no_processes")
def test_a_study_that_fails_is_told_and_the_others_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = phyla.GridSearch({"h0": [2.0]}, 20)
    cells = [
        Cell(problem="fig2", label="off the space", strategy=grid, seed=0),
        Cell(problem="fig2", label="PBT", strategy=pbt(SMALL), seed=0),
    ]
    with raises(SystemExit, "1 of 2 studies"):
        run_cells(cells, processes=1, folder=tmp_path)
    check_facts(capsys.readouterr().err, "seed 0")
    assert [one["label"] for one in finished("fig2", tmp_path).values()] == ["PBT"]


@pytest.mark.thorough
def test_a_comparison_that_is_killed_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    script = Path(comparing.__file__).with_name("compare.py")
    command = [sys.executable, str(script), "fig2", "--seeds", "60", "--folder", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not finished("fig2", tmp_path):
        assert process.poll() is None
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=180)
    assert not alive
    kept = set(finished("fig2", tmp_path))
    compare("fig2", seeds=1, folder=tmp_path)
    assert kept <= set(finished("fig2", tmp_path))


def outcomes(label: str, values: list[float], **more: Any) -> list[Outcome]:
    return [
        {"label": label, "seed": seed, "final": {"report": value, "tune": value}, "age": 5, "spent": 9, **more}
        for seed, value in enumerate(values)
    ]


def test_rows_compare_seed_by_seed() -> None:
    base = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    found = rows(
        [
            *outcomes("base", base),
            *outcomes("better", [value - 0.1 * (at + 1) for at, value in enumerate(base)]),
            *outcomes("same", base),
        ],
        "base",
        maximize=False,
    )
    first, better, same = found
    assert (first["median"], first["low"], first["high"], first["n"]) == (3.5, 2.25, 4.75, 6)
    assert "p" not in first
    assert (better["won"], better["lost"], better["p"]) == (6, 0, pytest.approx(2 / 2**6))
    assert better["p_holm"] == pytest.approx(2 * better["p"])
    assert (same["won"], same["lost"], same["p"], same["p_holm"]) == (0, 0, 1.0, 1.0)


def test_seeds_that_would_show_a_difference() -> None:
    """Differences of half their standard deviation: (1.960 + 0.842) ** 2 / 0.5 ** 2 = 31.4, times pi / 3."""
    gain = np.array([-0.5, 1.5] * 50) * np.sqrt(99 / 100)
    gain += 0.5 - gain.mean()
    assert gain.std(ddof=1) == pytest.approx(1.0)
    assert needed(gain) == 33
    assert needed(np.zeros(5)) == float("inf")
    assert needed(np.ones(5)) == 6


def test_tuning_takes_the_best_median_and_of_equals_the_earlier() -> None:
    contender = Contender(label="x", options=dict.fromkeys(("a", "b", "c"), pbt))
    values = [
        *outcomes("a", [1.0, 2.0, 90.0]),
        *outcomes("b", [0.0, 2.0, 3.0]),
        *outcomes("c", [1.0, 1.5, 80.0]),
    ]
    assert tuned(contender, values, maximize=False) == "c"
    assert tuned(contender, values, maximize=True) == "a"


@pytest.mark.thorough
def test_a_comparison_makes_tables_and_figures(tmp_path: Path) -> None:
    from figures import figures

    compare("digits", quick=True, folder=tmp_path)
    summary = json.loads((tmp_path / "digits.json").read_text())
    assert [row["label"] for row in summary["tables"][0]["rows"]] == [one.label for one in CONTENDERS]
    written = page(tmp_path)
    assert written.count("| " + BASELINE + " |") == 1
    found = figures(tmp_path)
    assert {"digits.svg", "why.svg", "quorum.svg"} <= set(found)
    for figure in found.values():
        assert ET.fromstring(figure).tag.endswith("svg")
        assert "nan" not in figure


def test_what_is_swept() -> None:
    assert len(parts(SMALL, phyla.Perturb(), phyla.Truncation(0.5))) == 6
    assert [one.steps_per_trial for one in map(as_pbt, intervals(SMALL).values())] == [5, 10]
    budget = replace(SMALL, total_steps=320)
    for same_total in (False, True):
        found = [as_pbt(strategy) for strategy in populations(budget, same_total=same_total).values()]
        assert [one.population_size for one in found] == [2, 4, 8, 16, 32]
        steps = {one.population_size * one.total_steps if same_total else one.total_steps for one in found}
        assert steps == {640 if same_total else 320}


def as_pbt(strategy: Strategy) -> phyla.PBT:
    assert isinstance(strategy, phyla.PBT)
    return strategy


@pytest.mark.usefixtures("no_processes")
def test_schedules_are_trained_again_with_fresh_seeds(tmp_path: Path) -> None:
    strategy = pbt(
        replace(SMALL, total_steps=100), exploit=phyla.Truncation(0.5), explore=phyla.strategies.Resample()
    )
    found = [run_cell(Cell(problem="fig2", label="PBT", strategy=strategy, seed=1))]
    assert len(found[0]["schedule"]["segments"]) > 2
    again = replays(found, SMALL, processes=1, folder=tmp_path)
    assert [one["label"] for one in again] == [AS_FOUND, HELD, FIRST]
    assert len(finished("fig2", tmp_path)) == 3 * REPLAYS
    # Nothing is random in this toy, so the schedule gives again what it gave.
    assert again[0]["final"]["report"] == pytest.approx(found[0]["final"]["report"], rel=1e-12)


def test_a_summary_is_read_back(tmp_path: Path) -> None:
    curve = [[10, 3.0], [20, 1.0]]
    found = outcomes("base", [1.0, 2.0], curve=curve) + outcomes("other", [2.0, 1.5], curve=curve)
    write("digits", "Title", "Text.", [table("Caption", found, "base", maximize=False)], folder=tmp_path)
    text = page(tmp_path)
    assert "## Title" in text
    assert "| other | 1.7500 | 1.6250 - 1.8750 | 1.00 | 148 | 5 | 9 |" in text
