"""Studies in directories with characters that URLs and shells read differently."""

import os
import subprocess
from pathlib import Path

import pytest

import forked
import phyla
from listing import list_studies
from phyla.settings import child_environment

STUDY_FILE = """
import phyla

def train(trial):
    (trial.checkpoint_dir / "weights.txt").write_text("x")
    trial.report(score=trial.params["lr"])

study = phyla.Study(
    "small", {"lr": phyla.Float(0.01, 1.0)}, phyla.Maximize("score"),
    phyla.RandomSearch(members=2, total_steps=1), train,
)
"""
PRINTED = "a report with: phyla "


def output(words: list[bytes], cwd: Path) -> bytes:
    environment = child_environment({"PYTHONIOENCODING": "utf-8:strict"})
    done = forked.run(
        ["-m", "phyla.cli", *map(os.fsdecode, words)], cwd=cwd, env=environment, check=True, spares=1
    )
    return os.fsencode(done.stdout)


def as_a_shell_reads(words: str) -> list[bytes]:
    done = subprocess.run(f"printf '%s\\0' {words}", shell=True, stdout=subprocess.PIPE, timeout=180, check=True)
    return done.stdout.split(b"\0")[:-1]


@pytest.mark.parametrize(
    ("name", "workers"),
    [("""-it's=$HOME "x";&\\y`\nz?1%20A#b ü 模型""".encode(), 1), (b"5% \xff\xfe'\\", 0)],
    ids=repr,
)
def test_a_printed_command_finds_the_study(name: bytes, workers: int, tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(STUDY_FILE)
    printed = output([b"run", b"small.py", b"--workers", str(workers).encode(), b"--home", name], tmp_path)
    again = os.fsdecode(printed.partition(PRINTED.encode())[2])
    assert again
    output(as_a_shell_reads(again), tmp_path)
    assert sorted(os.fsencode(path.name) for path in tmp_path.iterdir()) == sorted(
        [name, b"small.html", b"small.py"]
    )


@pytest.mark.parametrize(("one", "other"), [("run?1", "run?2"), ("exp%20A", "exp A"), ("a#1", "a#2")])
def test_homes_with_similar_names_are_apart(one: str, other: str, tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "weights.txt").write_text("x")
        trial.report(score=1.0)

    for home in (one, other):
        assert list_studies(tmp_path / home) == []
        space, strategy = {"lr": phyla.Float(0.01, 1.0)}, phyla.RandomSearch(members=1, total_steps=1)
        phyla.Study(home[0], space, phyla.Maximize("score"), strategy, train, home=tmp_path / home).run()
        assert [study.name for study in list_studies(tmp_path / home)] == [home[0]]
        assert (tmp_path / home / "phyla.db").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([one, other])
