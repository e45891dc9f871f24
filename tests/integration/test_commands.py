"""Studies that train with commands: real processes, what they report, how they end, and what is left of them."""

import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tensorboardX import SummaryWriter

import phyla
from command_line import Phyla
from facts import check_facts, raises
from forked import Forked
from phyla.errors import StudyChanged, StudyFailed
from phyla.records import AttemptState
from phyla.study.running.display import StudyDisplay
from waiting import until

DESCENT = """
x=10
if [ -n "$6" ]; then x=$(cat "$6/x"); fi
awk -v x="$x" -v lr="$1" -v from="$2" -v to="$3" -v metrics="$5" 'BEGIN {
  for (step = from; step < to; step++) {
    x -= lr * 2 * x
    printf "{\\"step\\": %d, \\"loss\\": %.17g}\\n", step + 1, x * x >> metrics
  }
  printf "%.17g\\n", x
}' > "$4/x"
"""
ARGUMENTS = ("sh", "train.sh", "{lr}", "{start_step}", "{end_step}", "{save_to}", "{metrics}", ["{source}"])
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static FILE *in(const char *folder, const char *mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/x.bin", getenv(folder));
  return fopen(path, mode);
}
int main(int count, char **arguments) {
  double x = 10, lr = atof(arguments[1]);
  if (getenv("PHYLA_SOURCE")) { FILE *old = in("PHYLA_SOURCE", "rb"); fread(&x, sizeof x, 1, old); fclose(old); }
  for (int step = 0; step < atoi(getenv("PHYLA_STEPS")); step++) x -= lr * 2 * x;
  FILE *new = in("PHYLA_SAVE_TO", "wb"); fwrite(&x, sizeof x, 1, new); fclose(new);
  printf("step %s: loss=%.17g\n", getenv("PHYLA_END_STEP"), x * x);
  return 0;
}
"""


def study(
    home: Path, command: Callable[..., object], members: int = 1, trials: int = 2, **more: Any
) -> phyla.Study:
    return phyla.Study(
        "commands",
        phyla.Space(lr=phyla.Float(0.01, 0.1, log=True)),
        phyla.Minimize("loss"),
        phyla.PBT(population_size=members, steps_per_trial=10, total_steps=10 * trials, quorum=1.0),
        command,
        home=home,
        **more,
    )


def shell(folder: Path, script: str, **options: Any) -> phyla.Command:
    """Return a command that runs a shell script with `{save_to}`, `{metrics}`, and `{source}` if any."""
    (folder / "script.sh").write_text(script)
    return phyla.Command(["sh", "script.sh", "{save_to}", "{metrics}", ["{source}"]], cwd=folder, **options)


GOOD = 'echo 1 > "$1/x"; echo "{\\"loss\\": 1}" >> "$2"\n'


def losses(results: phyla.Results) -> list[tuple[int, int, float]]:
    return sorted((one.member, one.generation, float(one.metrics["loss"])) for one in results.trials())  # type: ignore[arg-type]


def attempts(results: phyla.Results) -> list[AttemptState]:
    return [attempt.state for attempt in results.attempts()]


def in_python(trial: phyla.Trial) -> None:
    x = float((trial.source.path / "x").read_text()) if trial.source else 10.0
    for step in trial.steps():
        x -= trial.params["lr"] * 2 * x
        trial.report(loss=x * x, step=step + 1)
    (trial.checkpoint_dir / "x").write_text(f"{x:.17g}")


def test_a_shell_script_and_a_compiled_program_train_as_a_function_does(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(DESCENT)
    (tmp_path / "train.c").write_text(PROGRAM)
    subprocess.run(["cc", "-o", "train", "train.c"], cwd=tmp_path, check=True, capture_output=True)
    function = study(tmp_path / "function", in_python, members=3, trials=3).run()
    script = study(tmp_path / "script", phyla.Command(ARGUMENTS, cwd=tmp_path), members=3, trials=3).run()
    patterns = {"loss": r"loss=(\S+)", "step": r"^step (\d+)"}
    compiled = phyla.Command(["./train", "{lr}"], cwd=tmp_path, metrics=patterns)
    program = study(tmp_path / "program", compiled, members=3, trials=3).run()
    expected = losses(function)
    for results in (script, program):
        assert results.counts() == {"completed": 9}
        assert [found[:2] for found in losses(results)] == [found[:2] for found in expected]
        assert [found[2] for found in losses(results)] == pytest.approx([found[2] for found in expected])
        assert not results.findings()
    assert [one.step for one in script.reports(1)] == [*range(1, 11)]


def test_a_script_with_a_mistake_ends_the_study_at_its_second_try(tmp_path: Path, cli: Phyla) -> None:
    command = shell(tmp_path, "echo warming up\nno-such-command --lr\n")
    with pytest.raises(StudyFailed) as caught:
        study(tmp_path, command, members=4).run()
    message = str(caught.value)
    check_facts(message, "CommandFailed", "status 127")
    assert "no-such-command: not found; all output is in" in message
    check_facts(message, "script.sh", "{save_to}", "{metrics}", "{source}")
    results = study(tmp_path, command, members=4).results()
    error = next(trial.error for trial in results.trials() if trial.failures) or ""
    assert ".txt:\nwarming up" in error
    assert ".txt:\nscript.sh: 2: no-such-command" in error
    assert sum(trial.failures for trial in results.trials()) <= 4
    assert "exit status 127" in cli("--home", tmp_path, "status", "commands")
    assert "no-such-command: not found" in cli("--home", tmp_path, "trials", "commands")


@pytest.mark.parametrize(
    ("script", "files"),
    [("echo lost", ["stdout"]), ("echo lost >&2", ["stderr"]), ("echo a; echo lost >&2", ["stderr", "stdout"])],
)
def test_the_files_that_hold_the_output_are_named(
    tmp_path: Path, cli: Phyla, script: str, files: list[str]
) -> None:
    with pytest.raises(StudyFailed) as caught:
        study(tmp_path, shell(tmp_path, f"{script}\nexit 3\n"), members=1).run()
    for told in (str(caught.value), cli("--home", tmp_path, "status", "commands")):
        named = {*re.findall(r"exit status 3: lost; all output is in (.*?\.txt(?: and .*?\.txt)*)", told)}
        assert named
        for paths in named:
            first, *more = map(Path, paths.split(" and "))
            assert [path.name.split("-")[0] for path in (first, *more)] == files
            assert all((first.parent / path).read_text() for path in (first, *more))


def test_a_signal_a_time_out_and_what_cannot_start_are_told_apart(tmp_path: Path) -> None:
    cases = {
        "SIGSEGV: it wrote no output": shell(tmp_path, "kill -SEGV $$"),
        "time-out after 3 s: waiting": phyla.Command(
            ["sh", "-c", "trap '' TERM; echo waiting; while :; do sleep 1000; done"], timeout_s=3, grace_s=0.1
        ),
        "it cannot be started: Exec format error": phyla.Command(["./data"], cwd=tmp_path),
        "No such file or directory: './windows'; its first line names an interpreter that is not there": (
            phyla.Command(["./windows"], cwd=tmp_path)
        ),
        "it cannot be started: No such file or directory: '{working_dir}/x'": phyla.Command(
            ["true"], cwd="{working_dir}/x"
        ),
    }
    (tmp_path / "data").write_bytes(b"\x7fELF")
    (tmp_path / "windows").write_bytes(b"#!/bin/sh\r\necho\r\n")
    for name in ("data", "windows"):
        (tmp_path / name).chmod(0o755)
    for number, (words, command) in enumerate(cases.items()):
        made = study(tmp_path / str(number), command)
        with raises(StudyFailed, "CommandFailed"):
            made.run()
        error = made.results().trials()[0].error or ""
        assert words.replace("{working_dir}", f"{tmp_path}/{number}/work/commands/trial-1") in error, error


def test_exit_status_75_gives_the_trial_back_without_a_failure_and_without_a_hot_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It looks all the time, also where a look takes long.
    monkeypatch.setattr("phyla.study.running.display.LINES_EVERY_S", 0.0)
    monkeypatch.setattr("phyla.study.results.progress.SHARE", 0.0)
    script = "if [ ! -e again ]; then echo busy >&2; echo >> again; exit 75; fi\n" + GOOD
    began = time.monotonic()
    with StudyDisplay("commands") as display:
        results = study(tmp_path, shell(tmp_path, script), trials=1).run(1, on_progress=display.progressed)
    assert time.monotonic() - began >= 1
    (trial,) = results.trials()
    assert (trial.failures, trial.token) == (0, 2)
    assert attempts(results) == [AttemptState.RELEASED, AttemptState.COMPLETED]
    (line,) = re.findall(r"trial 1: .*", capsys.readouterr().out)
    check_facts(line, "queue", "exit status 75", "busy", "trial-1/stderr-1.txt")


@pytest.mark.parametrize(("status", "failures"), [(75, 0), (3, 1)])
def test_what_was_reported_before_saved_progress_stays_however_the_command_ends(
    tmp_path: Path, status: int, failures: int
) -> None:
    script = f"""
    if [ "$PHYLA_START_STEP" = 0 ]; then
      for step in 1 2 3 4 5; do echo "{{\\"step\\": $step, \\"loss\\": 1}}" >> "$2"; done
      echo 1 > "$1/x"; echo '{{"step": 5, "saved": true}}' >> "$2"
      while [ -e "$1/x" ]; do sleep 0.01; done
      exit {status}
    fi
    echo 1 > "$1/x"; echo '{{"step": 10, "loss": 1}}' >> "$2"
    """
    results = study(tmp_path, shell(tmp_path, script), trials=1).run()
    (trial,) = results.trials()
    assert (trial.failures, trial.token) == (failures, 2)
    assert [report.step for report in results.reports(trial.id)] == [1, 2, 3, 4, 5, 10]


@pytest.mark.parametrize(
    ("script", "facts"),
    [
        ('echo "{\\"loss\\": 1}" >> "$2"', "NoCheckpoint {save_to}"),
        ("echo CUDA error >&2; exit 0", "NoCheckpoint {save_to} CUDA error"),
        ('echo 1 > "$1/x"; echo "{\\"step\\": 3, \\"los\\": 1}" >> "$2"', "NoFitness los loss {metrics}"),
        (GOOD + 'echo "loss = 1" >> "$2"', "MetricsUnreadable metrics-2.jsonl line 2 JSON"),
        (GOOD + 'printf "{\\"loss\\"" >> "$2"', "MetricsUnreadable metrics-2.jsonl line 2 JSON"),
        (GOOD + 'echo "{\\"a\\": \\"?\\", \\"loss\\": [1]}" >> "$2"', "metrics-2.jsonl line 2 report(loss=[1])"),
        ('echo "{\\"step\\": 3, \\"saved\\": true}" >> "$2"', "line 1 {save_to}"),
        ('echo 1 > "$1/x"; echo "{\\"step\\": 99, \\"saved\\": true}" >> "$2"', "line 1 save_progress(step=99)"),
        ('printf "{\\"loss\\"" >> "$2"; echo crashed >&2; exit 3', "CommandFailed status 3 crashed"),
        ('rm -r "$1"', "CheckpointMissing .staging/1."),
        ('rmdir "$1"; echo 1 > "$1"; echo "{\\"loss\\": 1}" >> "$2"', "CheckpointMissing .staging/1."),
        ('rm "$2"', "MetricsUnreadable metrics-2.jsonl deleted"),
    ],
)  # fmt: skip
def test_what_a_script_forgets_is_said(tmp_path: Path, script: str, facts: str) -> None:
    made = study(tmp_path, shell(tmp_path, script + "\n"), members=2)
    with raises(StudyFailed, *facts.split()):
        made.run()
    check_facts(made.results().trials()[0].error, *facts.split())


def test_a_pattern_that_matched_nothing_is_named(tmp_path: Path) -> None:
    command = shell(tmp_path, 'echo 1 > "$1/x"; echo loss: 3\n', metrics={"loss": r"loss = (\d+)"})
    words = r"pattern of 'loss' matched nothing in .*stdout-.\.txt.*: loss = \(\\d\+\)"
    with pytest.raises(StudyFailed, match=words) as caught:
        study(tmp_path, command).run()
    assert "into {metrics}" not in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (
            ("runs/*", "eval/los"),
            r"'eval/los' is not in files that match .*/runs/\*; did you mean 'eval/loss'",
        ),
        (
            ("logs/*tfevents*", "eval/loss"),
            r"nothing was read from .*/trial-.*/logs/\*tfevents\*",
        ),
    ],
)
def test_why_nothing_came_from_tensorboard_files_is_said(
    tmp_path: Path, wanted: tuple[str, str], words: str
) -> None:
    with SummaryWriter(str(tmp_path / "runs")) as writer:
        writer.add_scalar("eval/loss", 1.0, 10)
    script = 'echo 1 > "$1/x"; cp -r runs "$PHYLA_WORKING_DIR"\n'
    command = shell(tmp_path, script, tensorboard={"loss": wanted})
    with pytest.raises(StudyFailed, match=r"In \[tensorboard\], .*" + words) as caught:
        study(tmp_path, command).run()
    assert "into {metrics}" not in str(caught.value)


def test_a_bad_line_stops_the_command_and_loses_nothing_else(tmp_path: Path) -> None:
    script = """
    if [ -n "$3" ]; then cat "$3/x"; else echo none; fi >> sources
    if [ ! -e once ]; then
      touch once; echo saved > "$1/x"; echo '{"step": 2, "saved": true, "loss": 3}' >> "$2"
      echo oops >> "$2"; echo '{"step": 4, "loss": 2}' >> "$2"; while :; do sleep 0.1; done
    fi
    """
    results = study(tmp_path, shell(tmp_path, script + GOOD), trials=1).run()
    (trial,) = results.trials()
    assert (trial.failures, trial.token) == (1, 2)
    assert attempts(results) == [AttemptState.FAILED, AttemptState.COMPLETED]
    assert "line 2 is not JSON" in (results.attempts()[0].error or "")
    # The second attempt went on from what the first one had saved.
    assert [(one.step, one.metrics["loss"]) for one in results.reports(trial.id)][-1] == (10, 1.0)
    assert (tmp_path / "sources").read_text().split() == ["none", "saved"]
    assert (tmp_path / "work/commands/trial-1/metrics-1.jsonl").exists()


def test_a_variable_without_a_value_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESUME", "of the user")
    env = {"RESUME": "{source}/x", "KIND": "of {opt}"}
    (tmp_path / "script.sh").write_text('echo "${RESUME-none} ${KIND-none}" >> said\n' + GOOD)
    command = phyla.Command(["sh", "script.sh", "{save_to}", "{metrics}"], cwd=tmp_path, env=env)
    space = phyla.Space(
        use=phyla.Choice([False, True], initial=False), opt=phyla.Choice(["sgd"], when={"use": True})
    )
    strategy = phyla.PBT(population_size=1, steps_per_trial=10, total_steps=20)
    phyla.Study("env", space, phyla.Minimize("loss"), strategy, command, home=tmp_path).run()
    first, second = (tmp_path / "said").read_text().splitlines()
    assert first == "none none"
    assert second.endswith("/x none")
    assert "of the user" not in second


def test_a_source_without_a_file_that_matches(tmp_path: Path) -> None:
    (tmp_path / "script.sh").write_text(GOOD)
    command = phyla.Command(["sh", "script.sh", "{save_to}", "{metrics}", ["{source:*.pth}"]], cwd=tmp_path)
    made = study(tmp_path, command)
    with raises(StudyFailed, "{source:*.pth}"):
        made.run()
    assert made.results().counts() == {"completed": 1, "pending": 1}


@pytest.mark.thorough  # unit/worker/test_processes.py: what is kept of long outputs
def test_80_mb_of_binary_output_fill_neither_memory_nor_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phyla.worker.commands.outputs.KEPT_BYTES", (1 << 20, 4 << 20))
    script = "echo first; head -c 40000000 /dev/zero; echo last\nhead -c 40000000 /dev/urandom >&2\nexit 3\n"
    made = study(tmp_path, shell(tmp_path, script, metrics={"loss": "loss=(\\d+)"}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with raises(StudyFailed, "status 3") as caught:
        made.run()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
    error = made.results().trials()[0].error or ""
    assert len(error) < 5000
    assert all(char.isprintable() or char == "\n" for char in error + str(caught.value))
    output = (tmp_path / "work/commands/trial-1/stdout-1.txt").read_bytes()
    assert (output[:7], output[-6:]) == (b"first\n\0", b"\0last\n")
    for name in ("stdout-1.txt", "stderr-1.txt"):
        found = (tmp_path / "work/commands/trial-1" / name).stat()
        assert found.st_size >= 40_000_000
        assert found.st_blocks * 512 <= 9 << 20


@pytest.mark.thorough  # unit/worker/test_readings.py
def test_a_script_that_writes_tensorboard_files_and_reads_the_environment_needs_no_change(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import json, os, pathlib\n"
        "from tensorboardX import SummaryWriter\n"
        "params = json.loads(os.environ['PHYLA_PARAMS'])\n"
        "assert params == json.load(open(os.environ['PHYLA_PARAMS_FILE'])) and list(params) == ['lr']\n"
        "pathlib.Path(os.environ['PHYLA_SAVE_TO'], 'x').write_text(os.environ['NOTE'])\n"
        "with SummaryWriter('runs/mine') as writer:\n"
        "    for step in range(int(os.environ['PHYLA_START_STEP']), int(os.environ['PHYLA_END_STEP'])):\n"
        "        writer.add_scalar('eval/loss', params['lr'], step + 1)\n"
    )
    command = phyla.Command(
        [sys.executable, str(tmp_path / "train.py")],
        tensorboard={"loss": ("runs/**/*tfevents*", "eval/loss")},
        env={"NOTE": "{member} of {trial}"},
        cwd="{working_dir}",
    )
    results = study(tmp_path, command, trials=1).run()
    (trial,) = results.trials()
    assert [one.step for one in results.reports(trial.id)] == [*range(1, 11)]
    assert trial.fitness == pytest.approx(trial.params["lr"])
    assert results.best is not None
    assert (results.best.checkpoint.path / "x").read_text() == "0 of 1"


def test_a_command_that_forks_away_leaves_nothing_running(tmp_path: Path) -> None:
    away = "setsid sh -c 'echo $$ > pid; exec sleep 1000' > /dev/null 2>&1 &\nwhile [ ! -s pid ]; do :; done\n"
    assert study(tmp_path, shell(tmp_path, away + GOOD), trials=1).run().counts() == {"completed": 1}
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


LONG = """
if [ -n "$3" ]; then from=$(cat "$3/x"); else from=0; fi
echo $$ $from $PHYLA_START_STEP >> pids
stop() { echo 6 > "$1/x"; echo '{"step": 6, "saved": true}' >> "$2"; exit 0; }
trap 'stop "$1" "$2"' TERM
if [ "$from" -lt 10 ] && [ ! -e go ]; then
  echo 4 > "$1/x"; echo '{"step": 4, "loss": 2, "saved": true}' >> "$2"
  while [ -e "$1/x" ]; do sleep 0.02; done
  touch taken; setsid sleep 1000 & echo $! > away
  while :; do sleep 0.05; done
fi
echo 10 > "$1/x"; echo '{"step": 10, "loss": 1}' >> "$2"
"""
FILE = """
import phyla, sys
study = phyla.Study("commands", phyla.Space(lr=phyla.Float(0.01, 0.1)), phyla.Minimize("loss"),
    phyla.PBT(population_size=1, steps_per_trial=10, total_steps=10),
    phyla.Command(["sh", "script.sh", "{save_to}", "{metrics}", ["{source}"]], grace_s=20), home="home")
if __name__ == "__main__":
    study.run(workers=int(sys.argv[1]), lease_s=3)
"""


def long_run(folder: Path, workers: int) -> Forked:
    (folder / "script.sh").write_text(LONG)
    (folder / "file.py").write_text(FILE)
    run = Forked(["file.py", workers], cwd=folder, spares=2 * workers)
    until((folder / "taken").exists, "the checkpoint is taken")
    until(lambda: (folder / "away").exists() and (folder / "away").read_text(), "a child")
    results = phyla.load_study("commands", home=folder / "home")
    until(lambda: results.trials()[0].progress_step == 4 or (folder / "go").exists(), "progress")
    return run


def nothing_left(folder: Path) -> None:
    pids = [
        int((folder / "away").read_text()),
        *(int(line.split()[0]) for line in (folder / "pids").read_text().splitlines()),
    ]
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "all are gone")


@pytest.mark.parametrize("what", ["command", "worker", "run"])
def test_after_kill_9_nothing_is_left_and_the_trial_goes_on_from_its_progress(tmp_path: Path, what: str) -> None:
    workers = 0 if what == "run" else 1
    run = long_run(tmp_path, workers)
    command = psutil.Process(int((tmp_path / "pids").read_text().split()[0]))
    keeper = command.parent()
    worker = None if keeper is None else keeper.parent()
    assert worker is not None
    assert (worker.pid == run.pid) == (what == "run")
    (command if what == "command" else worker).kill()
    if what == "run":
        run.wait(180)
        nothing_left(tmp_path)
    (tmp_path / "go").touch()
    if what == "run":
        run = long_run(tmp_path, 0)
    assert run.wait(180) == 0
    nothing_left(tmp_path)
    results = phyla.load_study("commands", home=tmp_path / "home")
    (trial,) = results.trials()
    assert trial.token == 2
    assert trial.failures == (0 if what == "run" else 1)
    # Where the second attempt began: what it loaded, and what it was told.
    assert (tmp_path / "pids").read_text().splitlines()[-1].split()[1:] == ["4", "4"]


def test_sigterm_lets_the_command_save_and_costs_no_attempt(tmp_path: Path) -> None:
    run = long_run(tmp_path, 1)
    run.terminate()
    assert run.wait(180) != 0
    nothing_left(tmp_path)
    (tmp_path / "go").touch()
    assert long_run(tmp_path, 0).wait(180) == 0
    (trial,) = phyla.load_study("commands", home=tmp_path / "home").trials()
    assert (trial.failures, trial.token) == (0, 2)
    assert (tmp_path / "pids").read_text().splitlines()[-1].split()[1:] == ["6", "6"]


def test_a_stopping_rule_stops_a_command_while_it_runs(tmp_path: Path) -> None:
    script = (
        'echo 1 > "$1/x"\nif [ -e stopped ]; then echo "{\\"loss\\": 1}" >> "$2"; exit; fi\n'
        "trap 'touch stopped; exit 0' TERM\n"
        'echo "{\\"step\\": 1, \\"loss\\": 9}" >> "$2"; while :; do sleep 0.05; done\n'
    )
    rule = phyla.strategies.Divergence(above=5.0)
    results = study(tmp_path, shell(tmp_path, script), trials=1, stopping=rule).run()
    assert (tmp_path / "stopped").exists()
    assert results.counts() == {"cancelled": 1, "completed": 1}


def test_an_edited_command_is_edited_training_code_and_nobody_joins_with_it(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(DESCENT)
    study(tmp_path, phyla.Command(ARGUMENTS, cwd=tmp_path), trials=1).run()
    edited = phyla.Command(ARGUMENTS, cwd=tmp_path, env={"SHARPNESS": "2"})
    with raises(StudyChanged, "train.env.SHARPNESS", "2"):
        study(tmp_path, edited, trials=1).work()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tmp_path, elsewhere, ignore=shutil.ignore_patterns("elsewhere"))
    assert study(tmp_path, phyla.Command(ARGUMENTS, cwd=elsewhere), trials=1).work().counts() == {"completed": 1}
    assert not study(tmp_path, phyla.Command(ARGUMENTS, cwd=tmp_path), trials=1).run().findings()
    more = study(tmp_path, edited, trials=2)
    more.change()
    (finding,) = more.run().findings()
    assert finding.text.startswith("the command sh train.sh {lr} {start_step}")
    assert "changed since this study began" in finding.text


def test_what_a_command_does_not_use_and_steps_of_its_own_are_found(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(GOOD.replace("loss", 'step\\": 0, \\"loss'))
    command = phyla.Command(["sh", "train.sh", "{save_to}", "{metrics}", "{batch}"], cwd=tmp_path)
    made = phyla.Study(
        "unused",
        phyla.Space(lr=phyla.Float(0.01, 0.1), batch=phyla.Choice([1, 2])),
        phyla.Minimize("loss"),
        phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2),
        command,
        home=tmp_path,
    )
    texts = [one.text for one in made.run().findings()]
    assert any(text.startswith("the command has no {source}: every trial starts from scratch") for text in texts)
    assert any(text.startswith("the command has no {lr}: the values") for text in texts)
    assert not any("batch" in text for text in texts)
    (steps,) = (text for text in texts if "reported" in text)
    assert re.match(
        r"trial \d trained from step 1 to step 2, and reported steps from 0 to 0\. .* {start_step}", steps
    )
