"""What a user sees of the mistakes that beginners make: said once, with the line or the name that is wrong."""

import copy
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import forked
import phyla
from facts import check_facts
from phyla.settings import child_environment
from phyla.space import Params
from phyla.study import load_study

SOURCE = Path(phyla.__file__).parents[1]
ROOT = SOURCE.parent

FILE = """\
import json, math, subprocess, sys
import phyla


def train(trial):
{body}


study = phyla.Study(
    "first",
    {{"lr": phyla.Float(0.1, 1.0), "momentum": phyla.Float(0.1, 1.0)}},
    phyla.Maximize("score"),
    phyla.PBT(population_size=4, steps_per_trial=5, total_steps={total}),
    train,
)

if __name__ == "__main__":
    study.run(workers=1)
"""

GOOD = """\
steps = json.loads((trial.source.path / "w.json").read_text()) if trial.source else 0
for _ in trial.steps():
    steps += trial.params["lr"] + trial.params["momentum"]
(trial.checkpoint_dir / "w.json").write_text(json.dumps(steps))
trial.report(score=steps)
"""


def write(folder: Path, body: str, total: int = 20) -> Path:
    file = folder / "first.py"
    file.write_text(FILE.format(body="".join(f"    {line}\n" for line in body.splitlines()), total=total))
    return file


def run(folder: Path, *words: object, python: bool = False) -> tuple[int, str]:
    """Run the command line, or a program, in a folder; return its exit status and all that it printed."""
    program = [*([] if python else ["-m", "phyla.cli"]), *words]
    done = forked.run(program, cwd=folder, env=child_environment({"OMP_NUM_THREADS": "1"}), merged=True, spares=2)
    return done.returncode, done.stdout


# What training raises

RAISES = """\
for _ in trial.steps():
    loss = 1 / 0
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_error_twice_stops_a_study_that_never_worked(tmp_path: Path, workers: int) -> None:
    file = write(tmp_path, RAISES)
    status, told = run(tmp_path, "run", file, "--workers", workers)
    assert status == 1
    where = f"ZeroDivisionError: division by zero ({file}, line 7)"
    # With two workers, one may begin again while the other one's failure is handed in.
    assert 2 <= told.count(f"failed: {where}") <= 1 + max(1, workers)
    (log,) = set(re.findall(r"error: study 'first' stopped itself: .*full traceback is in (\S+\.log)\.", told))
    assert Path(log).parent == tmp_path / ".phyla" / "logs" / "first"
    assert "Traceback" not in told
    assert where in told.splitlines()[-1]
    logged = Path(log).read_text()
    assert "Traceback (most recent call last):" in logged
    assert "loss = 1 / 0" in logged
    _, told = run(tmp_path, "status", "first")
    assert f"failed twice with the same error: {where}" in told
    assert f"pending   {where}; the full traceback is in {tmp_path / '.phyla' / 'logs'}" in told
    assert json.loads(run(tmp_path, "status", "first", "--json")[1])["failed"][0]["cause"]["line"] == 7
    assert len(load_study("first", home=tmp_path / ".phyla").attempts()) <= 2 + workers
    # After the error is fixed, it is counted afresh.
    write(tmp_path, GOOD)
    status, told = run(tmp_path, "run", file, "--workers", 0)
    assert status == 0
    assert "16 trials completed, 0 failed" in told


def test_a_program_is_told_the_same(tmp_path: Path) -> None:
    file = write(tmp_path, RAISES)
    status, told = run(tmp_path, file, python=True)
    assert status == 1
    check_facts(told, "1 failed", "ZeroDivisionError", file, "line 7")


def test_an_error_in_a_library_names_the_users_own_line(tmp_path: Path) -> None:
    file = write(tmp_path, "import json\njson.loads('{')\n")
    _, told = run(tmp_path, "run", file, "--workers", "0")
    check_facts(told, "json.decoder.JSONDecodeError")
    assert f"({file}, line 7)" in told


def test_two_different_errors_do_not_stop_a_study(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "if trial.id == 1 and trial.token < 3:\n    raise [KeyError, OSError][trial.token - 1]('a')\n" + GOOD,
    )
    status, told = run(tmp_path, "run", file, "--workers", "0")
    assert status == 0, told
    assert "attempt 1 failed: KeyError: 'a'" in told
    assert "attempt 2 failed: OSError: a" in told


def test_an_error_that_comes_after_something_worked_does_not_stop_a_study(tmp_path: Path) -> None:
    file = write(tmp_path, "if trial.id == 2:\n    raise ValueError('a')\n" + GOOD)
    status, told = run(tmp_path, "run", file, "--workers", "0")
    assert status == 0, told
    assert "16 trials completed, 1 failed" in told


def test_the_output_of_a_command_is_in_the_log_and_its_end_in_the_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "for n in range(50): print('line', n)\nraise SystemExit(3)"]
    file = write(tmp_path, f"subprocess.run({command!r}, check=True, capture_output=True, text=True)\n")
    _, told = run(tmp_path, "run", file, "--workers", "0")
    assert f"({file}, line 6)" in told
    error = load_study("first", home=tmp_path / ".phyla").trials()[0].error or ""
    assert "line 49" in error
    assert "line 39\n" not in error
    assert "line 0\n" in (tmp_path / ".phyla" / "logs" / "first" / "worker-0.log").read_text()


def test_a_metric_under_another_name_is_suggested(tmp_path: Path) -> None:
    body = GOOD.replace("score=steps", "{'val_score': steps, 'acc': 1}")
    status, told = run(tmp_path, "run", write(tmp_path, body), "--workers", "0")
    assert status == 1
    reported = "the objective 'score'; trial 1 reported 'val_score', 'acc': should 'val_score' be 'score'?"
    assert reported in told


# What raises nothing


def warnings_of(told: str) -> list[str]:
    return [line for line in told.splitlines() if line.startswith("warning: ")]


MISTAKES = {
    "train() did not load trial.source: every trial starts from scratch": GOOD.replace(
        'json.loads((trial.source.path / "w.json").read_text()) if trial.source else 0', "trial.id"
    ),
    "train() never read the hyperparameter 'momentum'": GOOD.replace(' + trial.params["momentum"]', ""),
    "train() never read the hyperparameters 'lr', 'momentum'": GOOD.replace(
        'trial.params["lr"] + trial.params["momentum"]', "1 / trial.id"
    ),
    "every checkpoint equals its parent's byte for byte": GOOD.replace("json.dumps(steps)", "'0'"),
    "no trial has a finite score: the scores of all 16 completed trials are nan": GOOD.replace(
        "score=steps", "score=math.nan"
    ),
}


@pytest.mark.parametrize(("words", "body"), MISTAKES.items())
def test_a_mistake_that_raises_nothing_is_said_once(tmp_path: Path, words: str, body: str) -> None:
    workers = int("did not load" in words)  # what workers notice reaches the run as well
    status, told = run(tmp_path, "run", write(tmp_path, body), "--workers", workers)
    (warning,) = warnings_of(told)
    assert words in warning
    check_facts(told, "1 warning", "phyla status first")
    assert status == (1 if "finite" in words else 0)
    _, told = run(tmp_path, "status", "first")
    assert warnings_of(told) == [warning]
    assert json.loads(run(tmp_path, "status", "first", "--json")[1])["warnings"][0]["text"] in warning


@pytest.mark.parametrize(
    "read", [dict, list, copy.deepcopy, Params.flat, lambda all_: dict(**all_), lambda all_: [*all_.items()]]
)
def test_reading_all_parameters_at_once_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, read: Callable[[Params], object]
) -> None:
    def train(trial: phyla.Trial) -> None:
        read(trial.params)
        (trial.checkpoint_dir / "w").write_text(str(trial.id))
        trial.report(score=trial.id)

    space, search = {"lr": phyla.Float(0.0, 1.0)}, phyla.RandomSearch(members=2, total_steps=1)
    phyla.Study("first", space, phyla.Maximize("score"), search, train, home=tmp_path).run()
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_parameter_of_fresh_starts_only_is_read(tmp_path: Path) -> None:
    body = GOOD.replace("else 0", 'else trial.params["momentum"]').replace(' + trial.params["momentum"]', "")
    assert warnings_of(run(tmp_path, "run", write(tmp_path, body, total=100), "--workers", "0")[1]) == []


def test_a_parameter_that_only_activates_another_has_an_effect(tmp_path: Path) -> None:
    """Also if it has the other value in each trial."""
    file = write(tmp_path, GOOD.replace(' + trial.params["momentum"]', ' + trial.params.get("momentum", 0)'))
    space = '"nesterov": phyla.Choice(VALUES), "momentum": phyla.Float(0.1, 1.0, when={"nesterov": True})'
    text = file.read_text().replace('"momentum": phyla.Float(0.1, 1.0)', space).replace('"first"', "sys.argv[1]")
    for name, values in (("both", "[True, False]"), ("one", "[True, False], initial=[False]")):
        file.write_text(text.replace("VALUES", values))
        assert warnings_of(run(tmp_path, "run", file, "--workers", "0", "--", name)[1]) == []


def test_a_state_kept_in_memory_is_a_source(tmp_path: Path) -> None:
    body = GOOD.replace(
        "trial.source else 0", "trial.cached_state is None and trial.source else trial.cached_state or 0"
    )
    told = run(tmp_path, "run", write(tmp_path, body + "trial.cached_state = steps\n"), "--workers", "0")[1]
    assert warnings_of(told) == []


def test_changed_training_code_is_said_and_other_changes_are_not(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    assert warnings_of(run(tmp_path, "run", file, "--workers", "0")[1]) == []
    # A comment, and longer training, are not another training function.
    write(tmp_path, "# better\n" + GOOD, total=25)
    run(tmp_path, "change", file)
    status, told = run(tmp_path, "run", file, "--workers", "0")
    assert status == 0
    assert warnings_of(told) == []
    write(tmp_path, "bonus = 1\n" + GOOD, total=30)
    run(tmp_path, "change", file)
    told = run(tmp_path, "run", file, "--workers", "0")[1]
    (warning,) = warnings_of(told)
    assert re.match(
        rf"warning: train\(\) in {re.escape(str(file))} changed since this study began on \d{{4}}-\d\d-\d\d "
        r"\d\d:\d\d; earlier trials were trained by the old code",
        warning,
    )
    assert warnings_of(run(tmp_path, "status", "first")[1]) == [warning]


def test_code_that_completed_nothing_was_not_old_code(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD.replace("score=steps", "scores=steps"))
    assert run(tmp_path, "run", file, "--workers", "0")[0] == 1
    write(tmp_path, GOOD)
    status, told = run(tmp_path, "run", file, "--workers", "0")
    assert (status, warnings_of(told)) == (0, [])


def test_a_helper_of_training_is_training_code(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD.replace("score=steps", "score=scored(steps)"))
    helper = "\n\ndef scored(steps):\n    return steps\n"
    file.write_text(file.read_text().replace("\n\nstudy =", helper + "\n\nstudy ="))
    assert warnings_of(run(tmp_path, "run", file, "--workers", "0")[1]) == []
    file.write_text(file.read_text().replace("return steps", "return steps * 2"))
    (told,) = warnings_of(run(tmp_path, "run", file, "--workers", "0")[1])
    assert "was edited since study" in told


@pytest.mark.parametrize("python", [False, True])
def test_a_complete_study_says_that_there_is_nothing_to_do(tmp_path: Path, python: bool) -> None:
    file = write(tmp_path, GOOD)
    again = (file,) if python else ("run", file, "--workers", "0")
    assert "nothing to do" not in run(tmp_path, *again, python=python)[1]
    status, told = run(tmp_path, *again, python=python)
    assert status == 0
    assert re.search(
        r"nothing to do: study 'first' is complete: its 16 trials were completed on \d{4}-\d\d-\d\d \d\d:\d\d\. "
        r"To train longer, raise total_steps in the file, then: phyla change FILE \(.*\), and run it again\."
        r" To start from scratch, .*--overwrite first \(.*\); to keep it, give the study another name",
        told,
    )


def test_the_first_study_of_the_readme_warns_of_nothing(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "first.py").write_text(program)
    for words in (("run", "first.py"), ("status", "first")):
        status, told = run(tmp_path, *words)
        assert status == 0
        assert "warning" not in told


def test_starting_points_that_start_nothing_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    space = phyla.Space({"lr": phyla.Float(0.0, 1.0)}, initial=[{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}])
    grid = phyla.GridSearch({"lr": [0.5, 0.6]}, total_steps=1)

    def learns(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "w").write_text(str(trial.params["lr"]))
        trial.report(score=trial.params["lr"])

    phyla.Study("points", space, phyla.Maximize("score"), grid, learns, home=tmp_path).run()
    check_facts(caplog.text, "3", "2 members")
