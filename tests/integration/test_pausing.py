"""Ctrl-Z and `fg`."""

import os
import signal
import time
from pathlib import Path

from forked import Forked
from phyla.settings import child_environment
from phyla.study import load_study
from pooled import MEMBERS, TRIALS, Pooled
from waiting import until

CHILD = """
            import subprocess
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            (HERE / f"child-{trial.member}").write_text(str(child.pid))
"""


LIMIT_S = 12
SCRIPTS = {
    "train.sh": """
        if [ "$PHYLA_START_STEP" -gt 0 ]; then
            touch waits-train
            while [ ! -e go ]; do sleep 0.05; done
        fi
        echo "$PHYLA_TRIAL" > "$PHYLA_SAVE_TO/w"
        echo x=1
    """,
    "evaluate.sh": """
        touch waits-evaluate
        while [ ! -e go ]; do sleep 0.05; done
        echo '{"x": 1}' > "$1"
    """,
    "toy.py": f"""
import phyla

evaluate = phyla.EvalTask("t", command="sh evaluate.sh {{results}}", timeout_s={LIMIT_S}, max_attempts=1)
study = phyla.Study(
    "toy",
    phyla.Space(lr=phyla.Float(0.1, 1.0)),
    phyla.Maximize("x"),
    phyla.RandomSearch(members=1, steps_per_trial=1, total_steps=2),
    phyla.Command(["sh", "train.sh"], metrics={{"x": "x=(.*)"}}, timeout_s={LIMIT_S}),
    suites=[phyla.Suite("s", [evaluate])],
)
""",
}


def stands_still(pid: int) -> bool:
    """Return whether Linux shows a process as stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_workers_and_what_they_started_stand_still_and_go_on_with_their_run(tmp_path: Path) -> None:
    toy = Pooled(tmp_path)
    waits = "            # Both members wait"
    assert waits in toy.file.read_text()
    toy.file.write_text(toy.file.read_text().replace(waits, f"{CHILD}{waits}"))
    # In this session, as a shell would start it.
    run = Forked(
        ["-m", "phyla.cli", "run", toy.file, "--workers", MEMBERS],
        cwd=tmp_path,
        env=child_environment({"PHYLA_HOME": str(toy.home)}),
        merged=True,
        first=os.setpgrp,
        spares=MEMBERS,
    )
    toy.until_waiting()
    working = [attempt.worker for attempt in toy.results.attempts() if attempt.ended_at is None]
    pids = [run.pid, *(int(worker.split(":")[2]) for worker in working)]
    pids += [int(file.read_text()) for file in tmp_path.glob("child-*")]
    assert len(pids) == 1 + 2 * MEMBERS
    run.send_signal(signal.SIGTSTP)
    until(lambda: all(map(stands_still, pids)), "all of them stand still")
    run.send_signal(signal.SIGCONT)
    until(lambda: not any(map(stands_still, pids)), "all of them go on")
    toy.go_on()
    printed, _ = run.communicate(timeout=180)
    assert run.returncode == 0, printed
    assert toy.completed()
    assert len(toy.results.attempts()) == TRIALS


def test_a_pause_does_not_count_for_time_limits(tmp_path: Path) -> None:
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    words = ["--workers", "2", "--stall-timeout", f"{LIMIT_S}s"]
    run = Forked(
        ["-m", "phyla.cli", "run", "toy.py", *words],
        cwd=tmp_path,
        env=child_environment({"PHYLA_HOME": str(tmp_path / "home")}),
        merged=True,
        first=os.setpgrp,
        spares=2,
    )
    until(lambda: len(list(tmp_path.glob("waits-*"))) == 2, "a trial and an eval task wait", process=run)
    run.send_signal(signal.SIGTSTP)
    until(lambda: stands_still(run.pid), "it stands still")
    time.sleep(LIMIT_S)
    run.send_signal(signal.SIGCONT)
    until(lambda: not stands_still(run.pid), "it goes on")
    # So long that its limits are looked at, and that a command that is late is ended.
    time.sleep(0.5)
    (tmp_path / "go").touch()
    printed, _ = run.communicate(timeout=180)
    assert run.returncode == 0, printed
    results = load_study("toy", home=tmp_path / "home")
    assert results.counts() == {"completed": 2}
    assert len(results.attempts()) == 2, printed
    assert {cell.status for cell in results.evaluations().cells("s")} == {"done"}, printed


def test_a_run_that_no_shell_could_let_go_on_does_not_stand_still(tmp_path: Path) -> None:
    toy = Pooled(tmp_path)
    run = toy.run("--workers", MEMBERS, spares=MEMBERS)  # in a session of its own, as ssh and tmux start it
    toy.until_waiting()
    run.send_signal(signal.SIGTSTP)
    toy.go_on()
    try:
        printed, _ = run.communicate(60)
    finally:
        run.send_signal(signal.SIGCONT)
    assert run.returncode == 0, printed
    assert toy.completed()
    assert len(toy.results.attempts()) == TRIALS
