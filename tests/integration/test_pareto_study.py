"""A study with a known Pareto front, from training to the report, and what wrong input gets."""

import json
import math
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import forked
import phyla
from facts import check_facts
from phyla.settings import child_environment

pytestmark = pytest.mark.xdist_group("pareto")
"""Its studies are made once, not by each process of tests."""

SOURCE = Path(phyla.__file__).parents[1]

STUDY_FILE = """
import json

import phyla


def train(trial):
    x = json.loads((trial.source.path / "x.json").read_text()) if trial.source else 3 * trial.seed / 2**31 - 1
    for _ in trial.steps():
        x += 0.5 * (trial.params["target"] - x)
    (trial.checkpoint_dir / "x.json").write_text(json.dumps(x))
    trial.report(f1=x**2, f2=(1 - x) ** 2, size=abs(x) * 10)


study = phyla.Study(
    "schaffer",
    {"target": phyla.Float(-1.0, 2.0)},
    OBJECTIVE,
    phyla.PBT(
        population_size=16, steps_per_trial=2, total_steps=20, exploit=phyla.strategies.ParetoTruncation(0.25)
    ),
    train,
    retries=phyla.Retries(broken=2),
)
"""
PARETO = 'phyla.Pareto(phyla.Minimize("f1"), phyla.Minimize("f2"))'


def run(folder: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    return forked.run(["-m", "phyla.cli", *words], cwd=folder, env=child_environment({"COLUMNS": "160"}))


def made(folder: Path, objective: str, **replaced: str) -> "subprocess.CompletedProcess[str]":
    text = STUDY_FILE.replace("OBJECTIVE", objective)
    for old, new in replaced.items():
        text = text.replace(old, new)
    (folder / "study.py").write_text(text)
    return run(folder, "run", "study.py", "--workers", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pareto")
    done = made(place, f'phyla.Constrained({PARETO}, subject_to=["size <= 8"])')
    assert done.returncode == 0, done.stderr
    assert "front " in done.stdout
    check_facts(done.stdout, "phyla best schaffer")
    return place


@pytest.fixture(scope="module")
def results(folder: Path) -> phyla.Results:
    return phyla.load_study("schaffer", home=folder / ".phyla")


def test_the_front_that_is_found_is_near_the_true_one(results: phyla.Results) -> None:
    front = results.front()
    assert results.counts() == {"completed": 16 * 10}
    # For x in [0, 1] neither goal can be had without the other: f2 = (1 - sqrt(f1))^2. The limit cuts at 0.8.
    found = sorted(math.sqrt(one.values["f1"]) for one in front)
    for one in front:
        assert one.values["f2"] == pytest.approx((1 - math.sqrt(one.values["f1"])) ** 2, abs=0.15)
        assert one.values["size"] <= 8
        assert json.loads((one.checkpoint.path / "x.json").read_text()) ** 2 == pytest.approx(one.values["f1"])
    assert found[0] < 0.15
    assert 0.6 < found[-1] <= 0.8
    assert max(later - earlier for earlier, later in pairwise(found)) < 0.3


def test_the_best_is_that_of_the_first_goal(results: phyla.Results) -> None:
    front = results.front()
    assert results.best == front[0]
    assert results.metric == "f1"
    assert [one.fitness for one in front] == sorted(one.values["f1"] for one in front)
    vectors = [(one.values["f1"], one.values["f2"]) for one in front]
    assert not any(a <= c and b <= d and (a, b) != (c, d) for a, b in vectors for c, d in vectors)


def test_every_value_is_exported(results: phyla.Results, folder: Path) -> None:
    rows: list[dict[str, Any]] = json.loads(run(folder, "export", "schaffer").stdout)
    assert len(rows) == 16 * 10
    for row in rows:
        assert row["criteria.f1"] == row["metrics.f1"] == row["fitness"]
        expected = None if row["criteria.size"] <= 8 else f"size {row['criteria.size']:g} > 8"
        assert row["infeasible"] == expected
    assert any(row["infeasible"] for row in rows)
    lineage = json.loads(run(folder, "export", "schaffer", "--what", "lineage").stdout)
    assert set(lineage["nodes"][0]["criteria"]["values"]) == {"f1", "f2", "size"}


def test_the_commands_show_the_front(results: phyla.Results, folder: Path) -> None:
    front = results.front()
    shown = run(folder, "best", "schaffer").stdout
    assert shown.startswith(
        f"Pareto front: minimize f1 and minimize f2, subject to size <= 8; {len(front)} trials"
    )
    rows = [line.split() for line in shown.splitlines() if str(results.places.checkpoint_root) in line]
    assert [int(row[0]) for row in rows[: len(front)]] == [one.trial for one in front]
    stored = json.loads(run(folder, "best", "schaffer", "--json").stdout)
    assert [one["trial"] for one in stored["front"]] == [one.trial for one in front]
    assert stored["trial"] == front[0].trial
    status = run(folder, "status", "schaffer").stdout
    assert f"{len(front) - 1} more on the Pareto front" in status
    status_json = json.loads(run(folder, "status", "schaffer", "--json").stdout)
    assert status_json["front"] == [one.trial for one in front]
    assert "infeasible: size" in run(folder, "trials", "schaffer").stdout
    explained = run(folder, "gc", "schaffer", "--explain").stdout
    assert "the Pareto front, at most 100 of it" in explained
    assert explained.count("on the Pareto front") >= 1


def test_the_report_shows_the_front(results: phyla.Results, tmp_path: Path) -> None:
    page = results.write_report(tmp_path / "report.html").read_text()
    assert "What are the trade-offs?" in page
    check_facts(page, "f1", "f2")
    check_facts(page, "f1", "f2", "&lt;=", "8")
    check_facts(page, "f2")
    assert all(str(one.checkpoint.path) in page for one in results.front())


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        (
            'phyla.Constrained(phyla.Maximize("f1"), subject_to=["size =< 8"])',
            "write a metric one of <= >= < and >",
        ),
        ('phyla.Pareto(phyla.Minimize("f1"))', "two or more goals"),
        ('phyla.WeightedSum({"f1": 0})', "0 weight"),
    ],
)
def test_a_wrong_objective_gets_one_clear_message(tmp_path: Path, objective: str, says: str) -> None:
    done = made(tmp_path, objective)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    check_facts(done.stderr, *says.split())


def test_an_exploit_rule_for_single_numbers_is_refused(tmp_path: Path) -> None:
    done = made(
        tmp_path, PARETO, **{"exploit=phyla.strategies.ParetoTruncation(0.25)": "exploit=phyla.Truncation(0.25)"}
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "PBT with Pareto" in done.stderr
    assert "exploit=ParetoTruncation()" in done.stderr


def test_a_metric_of_a_constraint_that_is_never_reported_is_an_error(tmp_path: Path) -> None:
    done = made(tmp_path, f'phyla.Constrained({PARETO}, subject_to=["memory_gb <= 8"])')
    assert done.returncode != 0
    assert "without reporting memory_gb, which the objective needs" in done.stdout + done.stderr


def test_where_nothing_is_feasible_there_is_no_best(tmp_path: Path) -> None:
    objective = f'phyla.Constrained({PARETO}, subject_to=["size < 0"])'
    assert made(tmp_path, objective, **{"total_steps=20": "total_steps=4"}).returncode == 0
    best = run(tmp_path, "best", "schaffer")
    assert best.returncode != 0
    assert "no completed trial that is feasible and has a finite fitness" in best.stderr
    assert "infeasible: size" in run(tmp_path, "trials", "schaffer", "--last", 1).stdout
    assert run(tmp_path, "report", "schaffer").returncode == 0
