"""`phyla check` on a file, each experiment in a process of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import forked
from effort import rarely
from facts import check_facts
from phyla.settings import child_environment

pytestmark = pytest.mark.xdist_group("frameworks")

EXAMPLES = Path(__file__).parents[2] / "examples"
CORRECT = [EXAMPLES / "gan/ring.py", EXAMPLES / "digits/digits.py", *sorted(EXAMPLES.glob("frameworks/*.py"))]
SLOW = ("digits_jax", "digits_lightning", "text_huggingface")
"""Checked before a release; that their trials go on where others ended is tested on each change, too."""

FILE = """\
import json
import os
import time
import numpy as np
import phyla

EARLY, CACHE = np.random.default_rng(3), {}
print("reading the file")
FACTOR = {}


def train(trial):
    import torch

    print("training")
    torch.manual_seed(trial.seed)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"], momentum=0.9)
    if trial.source is not None:
        state = torch.load(trial.source.path / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])  # and with it the old learning rate
    for _ in trial.steps():
        x = torch.randn(16, 4)
        loss = ((model(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, trial.checkpoint_dir / "state.pt")
    trial.report(loss=sum(((parameter - 1) ** 2).sum() for parameter in model.parameters()).item())


def dies(trial):
    if not os.path.exists("died"):
        open("died", "w").close()
        os.abort()
    noisy(trial)


def remembers(trial):
    w = float((trial.source.path / "w.txt").read_text()) if trial.source else EARLY.random()  # others each time
    v = FACTOR.get(trial.source.trial if trial.source else None, 0.0)
    for _ in trial.steps():
        v = 0.9 * v - trial.params["lr"] * w
        w += v
    FACTOR[trial.id] = v
    (trial.checkpoint_dir / "w.txt").write_text(repr(w))
    trial.report(loss=w * w)


def first_rate(trial):
    rate = CACHE.setdefault("rate", trial.params["lr"])
    w = json.loads((trial.source.path / "w.json").read_text())[0] if trial.source else 1.0
    for _ in trial.steps():
        w -= rate * w
    (trial.checkpoint_dir / "w.json").write_text(json.dumps([w, 1.0]))
    trial.report(loss=w * w)


def labeled(trial):
    w = json.loads((trial.source.path / "w.json").read_text())["w"] if trial.source else 1.0
    for _ in trial.steps():
        w -= trial.params["lr"] * w
    labels = {"trial": trial.id, "member": trial.member, "saved_at": time.time()}
    (trial.checkpoint_dir / "w.json").write_text(json.dumps({"w": w, **labels}))
    trial.report(loss=w * w)


def noisy(trial):
    assert trial.source is None or (trial.source.path / "w.bin").exists()
    (trial.checkpoint_dir / "w.bin").write_bytes(os.urandom(64))
    trial.report(loss=int.from_bytes(os.urandom(4), "big"))


def study(name, function):
    strategy = phyla.PBT(population_size=4, steps_per_trial=3, total_steps=30)
    return phyla.Study(name, {"lr": phyla.Float(1e-4, 1e-2, log=True)}, phyla.Minimize("loss"), strategy, function)


old, dead, memory = study("old", train), study("dead", dies), study("memory", remembers)
noise = study("noise", noisy)
cached, labels = study("cached", first_rate), study("labels", labeled)
"""


def check(
    folder: Path, *words: str, command: str = "check", file: str = "file.py", frameworks: bool = False
) -> "subprocess.CompletedProcess[str]":
    (folder / "file.py").write_text(FILE)
    (folder / "tmp").mkdir(exist_ok=True)
    more = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder / "tmp"), **forked.SMALL_MODELS}
    return forked.run(
        ["-m", "phyla.cli", command, file, *words],
        cwd=folder,
        env=child_environment(more),
        frameworks=frameworks,
        timeout=250,
        spares=0 if "--workers" in words else 16,  # one for each experiment
    )


def test_the_old_learning_rate_is_found_in_a_script_and_nothing_is_left(tmp_path: Path) -> None:
    done = check(tmp_path, "--study", "old", "--workers", "0", frameworks=True)
    assert done.returncode == 1, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert len(lines) == 1, done.stdout
    check_facts(lines[0], "0.001", "0.00316")
    check_facts(done.stdout, "train()", "file.py", "line 12")
    assert "\ntraining" not in done.stdout
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"file.py", "tmp"}
    assert list((tmp_path / "tmp").glob("phyla*")) == []


@pytest.mark.thorough  # below: a value that it keeps
def test_what_a_process_remembers_is_found_and_json_is_json(tmp_path: Path) -> None:
    done = check(tmp_path, "--study", "memory", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert [one["kind"] for one in told if one["verdict"] == "FAIL"] == ["complete"]
    check_facts(done.stderr, "each in a new process")


def test_a_value_that_a_process_keeps_from_its_first_trial_is_found(tmp_path: Path) -> None:
    done = check(tmp_path, "--study", "cached", "--json", "--steps", "2")
    (failed,) = (one for one in json.loads(done.stdout) if one["verdict"] == "FAIL")
    assert failed["kind"] == "parameter"
    assert failed["text"].startswith("lr from 0.001 to 0.00316 works only in a fresh process")


@pytest.mark.thorough  # unit/study/test_check.py: the same in one process
def test_a_checkpoint_with_the_time_and_its_trial_needs_no_process_for_each_experiment(tmp_path: Path) -> None:
    done = check(tmp_path, "--study", "labels")
    assert done.returncode == 0, done.stdout
    assert "each in a new process" not in done.stderr
    check_facts(done.stdout, "two equal trials give the same result", "give the same result as 6 in one trial")


def test_a_process_that_dies_is_told(tmp_path: Path) -> None:
    done = check(tmp_path, "--study", "dead")
    assert done.returncode == 1
    assert re.search(r"runs +training failed: worker process \d+ was ended by SIGABRT", done.stdout), done.stdout
    assert "Traceback" not in done.stderr


def test_the_last_line_counts_the_lines_above(tmp_path: Path) -> None:
    done = check(tmp_path, "--study", "noise", "--workers", "0")
    assert done.returncode == 0, done.stderr
    told = re.findall(r"^(ok|warn|FAIL|not known) ", done.stdout, re.MULTILINE)
    unknown = told.count("not known")
    assert unknown
    assert done.stdout.endswith(f"\n0 of {len(told)} checks failed, {unknown} not known\n"), done.stdout


def test_a_new_study_that_runs_well_is_told_of_the_check_once(tmp_path: Path) -> None:
    hint = "check how it trains with: phyla check file.py"
    assert hint in check(tmp_path, "--study", "memory", "--workers", "0", command="run").stdout
    assert hint not in check(tmp_path, "--study", "memory", "--workers", "0", command="run").stdout


@pytest.mark.parametrize(
    "file",
    [file if file.stem not in SLOW else rarely(file) for file in CORRECT],
    ids=lambda file: file.stem,
)
def test_correct_examples_raise_no_alarm(file: Path, tmp_path: Path) -> None:
    several = ("--study", "digits") if file.stem == "digits" else ()
    done = check(tmp_path, "--workers", "0", "--steps", "2", "--json", *several, file=str(file), frameworks=True)
    told = json.loads(done.stdout)
    assert [one for one in told if one["verdict"] in ("FAIL", "warn")] == []
    assert done.returncode == 0
    assert sum(one["verdict"] == "ok" for one in told) >= 10
