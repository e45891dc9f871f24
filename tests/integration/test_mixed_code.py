"""Workers of one study that have imported different versions of the user's code."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

import forked
import phyla
from facts import check_facts
from phyla.study.results.findings import Finding

STUDY = """
import phyla
from rules import Halve, allowed


def train(trial):
    import model

    (trial.checkpoint_dir / "weights.txt").write_text("1")
    trial.report(score=trial.params["lr"])


study = phyla.Study(
    "mixed",
    phyla.Space({"lr": phyla.Float(1e-6, 1.0)}, constraints=[allowed]),
    phyla.Maximize("score"),
    phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2, explore=Halve()),
    train,
)
"""
RULES = """
from dataclasses import dataclass

from phyla.strategies.explore import Explored

FACTOR = 0.5


@dataclass(frozen=True)
class Halve:
    def propose(self, source, population, context):
        return Explored(params={"lr": source.params["lr"] * FACTOR}, changes={})


def allowed(params):
    return params["lr"] > 0
"""
BEGIN = """
trial = study.ask()
(trial.checkpoint_dir / "weights.txt").write_text("1")
study.tell(trial, {"score": 0.5})
"""


Call: TypeAlias = Callable[[str], list[Finding]]


@pytest.fixture(name="call")
def make_call(tmp_path: Path) -> Call:
    """Return a function that calls the study in a new process, which imports the files as they are then."""
    (tmp_path / "rules.py").write_text(RULES)
    (tmp_path / "mine.py").write_text(STUDY)
    (tmp_path / "model.py").write_text("SIZE = 8")

    def call(code: str) -> list[Finding]:
        program = f"from mine import study\n{code}"
        forked.run(["-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True)
        found = phyla.load_study("mixed", home=tmp_path / ".phyla").findings()
        return [finding for finding in found if finding.kind == "code"]

    return call


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("mine.py", 'score=trial.params["lr"]', 'score=trial.params["lr"] * 2', "train()"),
        ("rules.py", "FACTOR = 0.5", "FACTOR = 0.25", "Halve"),
        ("rules.py", '["lr"] > 0', '["lr"] > 1e-9', "allowed"),
        ("model.py", "SIZE = 8", "SIZE = 16", "module model"),
    ],
)
def test_a_worker_that_joins_with_edited_code_is_named(
    tmp_path: Path, call: Call, workers: int, file: str, old: str, new: str, named: str
) -> None:
    assert call(BEGIN) == []
    edit(tmp_path / file, old, new)
    (finding,) = call(f"study.work(workers={workers})")
    assert finding.about == "workers"
    check_facts(finding.text, named, "phyla trials mixed --story")
    for other in {"train()", "Halve", "allowed", "module model"} - {named}:
        assert other not in finding.text


def test_workers_with_the_code_of_the_run_are_not_named(tmp_path: Path, call: Call) -> None:
    call(BEGIN)
    edit(tmp_path / "rules.py", "FACTOR = 0.5", "FACTOR = 0.5  # as it was")
    assert call("study.work(workers=1)") == []


def test_a_rule_that_was_edited_before_the_next_run_is_named(tmp_path: Path, call: Call) -> None:
    call(BEGIN)
    edit(tmp_path / "rules.py", "FACTOR = 0.5", "FACTOR = 0.25")
    (finding,) = call("study.run(workers=1)")
    assert finding.about == ""
    check_facts(finding.text, "Halve", "--overwrite mixed")
    assert "train()" not in finding.text
