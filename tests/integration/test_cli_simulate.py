"""`phyla simulate` on a study file."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from phyla.cli import main

STUDY_FILE = """
import phyla

def train(trial):
    raise AssertionError("called")

def judge(evaluation):
    raise AssertionError("called")

space = phyla.Space(lr=phyla.Float(1e-3, 1.0, log=True))
plain = phyla.Study(
    "plain", space, phyla.Minimize("loss"),
    phyla.PBT(population_size=5, steps_per_trial=10, total_steps=40, quorum=1.0), train,
)
judged = phyla.Study(
    "judged", space, phyla.Minimize("loss"),
    phyla.PBT(population_size=4, steps_per_trial=10, total_steps=40, fitness=phyla.FromSuite("held", "q_mean")),
    train, suites=[phyla.Suite("held", [phyla.EvalTask("judge", judge)])],
)
stopped = phyla.Study(
    "stopped", space, phyla.Minimize("loss"), phyla.ASHA(members=9, min_steps=10, total_steps=90), train,
    stopping=phyla.MedianStopping(min_steps=5),
)
"""

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    (tmp_path / "two.py").write_text(STUDY_FILE)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["phyla", "simulate", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        assert [path.name for path in tmp_path.iterdir() if path.suffix != ".py" and path.name[0] == "."] == []
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_it_prints_what_a_study_will_take(cli: Cli) -> None:
    code, out, _ = cli(
        "two.py", "--study", "plain", "--seconds", "trial=30", "--workers", "3,1,2,4,5", "--runs", "2"
    )
    assert code == 0
    assert out.startswith("plain with 3 workers: 4:00 (2 runs: 4:00 to 4:00)\ntrials: 20 completed in 20 attempts")
    rows = [line.split() for line in out.splitlines()]
    assert ["training", "83.3%"] in rows
    table = [row[:2] for row in rows if len(row) == 8]
    assert table == [["1", "10:00"], ["2", "6:00"], ["3", "4:00"], ["4", "4:00"], ["5", "2:00"]]


def test_it_prints_json(cli: Cli) -> None:
    words = ["--seconds", "trial=30", "--seconds", "eval=5", "--evaluators", "1"]
    code, out, _ = cli("two.py", "--study", "judged", *words, "--per-hour", "preempt=5", "--fail", "0.1", "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["study"], told["workers"], told["evaluators"], len(told["runs"])) == ("judged", 8, 1, 5)
    assert [row["workers"] for row in told["by_workers"]] == [1, 2, 4, 8]
    assert sum(told["shares"].values()) == pytest.approx(1.0)
    assert told["runs"][0]["lag"]["held"]["complete"] == 16
    assert (
        cli("two.py", "--study", "judged", *words, "--workers", "2", "--runs", "1", "--json")[1].count("wall_s")
        == 2
    )


def test_it_tells_of_evaluation_and_of_runs_that_do_not_complete(cli: Cli) -> None:
    words = ["two.py", "--study", "judged", "--seconds", "trial=30", "--workers", "4", "--runs", "2"]
    code, out, _ = cli(*words, "--seconds", "eval=10")
    assert code == 0
    assert "evaluation of held: 16 groups complete, 0 not; behind by 10 s in the median" in out
    code, out, _ = cli(*words, "--kinds", "train")
    assert code == 0
    assert "2 of 2 runs did not complete; the first: it stands still: training waits for evaluations" in out


def test_one_of_a_kind_is_singular(cli: Cli) -> None:
    words = ["two.py", "--study", "judged", "--seconds", "trial=30", "--workers", "1", "--evaluators", "1"]
    _, out, _ = cli(*words, "--runs", "1")
    assert out.startswith("judged with 1 worker and 1 evaluator: 8:00 (1 run: 8:00 to 8:00)")


def test_it_notes_what_is_not_simulated(cli: Cli) -> None:
    words = ["two.py", "--study", "stopped", "--seconds", "trial=30", "--runs", "1", "--workers", "8"]
    code, out, _ = cli(*words)
    assert code == 0
    notes = [line for line in out.splitlines() if line.startswith("note: ")]
    assert notes[0].startswith("note: stopping rules (MedianStopping) are not simulated")
    assert "give step_s (on the command line: --seconds step=S)" in notes[1]
    assert [f"note: {note}" for note in json.loads(cli(*words, "--json")[1])["notes"]] == notes


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["two.py", "--study", "plain"], "--seconds step=S or --seconds trial=S"),
        (["two.py", "--seconds", "trial=3"], "choose one with --study NAME"),
        (
            ["two.py", "--study", "plain", "--seconds", "trial=3", "--evaluators", "1"],
            "has no suites= to evaluate",
        ),
        (["two.py", "--study", "plain", "--seconds", "trial=3", "--seconds", "eval=1"], "--seconds eval=S"),
        (["two.py", "--study", "plain", "--seconds", "trial=3", "--kinds", "dance"], "choose 'train', 'evaluate'"),
        (["two.py", "--study", "plain", "--seconds", "trial=inf"], "must be a finite number"),
        (["two.py", "--study", "plain", "--seconds", "stop=3"], "did you mean 'step'?"),
        (["two.py", "--study", "plain", "--seconds", "step"], "'' is not a number"),
        (["two.py", "--study", "plain", "--per-hour", "crash=-1"], "must be at least 0"),
        (["two.py", "--study", "plain", "--workers", "2,x"], "--workers 2,x: give a number"),
        (["none.py"], "there is no file none.py"),
    ],
)
def test_wrong_input_gets_one_paragraph(cli: Cli, words: list[str], told: str) -> None:
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert told in " ".join(err.split())
