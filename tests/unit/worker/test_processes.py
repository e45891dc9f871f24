"""What a command starts ends with it, in whatever session it is, and with the process that ran it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from facts import raises
from phyla.worker.commands.outputs import tail
from phyla.worker.containment.processes import CannotStart, Process, describe_status
from waiting import until

STRAYS = """
import os, subprocess, sys
folder = sys.argv[1]
sleep = ["sleep", "1000"]
found = [
    subprocess.Popen(sleep),
    subprocess.Popen(sleep, start_new_session=True),
    # Neither the mark in its environment, nor its parent, nor its session is left.
    subprocess.Popen(["env", "-i", "setsid", "sh", "-c", f"sleep 1000 & echo $! > {folder}/away; wait"]),
]
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    open(folder + "/daemon", "w").write(str(os.getpid()))
    os.execvp("sleep", sleep)
for name in ("away", "daemon"):
    while not (os.path.exists(f"{folder}/{name}") and os.path.getsize(f"{folder}/{name}")):
        pass
open(folder + "/part", "w").write(" ".join(str(each.pid) for each in found))
os.rename(folder + "/part", folder + "/pids")
"""


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def marked(pids: list[int]) -> list[int]:
    return [pid for pid in pids if b"PHYLA_WORKER" in Path(f"/proc/{pid}/environ").read_bytes()]


def start(folder: Path, *arguments: str) -> Process:
    log = (folder / "log").open("wb")
    with log:
        return Process(arguments, output=log, errors=log)


def strays(folder: Path) -> list[int]:
    until((folder / "pids").exists, "children")
    return [int(pid) for name in ("away", "daemon", "pids") for pid in (folder / name).read_text().split()]


@pytest.mark.parametrize("way", ["ends", "is killed", "is ended", "keeper"])
def test_nothing_is_left_of_a_command(tmp_path: Path, way: str) -> None:
    last = "" if way == "ends" else "import time; time.sleep(1000)"
    process = start(tmp_path, sys.executable, "-c", STRAYS + last, str(tmp_path))
    pids = strays(tmp_path)
    if way == "ends":
        assert process.wait(180) == 0
    elif way == "is killed":
        psutil.Process(pids[-1]).parent().kill()  # type: ignore[union-attr]
        assert process.wait(180) == -signal.SIGKILL
    elif way == "is ended":
        process.kill()
        assert process.wait(0) == -signal.SIGKILL
    else:
        # Then only those are found that carry the mark.
        until(lambda: len(marked(pids)) == 3, "the last has become `sleep`: meanwhile it has no environment")
        kept = marked(pids)
        lost = set(pids) - set(kept)
        process._keeper.kill()
        assert process.wait(180) == -signal.SIGKILL
        for pid in lost:
            os.kill(pid, signal.SIGKILL)
        pids = kept
    until(lambda: all(map(gone, pids)), "all are gone")


def test_nothing_is_left_when_the_process_that_ran_it_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom phyla.worker.containment.processes import Process\n"
        f"log = open({str(tmp_path / 'log')!r}, 'wb')\n"
        "Process([sys.executable, '-c', sys.argv[1], sys.argv[2]], output=log, errors=log).wait()"
    )
    run = [sys.executable, "-c", program, STRAYS + "import time; time.sleep(1000)", str(tmp_path)]
    with subprocess.Popen(run) as runner:
        pids = strays(tmp_path)
        assert not any(map(gone, pids))
        runner.kill()
    until(lambda: all(map(gone, pids)), "all are gone")


def test_a_signal_goes_to_the_command(tmp_path: Path) -> None:
    script = "trap 'echo caught; exit 7' TERM; touch ready; while :; do sleep 0.01; done"
    with (tmp_path / "log").open("wb") as log:
        process = Process(["sh", "-c", script], output=log, errors=log, cwd=str(tmp_path))
    assert process.wait(0) is None
    until((tmp_path / "ready").exists, "it is ready")
    process.terminate()
    assert process.wait(180) == 7
    assert process.wait(0) == 7
    assert (tmp_path / "log").read_text() == "caught\n"
    process.terminate()
    process.kill()


def test_a_command_starts_with_signals_as_usual_and_the_given_environment(tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("wb") as log,
        Process(
            [
                "sh",
                "-c",
                "grep SigIgn /proc/$$/status; echo $ONE ${HOME-none} $PHYLA_WORKER; readlink /proc/$$/fd/0",
            ],
            output=log,
            errors=log,
            environment={"ONE": "1", "HOME": None},
        ) as process,
    ):
        assert process.wait(180) == 0
    ignored, environment, stdin = (tmp_path / "log").read_text().splitlines()
    # The C library ignores two beyond these.
    assert int(ignored.split()[1], 16) & 0x7FFFFFFF == 0
    assert environment.startswith("1 none ")
    assert environment.endswith(":")
    assert stdin == "/dev/null"


@pytest.mark.parametrize(
    ("arguments", "cwd", "words"),
    [
        (["./nowhere"], ".", "./nowhere"),
        (["./text"], ".", "./text"),
        (["true"], "nowhere", "No such file or directory ' nowhere'"),
        (["true", "x" * 200_000], ".", "Argument list too long"),
        (["true", "\0"], ".", "null byte"),
    ],
)
def test_what_cannot_be_started_is_said(tmp_path: Path, arguments: list[str], cwd: str, words: str) -> None:
    (tmp_path / "text").touch()
    with (tmp_path / "log").open("wb") as log, raises(CannotStart, *words.split()):
        Process(arguments, output=log, errors=log, cwd=str(tmp_path / cwd)).wait()


def test_the_middle_of_a_long_output_leaves_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.worker.commands.outputs.KEPT_BYTES", (1 << 20, 2 << 20))
    script = "echo first; head -c 20000000 /dev/urandom; echo last; read go"
    with (tmp_path / "log").open("wb") as log, Process(["sh", "-c", script], output=log, errors=log) as process:
        assert process.wait() == 1  # there is nothing to read
    found = (tmp_path / "log").stat()
    assert found.st_size == 20_000_011
    assert found.st_blocks * 512 <= 5 << 20
    assert (tmp_path / "log").read_bytes()[:6] == b"first\n"
    assert tail(tmp_path / "log").endswith("last")


def test_how_a_command_ended_is_said_in_words() -> None:
    assert [describe_status(status) for status in (3, -15, -9, -64, -99)] == [
        "exit status 3",
        "SIGTERM",
        "SIGKILL (out of memory?)",
        "SIGRTMAX",
        "signal 99",
    ]
