"""Ctrl-Z and `fg`."""

import signal
from pathlib import Path

from pooled import MEMBERS, TRIALS, Pooled
from waiting import until

CHILD = """
            import subprocess
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            (HERE / f"child-{trial.member}").write_text(str(child.pid))
"""


def stands_still(pid: int) -> bool:
    """Return whether Linux shows a process as stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_workers_and_what_they_started_stand_still_and_go_on_with_their_run(tmp_path: Path) -> None:
    toy = Pooled(tmp_path)
    waits = "            # Both members wait"
    assert waits in toy.file.read_text()
    toy.file.write_text(toy.file.read_text().replace(waits, f"{CHILD}{waits}"))
    run = toy.run("--workers", MEMBERS)
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
    printed, _ = run.communicate(180)
    assert run.returncode == 0, printed
    assert toy.completed()
    assert len(toy.results.attempts()) == TRIALS
