"""The command line on real studies: its output, its exit codes, and what wrong inputs get."""

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import forked
import phyla
from command_line import Phyla
from effort import rarely
from facts import check_facts
from forked import Forked
from listing import list_studies
from phyla.cli.app import run_app
from phyla.cli.options import user_name
from phyla.settings import child_environment
from phyla.store import open_store
from streams import closed, on_terminal, written_to
from waiting import until

SOURCE = Path(phyla.__file__).parents[1]
TIMEOUT_S = 180.0

STUDY_FILE = """
import time
from pathlib import Path

import phyla

HERE = Path(__file__).parent


def train(trial):
    if trial.id == 2:
        raise ValueError("broken [on purpose]")
    for _ in trial.steps():
        while (HERE / "hold").exists() and not trial.should_stop:
            time.sleep(0.005)
    (trial.checkpoint_dir / "weights.txt").write_text("x" * 1000)
    trial.report(score=trial.params["lr"] + trial.end_step, loss=float("nan"))


study = phyla.Study(
    "small",
    {"lr": phyla.Float(0.01, 1.0, log=True), "batch": phyla.Int(8, 64)},
    phyla.Maximize("score"),
    # With a smaller quorum, one that is late may take over weights of a later step, and train fewer trials.
    phyla.PBT(population_size=4, steps_per_trial=5, total_steps=20, exploit=phyla.Truncation(0.3), quorum=1.0),
    train,
    retries=phyla.Retries(attempts=1),
)
"""


WAITING_IMPORT = """
import sys, time
from pathlib import Path

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            Path(__file__).with_name("waits").touch()
            time.sleep(60)

sys.meta_path.insert(0, Finder())
"""


def environment() -> dict[str, str]:
    return child_environment({"PYTHONPATH": str(SOURCE), "COLUMNS": "140"})


def in_process(folder: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    """Run the command line in a process of its own."""
    return forked.run(["-m", "phyla.cli", *words], cwd=folder, env=environment())


def is_training(home: Path) -> bool:
    return any(study.progress().running for study in list_studies(home))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Path, str]":
    """A folder with a study that was run to its end, and what that printed."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "small.py").write_text(STUDY_FILE)
    done = in_process(folder, "run", "small.py", "--workers", 0)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture
def phyla_at(small: "tuple[Path, str]", cli: Phyla, monkeypatch: pytest.MonkeyPatch) -> Phyla:
    """The command line in the folder of the finished study."""
    monkeypatch.chdir(small[0])
    return cli


# Running


def test_run_without_a_terminal_prints_plain_lines(small: "tuple[Path, str]") -> None:
    folder, output = small
    lines = output.splitlines()
    failed = (
        f"trial 2, attempt 1 failed: ValueError: broken [on purpose] ({folder / 'small.py'}, line 12); the full"
    )
    assert any(line.startswith(failed) for line in lines)
    ended = "16 of 16 trials  1 failed  best score "
    assert any(line.startswith(ended) and line.endswith("0 s left") for line in lines)
    assert any(line.startswith("16 trials completed, 1 failed, in ") for line in lines)
    assert f"checkpoint  {folder / '.phyla' / 'checkpoints' / 'small'}" in output
    assert "from step  to step  member  trial" in output
    check_facts(lines[-1], "phyla report small")
    assert "\x1b" not in output


def test_a_run_goes_on_when_its_lines_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(STUDY_FILE)
    words = ["-m", "phyla.cli", "run", "small.py", "--workers", "1"]
    full = written_to("/dev/full", 1)
    done = forked.run(words, cwd=tmp_path, env=environment(), first=full, spares=1, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    (study,) = list_studies(tmp_path / ".phyla")
    assert study.state == "completed"


@pytest.mark.thorough  # above: lines that cannot be written
def test_a_run_goes_on_when_nobody_reads_its_lines(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(STUDY_FILE)
    (tmp_path / "hold").touch()
    words = [sys.executable, "-m", "phyla.cli", "run", "small.py", "--workers", "1"]
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        (tmp_path / "hold").unlink()
        told = process.stderr.read()
        assert process.wait(TIMEOUT_S) == 0, told
    (study,) = list_studies(tmp_path / ".phyla")
    assert study.state == "completed"


READER_LEAVES = """
import os

found = phyla.Results.findings


def findings(self):
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    return found(self)


phyla.Results.findings = findings
"""


def test_a_run_succeeds_whose_last_lines_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(STUDY_FILE + READER_LEAVES)
    done = in_process(tmp_path, "run", "small.py", "--workers", 0)
    assert done.returncode == 0, done.stderr
    assert "16 of 16 trials" in done.stdout
    assert "16 trials completed" not in done.stdout


def without_output(folder: Path, closed: str, *words: object) -> int:
    """Run a command line of Python that starts without some of its streams, as services may be."""
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, *map(str, words)]
    return subprocess.run(shell, cwd=folder, env=environment(), timeout=TIMEOUT_S, check=False).returncode


@pytest.mark.parametrize("streams", [rarely(">&-"), rarely("2>&-"), ">&- 2>&-"])
def test_commands_and_scripts_need_no_output(tmp_path: Path, streams: str) -> None:
    (tmp_path / "small.py").write_text(STUDY_FILE)
    assert without_output(tmp_path, streams, "-m", "phyla.cli", "run", "small.py", "--workers", 0) == 0
    missing = [int(one[:-3] or 1) for one in streams.split()]

    def without(*words: object) -> int:
        done = forked.run(words, cwd=tmp_path, env=environment(), first=closed(*missing), timeout=TIMEOUT_S)
        return done.returncode

    for words in (["export", "small"], ["status", "small", "--watch"]):
        assert without("-m", "phyla.cli", *words) == 0
    assert without("-c", "import small; small.study.run(workers=0)") == 0
    (study,) = list_studies(tmp_path / ".phyla")
    assert study.state == "completed"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["best", "small"], rarely(["--help"])])
def test_a_full_disk_is_no_bug(small: "tuple[Path, str]", words: list[str], unbuffered: str) -> None:
    with open("/dev/full", "wb") as output:
        done = printed_to(output, small[0], words, unbuffered)
    assert done.returncode == 1
    assert done.stderr.startswith("error: [Errno 28] No space left on device; ")
    assert "make room" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("unbuffered", ["", rarely("1")])
def test_a_reader_that_has_seen_enough_is_no_bug(small: "tuple[Path, str]", unbuffered: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "wb") as output:
        done = printed_to(output, small[0], ["trials", "small"], unbuffered)
    assert (done.returncode, done.stderr) == (1, "")


def printed_to(
    output: BinaryIO, folder: Path, words: list[str], unbuffered: str
) -> "subprocess.CompletedProcess[str]":
    """Run the command line, whose output is written at its end or at once."""
    command, env = [sys.executable, "-m", "phyla.cli", *words], {**environment(), "PYTHONUNBUFFERED": unbuffered}
    return subprocess.run(
        command, cwd=folder, env=env, stdout=output, stderr=subprocess.PIPE, text=True, check=False
    )


@pytest.mark.parametrize("module", ["phyla.errors", "typer.main", "sqlalchemy.event"])
def test_ctrl_c_while_it_starts_leaves_no_traceback(tmp_path: Path, module: str) -> None:
    (tmp_path / "small.py").write_text(STUDY_FILE)
    (tmp_path / "sitecustomize.py").write_text(WAITING_IMPORT.format(module=module))
    words = [sys.executable, "-c", "from phyla.cli import main; main()", "run", "small.py"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment() | {"PYTHONPATH": path}, stderr=subprocess.PIPE, text=True
    )
    until((tmp_path / "waits").exists, "import")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert told.lower().startswith("interrupted")
    assert "Traceback" not in told


def test_run_lives_where_the_options_say(small: "tuple[Path, str]", tmp_path: Path, cli: Phyla) -> None:
    storage = f"sqlite:///{tmp_path / 'else.db'}"
    done = in_process(small[0], "run", "small.py", "--workers", 0, "--home", tmp_path, "--storage", storage)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "else.db").exists()
    assert (tmp_path / "checkpoints" / "small").exists()
    hint = done.stdout.splitlines()[-1].partition("phyla report ")[2]
    assert json.loads(cli("best", *hint.split(), "--json"))["study"] == "small"


def test_a_study_in_memory_runs_in_this_process(small: "tuple[Path, str]", tmp_path: Path) -> None:
    done = in_process(small[0], "run", "small.py", "--workers", 0, "--home", tmp_path, "--storage", "memory://")
    assert done.returncode == 0, done.stderr
    assert "trial 2, attempt 1 failed: ValueError" in done.stdout
    assert "16 of 16 trials" in done.stdout


def test_a_study_that_stops_itself_says_why(tmp_path: Path) -> None:
    text = STUDY_FILE.replace("if trial.id == 2:", "if True:").replace("attempts=1", "attempts=1, broken=2")
    (tmp_path / "broken.py").write_text(text)
    done = in_process(tmp_path, "run", "broken.py", "--workers", 0)
    assert done.returncode == 1
    assert done.stdout.count("ValueError: broken [on purpose]") == 2
    assert done.stderr.startswith("error: study 'small' stopped itself: ")
    assert "Traceback" not in done.stderr


WRONG_FILES = {
    "no-study": ("import phyla\nx = 1\n", "wrong.py phyla.Study("),
    "raises": ("import phyla\n\n1 / 0\n", "wrong.py line 3 ZeroDivisionError"),
    "is-cancelled": ("import asyncio\nraise asyncio.CancelledError\n", "wrong.py line 2 CancelledError"),
    "syntax": ("def f(:\n", "wrong.py line 1"),
    "exits": ("import sys\nsys.exit(4)\n", "wrong.py line 2 status 4"),
    "bad-study": (STUDY_FILE.replace('"small"', '"a b"'), "ConfigurationError 'a b'"),
    "several": (
        STUDY_FILE
        + 'other = phyla.Study("other", study.rules.space, study.rules.objective, study.rules.strategy, train)\n',
        "small other --study NAME",
    ),
    "attaches": (STUDY_FILE + "with phyla.attach(study) as job:\n    1 / 0\n", "python wrong.py"),
    "asks": (STUDY_FILE + "while not study.finished:\n    1 / 0\n", "python wrong.py"),
    "lambda": (STUDY_FILE.replace("    train,\n", "    lambda trial: None,\n"), "lambda"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_file_gets_one_clear_message(
    name: str, tmp_path: Path, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, expected = WRONG_FILES[name]
    (tmp_path / "wrong.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    message = cli("run", "wrong.py", code=2)
    check_facts(message, *expected.split())
    assert not (tmp_path / ".phyla").exists()


def test_wrong_options_get_one_clear_message(phyla_at: Phyla, tmp_path: Path) -> None:
    for words, expected, code in (
        (("run", "missing.py"), "missing.py", 2),
        (("run", tmp_path), tmp_path, 2),
        (("run", "small.py", "--workers", "-1"), "--workers", 2),
        (("run", "small.py", "--study", "x"), "small.py 'x' 'small'", 2),
        (("run", "small.py", "--storage", "nonsense://"), "nonsense:// sqlite:///file.db", 2),
        (("run", "small.py", "--storage", "memory://"), "memory:// --workers 0", 2),
        (("run", "small.py", "--home", "/proc/none"), "/proc/none", 1),
        (("trials", "small", "--state", "odd"), "--state", 2),
        (("trials", "small", "--member", "7"), "small 0 3", 2),
        (("trials", "small", "--story", "99"), "99 phyla trials small", 2),
        (("trials", "small", "--story", "2", "--last", "1"), "--story --member --last", 2),
        (("final", "small"), "final small --file", 2),
        (("replay", "small", "--continue", "3", "--from", "2"), "--continue --from", 2),
        (("watch", ".", "--suite", "small.py", "--format", "auto=x"), "auto=x marker steps", 2),
        (("export", "small", "--trial", "1"), "--trial --what schedule reports", 2),
        (("export", "small", "--what", "reports", "--trial", "99"), "--trial 99 small", 2),
        (("export", "small", "-o", "/none/x.json"), "/none/x.json", 2),
        (("export", "small", "-o", tmp_path), tmp_path, 2),
        (("report", "small", "-o", "/none/x.html"), "/none/x.html", 2),
        (("gc", "small", "--checkpoints", tmp_path), "small checkpoints", 2),
        (("stop", "small"), "small completed", 1),
        (("change", "small"), "small completed", 1),
        (("best", "small", "--storage", "sqlite:////none/x.db"), "/none/x.db", 2),
        (("best", "small", "--storage", ""), "--storage", 2),
        (("best", "small", "--home="), "--home", 2),
        (("best", "small", "--server", "host:8470"), "host:8470 http://host:8470", 2),
    ):
        check_facts(phyla_at(*words, code=code), *str(expected).split())


@pytest.mark.parametrize(
    "name", ["status", "best", "trials", "export", "report", "gc", "stop", "change", "replay"]
)
def test_an_unknown_study_gets_the_names_of_those_there_are(name: str, phyla_at: Phyla) -> None:
    message = phyla_at(name, "unknown", code=2)
    check_facts(message, "unknown", "sqlite:///", "small")


# Reading


def best_fitness(run: Phyla) -> str:
    return f"{json.loads(run('best', 'small', '--json'))['fitness']:.6g}"


def test_status(phyla_at: Phyla) -> None:
    row = phyla_at("status").splitlines()[-1].split()
    assert row[:8] == ["small", "completed", "16", "of", "16", "-", best_fitness(phyla_at), "score"]
    listed = json.loads(phyla_at("status", "--json"))
    assert [(one["study"], one["state"], one["completed_trials"], one["planned_trials"]) for one in listed] == [
        ("small", "completed", 16, 16)
    ]
    text = phyla_at("status", "small")
    assert "trials completed: 16 of 16, 1 failed\nsteps: 80 of 80\nmembers: 4\n" in text
    assert "ValueError: broken [on purpose]" in text
    one = json.loads(phyla_at("status", "small", "--json"))
    assert [member["member"] for member in one["members"]] == [0, 1, 2, 3]
    assert all(member["progress"] == 20 and member["generation"] == 4 for member in one["members"])
    assert [(failed["trial"], failed["state"]) for failed in one["failed"]] == [(2, "failed")]
    assert one["attempts"] == []


def test_best(phyla_at: Phyla, small: "tuple[Path, str]") -> None:
    best = json.loads(phyla_at("best", "small", "--json"))
    trials = json.loads(phyla_at("trials", "small", "--json", "--sort", "fitness"))
    assert (best["trial"], best["fitness"]) == (trials[0]["trial"], trials[0]["fitness"])
    assert (Path(best["checkpoint"]["path"]) / "weights.txt").read_text() == "x" * 1000
    assert best["metrics"]["loss"] == "nan"
    assert best["params"] == best["schedule"]["segments"][-1]["params"]
    assert best["checkpoint"]["path"] in phyla_at("best", "small")


def test_trials(phyla_at: Phyla) -> None:
    assert len(json.loads(phyla_at("trials", "small", "--json"))) == 17
    assert {row["member"] for row in json.loads(phyla_at("trials", "small", "--member", 1, "--json"))} == {1}
    assert [row["trial"] for row in json.loads(phyla_at("trials", "small", "--last", 2, "--json"))] == [16, 17]
    assert [row["state"] for row in json.loads(phyla_at("trials", "small", "--state", "failed", "--json"))] == [
        "failed"
    ]
    assert "broken [on purpose]" in phyla_at("trials", "small")
    assert "no such trials" in phyla_at("trials", "small", "--state", "running")


def test_the_story_of_a_trial(phyla_at: Phyla) -> None:
    events = json.loads(phyla_at("trials", "small", "--story", 2, "--json"))
    assert [event["what"] for event in events] == ["created", "attempt", "attempt ended", "ended", "descendant"]
    assert events[-1]["facts"]["replaces"] is True
    lines = phyla_at("trials", "small", "--story", 2).splitlines()[2:]
    assert len(lines) == len(events)
    assert all(event["words"] in line for event, line in zip(events, lines, strict=True))


def test_export(phyla_at: Phyla, tmp_path: Path) -> None:
    for what in ("trials", "lineage", "schedule", "reports"):
        assert json.loads(phyla_at("export", "small", "--what", what))
        rows = list(csv.DictReader(io.StringIO(phyla_at("export", "small", "--what", what, "--format", "csv"))))
        assert rows
        assert None not in rows[0]
    rows = json.loads(phyla_at("export", "small"))
    assert {"trial", "member", "generation", "decision", "params.lr", "params.batch"} <= set(rows[0])
    reports = json.loads(phyla_at("export", "small", "--what", "reports", "--trial", 1))
    assert [(row["trial"], row["step"], row["metrics.loss"]) for row in reports] == [(1, 5, "nan")]
    schedule = json.loads(phyla_at("export", "small", "--what", "schedule", "--trial", 1))
    assert len(schedule["segments"]) == 1


@pytest.mark.parametrize("begin", [0, 1000])
def test_a_schedule_that_ends_before_training_does_is_said_to(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, begin: int
) -> None:
    (tmp_path / "given.txt").write_text("x")

    def train(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "weights.txt").write_text("x")
        trial.report(loss=(trial.end_step - begin) % 9 + trial.params["lr"])  # best after 10 of 20 steps

    space, strategy = (
        {"lr": phyla.Float(0.01, 0.1)},
        phyla.PBT(population_size=3, steps_per_trial=5, total_steps=20),
    )
    given: Any = {"start_from": [phyla.StartFrom(tmp_path / "given.txt", step=begin)] * 3, "home": tmp_path}
    results = phyla.Study("early", space, phyla.Minimize("loss"), strategy, train, **given).run()
    assert results.best is not None
    best, last = results.best.trial, [one for one in results.trials() if one.reached_step == begin + 20]
    final = min(last, key=lambda one: one.fitness or 0.0).id

    def exported(*words: object) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["phyla", "export", "early", "--home", str(tmp_path), *map(str, words)])
        with pytest.raises(SystemExit):
            run_app()
        printed = capfd.readouterr()
        return printed.out, printed.err

    capfd.readouterr()  # how it went
    out, err = exported("--what", "schedule")
    assert json.loads(out)["segments"][-1]["end_step"] == begin + 10
    assert err == (
        f"note: this schedule ends after 10 of 20 steps, with the best trial, {best}; "
        f"the best after 20 steps is that of --trial {final}\n"
    )
    out, err = exported("--what", "schedule", "--trial", final)
    assert json.loads(out)["segments"][-1]["end_step"] == begin + 20
    assert err == ""


def test_a_schedule_that_trains_to_the_end_has_no_note_where_an_earlier_score_was_equal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "weights.txt").write_text("x")
        trial.report(loss=0.0 if trial.end_step >= 10 else trial.params["lr"])

    space, strategy = (
        {"lr": phyla.Float(0.01, 0.1)},
        phyla.PBT(population_size=3, steps_per_trial=5, total_steps=20),
    )
    results = phyla.Study("equal", space, phyla.Minimize("loss"), strategy, train, home=tmp_path).run()
    assert results.best is not None
    assert results.best.checkpoint.step == 20
    early = [one for one in results.trials() if one.fitness == results.best.fitness and one.reached_step == 10]
    assert early
    capfd.readouterr()  # how it went
    command = ["phyla", "export", "equal", "--what", "schedule", "--home", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        run_app()
    out, err = capfd.readouterr()
    assert json.loads(out)["segments"][-1]["end_step"] == 20
    assert err == ""


def test_export_writes_a_file_at_once_and_replaces_none(phyla_at: Phyla, tmp_path: Path) -> None:
    target = tmp_path / "trials.json"
    assert phyla_at("export", "small", "--output", target) == ""
    written = target.read_text()
    assert len(json.loads(written)) == 17
    check_facts(phyla_at("export", "small", "--format", "csv", "-o", target, code=2), target)
    assert target.read_text() == written
    target.unlink()
    phyla_at("export", "small", "--format", "csv", "-o", target)
    assert target.read_text().startswith("trial,member,generation")
    assert [path.name for path in tmp_path.iterdir()] == ["trials.json"]


def test_report(phyla_at: Phyla, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    for _ in range(2):
        assert phyla_at("report", "small", "-o", target) == f"{target}\n"
        assert "small" in target.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_gc(phyla_at: Phyla, small: "tuple[Path, str]") -> None:
    planned = json.loads(phyla_at("gc", "small", "--explain", "--json"))
    assert len(planned["kept"]) <= planned["bound"]
    assert all(kept["why"] for kept in planned["kept"])
    text = phyla_at("gc", "small", "--explain")
    assert text.startswith(planned["formula"])
    check_facts(text, *(kept["checkpoint"] for kept in planned["kept"]))
    kept = {row["checkpoint"] for row in planned["kept"]}
    present = {path.name for path in (small[0] / ".phyla/checkpoints/small").iterdir() if path.name[0] != "."}
    assert present == kept


def test_doctor(phyla_at: Phyla, small: "tuple[Path, str]", tmp_path: Path) -> None:
    found = json.loads(phyla_at("doctor", "--json"))
    assert {one["verdict"] for one in found} <= {"ok", "warn"}
    about = {one["about"] for one in found}
    assert {"versions", "home", "home disk", "home flush", "store", "SQLite", "GPUs", "study small"} <= about
    assert "fail " not in phyla_at("doctor")


def test_doctor_finds_a_damaged_checkpoint(small: "tuple[Path, str]", cli: Phyla) -> None:
    folder = small[0]
    name = json.loads(cli("best", "small", "--home", folder / ".phyla", "--json"))["checkpoint"]["path"]
    weights = Path(name) / "weights.txt"
    weights.rename(folder / "aside")
    try:
        cli("doctor", "--home", folder / ".phyla", "--json", code=1)
    finally:
        (folder / "aside").rename(weights)


def test_doctor_without_anything_makes_nothing(tmp_path: Path, cli: Phyla) -> None:
    text = cli("doctor", "--home", tmp_path / "none")
    check_facts(text, tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_doctor_finds_a_store_that_is_none(tmp_path: Path, cli: Phyla, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "phyla.db").write_bytes(b"this is no database, and never was" * 100)
    cli("doctor", "--home", tmp_path, code=1)


def test_reading_where_there_is_nothing(tmp_path: Path, cli: Phyla) -> None:
    assert cli("status", "--home", tmp_path).startswith("no studies yet in sqlite:///")
    assert json.loads(cli("status", "--home", tmp_path, "--json")) == []
    for option, scheme, place in (
        ("--home", "", tmp_path / "hom"),
        ("--storage", "sqlite:///", tmp_path / "none.db"),
    ):
        check_facts(cli("status", option, f"{scheme}{place}", code=2), place)
    assert list(tmp_path.iterdir()) == []


def test_reading_a_study_without_trials(tmp_path: Path, cli: Phyla) -> None:
    phyla.Study(
        "empty",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Minimize("loss"),
        phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2),
        home=tmp_path,
    ).results()
    at = ("--home", tmp_path)
    assert "0 of 4" in cli("status", *at)
    assert "trials completed: 0 of 4\nsteps: 0 of 4\nmembers: 2\n" in cli("status", "empty", *at)
    assert "no trials yet" in cli("trials", "empty", *at)
    assert "no completed trial" in cli("best", "empty", *at, code=2)
    assert cli("best", "empty", "--json", *at) == "null\n"
    check_facts(cli("export", "empty", "--what", "schedule", *at, code=2), "empty")
    for words in (
        ("status", "empty"),
        ("best", "empty"),
        ("trials", "empty"),
        ("gc", "empty"),
    ):
        json.loads(cli(*words, "--json", *at))
    for what in ("trials", "reports", "lineage"):
        json.loads(cli("export", "empty", "--what", what, *at))
        cli("export", "empty", "--what", what, "--format", "csv", *at)
    cli("report", "empty", "-o", tmp_path / "empty.html", *at)


def test_version_and_no_arguments(cli: Phyla) -> None:
    assert cli("--version") == f"phyla {phyla.__version__}\n"
    overview = cli("--help")
    for name in (
        "run",
        "status",
        "best",
        "trials",
        "export",
        "report",
        "gc",
        "stop",
        "change",
        "doctor",
    ):
        assert name in overview
        assert cli(name, "--help")


# While it runs


@pytest.fixture
def held(tmp_path: Path) -> "Iterator[tuple[Path, Path]]":
    """A folder with a study file whose trials hold until a file is removed."""
    (tmp_path / "small.py").write_text(STUDY_FILE)
    hold = tmp_path / "hold"
    hold.touch()
    yield tmp_path, hold
    hold.unlink(missing_ok=True)


def test_status_and_stop_while_a_study_runs(held: "tuple[Path, Path]", cli: Phyla) -> None:
    folder, hold = held
    at = ("--home", folder / ".phyla")
    running = Forked(
        ["-m", "phyla.cli", "run", "small.py", "--workers", 1], cwd=folder, env=environment(), spares=1
    )
    try:
        until((folder / ".phyla" / "phyla.db").exists, "store")

        def attempts() -> Any:
            listed = json.loads(cli("status", "--json", *at))
            return listed and json.loads(cli("status", "small", "--json", *at))["attempts"]

        (attempt,) = until(attempts, "running attempt")
        assert attempt["member"] == 0
        assert attempt["lease_left_s"] > 0
        assert "renewed " in cli("status", "small", *at)
        assert "running" in cli("trials", "small", *at)
        check_facts(cli("change", "small", *at), "small", "running")
        check_facts(cli("stop", "small", *at), "stopped", "small", "phyla change small")
        hold.unlink()
        output, errors = running.communicate(timeout=TIMEOUT_S)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 1, errors
    check_facts(output, "phyla run small.py")
    resumed = f"phyla run {folder / 'small.py'} --home {folder / '.phyla'} --study small"
    check_facts(cli("change", "small", *at), resumed)
    with closing(open_store(f"sqlite:///{folder}/.phyla/phyla.db")) as store, store.reader(1) as reader:
        noted = [event.message for event in reader.events() if event.kind == "action"]
    assert noted == [f"{user_name()} stopped the study", f"{user_name()} resumed the study"]
    again = in_process(folder, "run", "small.py", "--workers", 0)
    assert again.returncode == 0, again.stderr
    assert json.loads(cli("status", "small", "--json", *at))["completed_trials"] == 16


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, folder: Path, *words: object) -> None:
        self.output = ""
        self._terminal, self._inside = pty.openpty()
        self._process = Forked(
            ["-m", "phyla.cli", *words],
            cwd=folder,
            env=environment() | {"TERM": "xterm", "LINES": "40"},
            first=on_terminal(os.ttyname(self._inside), 0, 1, 2),
            spares=1,
        )

    def read(self) -> bool:
        """Read what there is; return False at the end."""
        try:
            chunk = os.read(self._terminal, 65536)
        except OSError:
            return False
        if not self.output:
            os.close(self._inside)  # the command has it
        self.output += chunk.decode(errors="replace")
        return bool(chunk)

    def read_until(self, text: str) -> None:
        while text not in self.output:
            assert self.read(), f"no {text!r} in {self.output}"

    def press_ctrl_c(self) -> None:
        os.write(self._terminal, b"\x03")

    def hang_up(self) -> int:
        """Close the terminal; return the exit status."""
        os.close(self._terminal)
        return self._process.wait(TIMEOUT_S)

    def end(self) -> int:
        """Read to the end; return the exit status."""
        while self.read():
            pass
        os.close(self._terminal)
        return self._process.wait(TIMEOUT_S)


@pytest.mark.parametrize("workers", [rarely(0), 1])
def test_a_terminal_shows_members_and_ctrl_c_stops_gracefully(held: "tuple[Path, Path]", workers: int) -> None:
    folder, hold = held
    terminal = Terminal(folder, "run", "small.py", "--workers", workers)
    if workers:
        terminal.read_until("started fresh")
        terminal.read_until("running")
        assert "hyperparameters" in terminal.output
    else:
        # In this process nothing is known before the first trial ends.
        terminal.read_until("small: starting")
        until(lambda: is_training(folder / ".phyla"), "running trial")
    terminal.press_ctrl_c()
    terminal.read_until("Ctrl-C stops at once")
    assert terminal.end() == 130
    check_facts(terminal.output, f"phyla run small.py --workers {workers}")
    assert "Traceback" not in terminal.output

    before = terminal.output
    hold.unlink()
    terminal = Terminal(folder, "run", "small.py", "--workers", 0)
    assert terminal.end() == 0
    assert "16 trials completed, 1 failed" in terminal.output
    assert (before + terminal.output).count("trial 2, attempt 1 failed: ValueError: broken") == 1


def test_a_terminal_that_closes_stops_the_study_as_sigterm_does(held: "tuple[Path, Path]") -> None:
    folder, _ = held
    terminal = Terminal(folder, "run", "small.py", "--workers", 1)
    terminal.read_until("started fresh")
    assert terminal.hang_up() == 75
    (study,) = list_studies(folder / ".phyla")
    assert (study.state, study.study().message) == ("stopped", "stopped by SIGHUP; run it again to resume")
    assert {attempt.state for attempt in study.attempts()} <= {"failed", "released"}


@pytest.mark.thorough  # test_supervision.py: the same run by a script
def test_a_second_ctrl_c_stops_at_once(held: "tuple[Path, Path]") -> None:
    folder, _ = held
    text = STUDY_FILE.replace(" and not trial.should_stop", "")
    (folder / "small.py").write_text(text)
    terminal = Terminal(folder, "run", "small.py", "--workers", 1)
    terminal.read_until("started fresh")
    terminal.press_ctrl_c()
    terminal.read_until("Ctrl-C stops at once")
    terminal.press_ctrl_c()
    assert terminal.end() == 130
    assert "stopping at once" in terminal.output
