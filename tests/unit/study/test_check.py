"""`phyla check` finds mistakes in training functions, and leaves correct ones alone."""

import json
import os
import pickle
import re
import shutil
import sys
import time
import types
import warnings
import zipfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phyla
from effort import rarely
from facts import check_facts, raises
from phyla import study_modules
from phyla.errors import ConfigurationError
from phyla.study import Checked, check
from phyla.study.checking import experiments
from phyla.study.checking.check import checks, steps_of
from phyla.study.checking.checkpoint_contents import comparable_names, gap, read
from phyla.study.checking.evidence import function_name
from quick_checks import quicken

pytestmark = pytest.mark.usefixtures("few_objects", "quick")

Train = Callable[[phyla.Trial], None]
DATA = np.random.default_rng(7).normal(size=(64, 3))
TARGET = DATA @ np.array([1.0, -2.0, 0.5])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


def study_of(train: Train | None, home: Path, **settings: Any) -> phyla.Study:
    settings = {
        "space": phyla.Space(lr=phyla.Float(1e-3, 1e-1, log=True), momentum=phyla.Float(0.0, 0.9)),
        "strategy": phyla.PBT(population_size=4, steps_per_trial=6, total_steps=60),
        **settings,
    }
    return phyla.Study("checked", objective=phyla.Minimize("loss"), train=train, home=home, **settings)


def found(train: Train, home: Path, steps: int | None = None, **settings: Any) -> dict[str, Checked]:
    """Return what each check found, in this process; those of hyperparameters by their names."""
    listed = check(study_of(train, home, **settings), steps=steps, workers=0)
    assert not home.exists()
    return {one.about or one.kind: one for one in listed}


def failures(train: Train, home: Path, **settings: Any) -> dict[str, str]:
    return {name: one.text for name, one in found(train, home, **settings).items() if one.verdict == "FAIL"}


def loss(w: Any) -> float:
    return float(((DATA @ w - TARGET) ** 2).mean())


MISTAKES = {
    "end_step ignored": ("end", "training 12 steps gives the same result as training 6"),
    "start_step ignored": ("steps", "count is 12, and 18 after two trials"),
    "source ignored": ("resume", "6 steps and 6 more from the checkpoint differ from 12 in one trial"),
    "momentum not saved": ("resume", "in one trial, in state.npz: w"),
    "schedule restarted": ("resume", "in one trial, in state.npz: "),
    "step reset": ("steps", "after 12 steps in one trial state.npz: count is 12, and 6 after two trials"),
    "seed reused": ("random", "the same random numbers again"),
    "metric on old weights": ("weights", r"reported 3\.\d+, and measures 2\.\d+ on the checkpoint"),
    "metric before the last step": ("weights", "it is measured before the last step"),
    "other name": ("objective", "reported 'los': should 'los' be 'loss'"),
    "old learning rate": (
        "lr",
        r"lr from 0\.01 to 0\.0316 has an effect at a fresh start only: .* the old value, see state.npz: lr",
    ),
    "old learning rate after one step": ("lr", "has an effect in the first step only"),
}
"""The check that finds each, and what it says."""


def make(mistake: str = "", *, random: bool = True, kept: Path | None = None) -> Train:
    """Return a training function: gradient descent with momentum and a decaying rate; and with a mistake."""

    def train(trial: phyla.Trial) -> None:
        p: Any = {"lr": trial.params["lr"], "momentum": 0.5}
        if mistake != "parameter never read":
            p = dict(trial.params.flat())
        rng = np.random.default_rng(0 if mistake == "seed reused" else trial.seed)
        w, v, lr, count = np.zeros(3), np.zeros(3), p["lr"], 0
        if trial.source is not None and mistake != "source ignored":
            with np.load(trial.source.path / "state.npz") as state:
                w, count = state["w"], int(state["count"])
                v = state.get("v", v)
                lr = float(state["lr"]) if mistake == "old learning rate" else lr
                old = float(state["lr"])
            if kept is not None:
                v = np.load(kept)
        else:
            old = lr
        if mistake == "step reset":
            count = 0
        before = loss(w)
        if mistake == "parameter ignored":
            p["momentum"] = 0.5
        wanted = {
            "end_step ignored": range(6),
            "start_step ignored": range(trial.end_step),
        }.get(mistake, trial.steps())
        value = before
        for index, step in enumerate(wanted):
            batch = rng.integers(64, size=16) if random else slice(None)
            x, y = DATA[batch], TARGET[batch]
            if mistake == "metric before the last step":
                value = loss(w)
            rate = lr if mistake != "old learning rate after one step" or index == 0 else old
            rate *= 0.9 ** (index if mistake == "schedule restarted" else step)
            v = p["momentum"] * v - rate * 2 * x.T @ (x @ w - y) / len(x)
            w = w + v
            count += 1
        state = {"w": w, "count": count, "lr": old if mistake == "old learning rate after one step" else lr}
        if kept is not None:
            np.save(kept, v)
        elif mistake != "momentum not saved":
            state["v"] = v
        np.savez(trial.checkpoint_dir / "state.npz", **state)
        if mistake == "metric on old weights":
            value = before
        elif mistake == "metric before the last step":
            assert value is not before, "there are no steps to train"
        else:
            value = loss(w)
        trial.report({"los" if mistake == "other name" else "loss": value})

    return train


@pytest.mark.parametrize("random", [True, rarely(False)])
def test_a_correct_function_is_left_alone(random: bool, tmp_path: Path) -> None:
    mine = np.random.default_rng(3)
    before = str(np.random.get_state()), mine.bit_generator.state  # noqa: NPY002
    listed = found(make(random=random), tmp_path / "home", retention=phyla.Retention(best=2, every_steps=20))
    assert (str(np.random.get_state()), mine.bit_generator.state) == before  # noqa: NPY002
    assert {one.verdict for one in listed.values()} == {"ok"}, listed
    assert {"runs", "objective", "end", "equal", "resume", "steps", "random", "complete", "weights"} < {*listed}
    assert {"lr", "momentum"} < {*listed}
    # 4 * 4 + 2, and 4 members with 3 milestones each.
    check_facts(listed["cost"].text, "30 checkpoints")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_and_no_other(mistake: str, tmp_path: Path) -> None:
    name, text = MISTAKES[mistake]
    told = failures(make(mistake), tmp_path / "home")
    # What is not loaded does not go on counting either.
    assert {*told} - ({"steps"} if name == "resume" else set()) == {name}, told
    assert re.search(text, told[name]), told


@pytest.mark.thorough  # above: the same with random numbers
def test_a_mistake_is_found_without_random_numbers(tmp_path: Path) -> None:
    told = failures(make("start_step ignored", random=False), tmp_path / "home")
    assert "resume" in told
    assert {*told} <= {"resume", "steps"}


def test_a_parameter_without_effect_is_not_said_to_be_a_mistake_of_any_kind(tmp_path: Path) -> None:
    told = found(make("parameter ignored"), tmp_path / "home")
    assert "FAIL" not in {one.verdict for one in told.values()}, told
    assert told["momentum"].verdict == "not known"
    begin, _, end = told["momentum"].text.partition(
        ": no effect here; 6 steps from the same checkpoint give the same result, "
    )
    assert (begin, end) == ("momentum from 0.45 to 0.675, 0.9, 0", "and so do those from a fresh start")
    check_facts(told["momentum"].change, "trial.params[", "momentum")


def test_a_parameter_that_is_not_read_is_told(tmp_path: Path) -> None:
    told = found(make("parameter never read"), tmp_path / "home")
    assert [name for name, one in told.items() if one.verdict != "ok"] == ["momentum"]
    assert (told["momentum"].verdict, told["lr"].verdict) == ("warn", "ok")
    check_facts(told["momentum"].text, "12 steps")


def test_a_parameter_that_only_activates_another_is_not_told_to_be_unread(tmp_path: Path) -> None:
    space = phyla.Space(
        lr=phyla.Float(1e-3, 1e-1, log=True),
        clip=phyla.Choice([True, False]),
        clip_at=phyla.Float(10.0, 20.0, when={"clip": True}),
    )

    def train(trial: phyla.Trial) -> None:
        if trial.params.get("clip_at", 10.0) >= 10.0:
            make("parameter never read")(trial)

    told = found(train, tmp_path / "home", space=space)
    assert {name: told[name].verdict for name in ("lr", "clip", "clip_at")} == {
        "lr": "ok",
        "clip": "not known",
        "clip_at": "not known",
    }


def test_what_only_the_first_trial_saves_is_missed(tmp_path: Path) -> None:
    correct = make()

    def train(trial: phyla.Trial) -> None:
        correct(trial)
        if trial.source is None:
            np.save(trial.checkpoint_dir / "scale.npy", np.ones(2))

    told = failures(train, tmp_path / "home")
    assert list(told) == ["resume"]
    check_facts(told["resume"], "scale.npy")


# What is outside the checkpoint


def test_a_file_that_all_trials_share_is_found(tmp_path: Path) -> None:
    told = failures(make(kept=tmp_path / "momentum.npy"), tmp_path / "home")
    assert list(told) == ["complete"]


def test_what_is_left_in_the_directory_of_the_parent_is_found(tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        w = 1.0
        if trial.source is not None:
            work = trial.working_dir.parent / f"trial-{trial.source.trial}"
            w = json.loads((work / "w.json").read_text())
        for _ in trial.steps():
            w -= trial.params["lr"] * w * trial.params["momentum"]
        (trial.working_dir / "w.json").write_text(json.dumps(w))
        (trial.checkpoint_dir / "note.txt").write_text("it is elsewhere")
        trial.report(loss=w * w)

    told = found(train, tmp_path / "home")
    assert told["complete"].verdict == "FAIL"
    assert "FileNotFoundError" in told["complete"].text
    assert "trial.checkpoint_dir" in told["complete"].change


def test_training_that_writes_into_the_checkpoint_that_it_loads_is_found(tmp_path: Path) -> None:
    correct = make()

    def train(trial: phyla.Trial) -> None:
        correct(trial)
        if trial.source is not None:
            file = trial.source.path / "state.npz"
            file.chmod(0o644)
            file.write_bytes((trial.checkpoint_dir / "state.npz").read_bytes())
            trial.source.path.chmod(0o755)
            (trial.source.path / "log.txt").write_text("loaded")

    told = found(train, tmp_path / "home")
    assert [name for name, one in told.items() if one.verdict == "FAIL"] == ["source"], told
    check_facts(told["source"].text, "trial.source.path", "log.txt", "state.npz")
    check_facts(told["source"].change, "trial.checkpoint_dir")


def test_training_that_moves_files_out_of_the_checkpoint_that_it_loads_fails_one_check(tmp_path: Path) -> None:
    correct = make()

    def train(trial: phyla.Trial) -> None:
        correct(trial)
        if trial.source is not None:
            trial.source.path.chmod(0o755)
            (trial.source.path / "state.npz").unlink()

    told = found(train, tmp_path / "home")
    assert [name for name, one in told.items() if one.verdict == "FAIL"] == ["source"], told
    check_facts(told["complete"].text, "source")


def test_training_that_ruins_the_checkpoint_that_it_loads_is_found(tmp_path: Path) -> None:
    correct = make()

    def train(trial: phyla.Trial) -> None:
        correct(trial)
        if trial.source is not None:
            trial.source.path.chmod(0o755)
            (trial.source.path / "latest").symlink_to("/nowhere")

    told = found(train, tmp_path / "home")
    assert told["source"].verdict == "FAIL"

    def remove(trial: phyla.Trial) -> None:
        correct(trial)
        if trial.source is not None:
            shutil.rmtree(trial.source.path)

    told = found(remove, tmp_path / "again")
    assert told["complete"].verdict == "FAIL"
    check_facts(told["complete"].text, "trial.source.path")


@pytest.mark.parametrize("remembers", [False, True])
def test_times_and_names_in_checkpoints_need_no_process_for_each_experiment(
    remembers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `workers=1`, but in this process; `test_checking.py` starts others."""
    run, started, resumed = phyla.Study.run, list[str](), list[int]()

    def run_here(study: phyla.Study, **options: Any) -> object:
        started.append(study.name)
        return run(study, **{**options, "workers": 0})

    monkeypatch.setattr(phyla.Study, "run", run_here)

    def train(trial: phyla.Trial) -> None:
        w = json.loads((trial.source.path / "w.json").read_text())["w"] if trial.source else 1.0
        if trial.source and remembers:
            resumed.append(trial.id)
            w += len(resumed)
        for _ in trial.steps():
            w -= trial.params["lr"] * trial.params["momentum"] * w
        labels = {"trial": trial.id, "member": trial.member, "saved_at": time.time()}
        (trial.checkpoint_dir / "w.json").write_text(json.dumps({"w": w, **labels}))
        trial.report(loss=w * w)

    told = {one.kind: one.verdict for one in check(study_of(train, tmp_path / "home"), workers=1)}
    assert {told[kind] for kind in ("equal", "resume", "random", "parameter")} == {"ok"}
    # Each is a process.
    assert (len(started) > 10) == remembers


# What cannot be told


def test_noise_is_no_mistake(tmp_path: Path) -> None:
    correct = make()

    def train(trial: phyla.Trial) -> None:
        correct(trial)
        with np.load(trial.checkpoint_dir / "state.npz") as state:
            noisy = {**state, "w": state["w"] + np.random.default_rng(time.time_ns()).normal(size=3)}
        np.savez(trial.checkpoint_dir / "state.npz", **noisy)
        trial.report(loss=loss(noisy["w"]))

    told = found(train, tmp_path / "home")
    assert "FAIL" not in {one.verdict for one in told.values()}, told
    check_facts(told["equal"].text, "state.npz")
    assert (told["resume"].verdict, told["equal"].verdict) == ("not known", "not known")
    assert {told[name].verdict for name in ("equal", "resume", "random", "lr", "momentum")} == {"not known"}


def test_one_score_that_stays_the_same_is_no_mistake_where_the_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        w = np.frombuffer((trial.source.path / "w.bin").read_bytes()[1:]) if trial.source else np.zeros(3)
        for _ in trial.steps():
            w = w - trial.params["lr"] * trial.params["momentum"] * DATA.T @ (DATA @ w - TARGET)
        (trial.checkpoint_dir / "w.bin").write_bytes(b"\0" + w.tobytes())
        trial.report(loss=0.5)  # of few data, where accuracies are often equal

    told = found(train, tmp_path / "home")
    assert "FAIL" not in {one.verdict for one in told.values()}, told
    check_facts(told["end"].text, "6", "12 steps")


def test_a_noisy_objective_is_no_mistake(tmp_path: Path) -> None:
    correct = make()

    def train(trial: phyla.Trial) -> None:
        correct(trial)
        with np.load(trial.checkpoint_dir / "state.npz") as state:
            trial.report(loss=loss(state["w"] + np.random.default_rng(trial.seed).normal(size=3)))

    told = found(train, tmp_path / "home")
    assert "FAIL" not in {one.verdict for one in told.values()}, told
    assert "the objective is noisy" in told["weights"].text


@pytest.mark.parametrize("before", [True, False])
def test_an_order_that_is_drawn_once_a_trial_is_no_mistake(before: bool, tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        rng = np.random.default_rng(trial.seed)
        order = rng.permutation(64) if before else None
        w = np.load(trial.source.path / "w.npy") if trial.source else np.zeros(3)
        for place, _ in enumerate(trial.steps()):
            order = rng.permutation(64) if order is None else order
            x, y = DATA[order[4 * place :][:4]], TARGET[order[4 * place :][:4]]
            w = w - trial.params["lr"] * trial.params["momentum"] * x.T @ (x @ w - y)
        np.save(trial.checkpoint_dir / "w.npy", w)
        trial.report(loss=loss(w))

    told = found(train, tmp_path / "home")
    assert {one.verdict for one in told.values()} == {"ok"}, told
    assert "random numbers from another seed differ as much" in told["resume"].text


def test_torch_draws_the_same_numbers_in_each_experiment(tmp_path: Path) -> None:
    import torch

    def train(trial: phyla.Trial) -> None:
        w = np.load(trial.source.path / "w.npy") if trial.source else np.zeros(3)
        for _ in trial.steps():
            batch = torch.randint(64, (16,)).numpy()
            w = w - trial.params["lr"] * trial.params["momentum"] * DATA[batch].T @ (
                DATA[batch] @ w - TARGET[batch]
            )
        np.save(trial.checkpoint_dir / "w.npy", w)
        trial.report(loss=loss(w))

    told = found(train, tmp_path / "home")
    assert {told[kind].verdict for kind in ("equal", "resume", "lr")} == {"ok"}, told


def test_times_beside_the_weights_change_nothing(tmp_path: Path) -> None:
    correct = make()

    def train(trial: phyla.Trial) -> None:
        correct(trial)
        np.save(trial.checkpoint_dir / "times.npy", np.random.default_rng(time.time_ns()).random(9))
        (trial.checkpoint_dir / "log.json").write_text(json.dumps({"at": time.time(), "trial": trial.id}))

    told = found(train, tmp_path / "home")
    assert {one.verdict for one in told.values()} == {"ok"}, told


def test_a_training_that_diverges_tells_little(tmp_path: Path) -> None:
    space = phyla.Space(lr=phyla.Float(1e300, 1e305, log=True), momentum=phyla.Float(0.0, 0.9))
    with np.errstate(all="ignore"):
        told = found(make(), tmp_path / "home", space=space)
    check_facts(told["equal"].text, "nan", "state.npz")
    assert [name for name, one in told.items() if one.verdict == "FAIL"] == ["objective"], told


@pytest.mark.parametrize(("late", "verdict"), [(0, "ok"), (1, "ok"), (2, "warn")])
def test_a_score_of_earlier_weights_is_found(late: int, verdict: str, tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "step.json").write_text(str(trial.end_step))
        trial.report(loss=1.0, step=trial.end_step - late)
        trial.report(lr=trial.params["lr"])

    _, told = islice(checks(study_of(train, tmp_path / "home"), workers=0), 2)
    assert (told.kind, told.verdict) == ("objective", verdict)
    if verdict == "warn":
        check_facts(f"{told.text} {told.change}", "step 4", "step 6", "steps_per_trial")


@pytest.mark.parametrize("value", [np.nan, rarely(np.inf)])
@pytest.mark.parametrize(("always", "verdict"), [(True, "FAIL"), (False, "warn")])
def test_an_objective_that_is_not_finite_is_found(
    value: float, always: bool, verdict: str, tmp_path: Path
) -> None:
    correct = make()

    def train(trial: phyla.Trial) -> None:
        correct(trial)
        if always or trial.params["momentum"] < 0.5:
            trial.report(loss=value)

    told = found(train, tmp_path / "home")
    assert told["objective"].verdict == verdict
    check_facts(told["objective"].text, "momentum=0.45", value)
    assert ("nothing could be selected" in told["objective"].text) == always
    assert "FAIL" not in {one.verdict for name, one in told.items() if name != "objective"}, told


# What else there is


def test_training_that_raises_says_where(tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        raise RuntimeError("no data")

    (told,) = check(study_of(train, tmp_path / "home"), workers=0)
    assert (told.kind, told.verdict) == ("runs", "FAIL")
    assert re.search(r"RuntimeError: no data \(.*test_check\.py, line \d+\)$", told.text)


SCRIPT = """\
import json, os, sys

*source, save_to, metrics = sys.argv[1:]
print("trial.params are read")
if source:
    {}
open(save_to + "/w", "w").write(os.environ["PHYLA_END_STEP"])
print(json.dumps({{"loss": 1.0}}), file=open(metrics, "a"))
"""


@pytest.mark.parametrize(
    ("line", "last", "change"),
    [
        ("raise KeyError('optimizer')", "KeyError: 'optimizer'", "correct the error that training from {source}"),
        ("sys.exit(print('no optimizer') or 3)", "no optimizer", "correct the error that training from {source}"),
        (
            "raise PermissionError(13, 'Permission denied', source[0])",
            "Permission denied",
            "load from {source}, whose files",
        ),
    ],
)
def test_how_the_output_of_a_command_ends_is_shown(line: str, last: str, change: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(line))
    arguments = [sys.executable, "-S", "train.py", ["{source}"], "{save_to}", "{metrics}"]
    verdicts = checks(study_of(phyla.Command(arguments, cwd=tmp_path), tmp_path / "home"), workers=0)
    told = next(one for one in verdicts if one.verdict == "FAIL")
    assert told.kind == "resume"
    assert "all output is in" not in told.text
    assert last in told.text.splitlines()[-1]
    assert told.change.startswith(change)


RESTARTS = """\
import glob, json, os, sys
save_to, rate, end, metrics = sys.argv[1:]
x, step = 1.0, 0
source = os.environ.get("PHYLA_SOURCE") if {reads} else None
if source:
    x, step = json.load(open(source + "/x.json"))
while step < int(end):
    x, step = x * (1 - float(rate)), step + 1
json.dump([x, step], open(save_to + "/x.json", "w"))
print(json.dumps({{"loss": x}}), file=open(metrics, "a"))
"""


@pytest.mark.parametrize("reads", [False, True])
def test_a_command_that_starts_over_is_told_from_one_that_finds_its_source_itself(
    reads: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(RESTARTS.format(reads=reads))
    arguments = [sys.executable, "-S", "train.py", "{save_to}", "{lr}", "{end_step}", "{metrics}"]
    space = phyla.Space(lr=phyla.Float(1e-3, 1e-1, log=True))
    made = study_of(phyla.Command(arguments, cwd=tmp_path), tmp_path / "home", space=space)
    told = {one.kind: one for one in check(made, workers=0)}
    assert told["source"].verdict == ("ok" if reads else "FAIL")
    assert told["resume"].verdict == ("ok" if reads else "not known")
    if not reads:
        check_facts(told["source"].text, "{source}")
        check_facts(told["source"].change, "{source}")


def test_a_value_that_is_only_written_down_is_found(tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        w = json.loads((trial.source.path / "w.json").read_text())["w"] if trial.source else 1.0
        for _ in trial.steps():
            w -= trial.params["lr"] * w
        (trial.checkpoint_dir / "w.json").write_text(json.dumps({"w": w, **trial.params.flat()}))
        trial.report(loss=w)

    told = found(train, tmp_path / "home")
    assert [name for name, one in told.items() if one.verdict != "ok"] == ["momentum"]
    assert "no effect here" in told["momentum"].text


def test_the_start_and_the_setup_of_the_study_are_used(tmp_path: Path) -> None:
    seen = []
    (tmp_path / "old").mkdir()
    np.savez(tmp_path / "old" / "state.npz", w=np.ones(3), v=np.ones(3), count=30, lr=0.02)
    correct = make()

    def setup(worker: phyla.WorkerContext) -> str:
        return "set up"

    def train(trial: phyla.Trial) -> None:
        assert trial.worker == "set up"
        seen.append((trial.start_step, trial.end_step, trial.params["lr"]))
        correct(trial)

    start = phyla.StartFrom(tmp_path / "old", step=30, params={"lr": 0.02})
    told = found(train, tmp_path / "home", setup=setup, start_from=[start])
    assert {one.verdict for one in told.values()} == {"ok"}, told
    assert {(30, 42, 0.02), (30, 36, 0.02), (36, 42, 0.02)} < {*seen}
    assert not any(start == 0 for start, _, _ in seen)


def test_values_that_depend_on_another_are_checked_where_they_are_active(tmp_path: Path) -> None:
    correct = make()

    def train(trial: phyla.Trial) -> None:
        assert trial.params["kind"] in ("sgd", "adam")
        if trial.params["kind"] == "adam":
            trial.report({"beta": trial.params["beta"]})
        trial.report({"single": trial.params["single"]})
        correct(trial)

    space = phyla.Space(
        lr=phyla.Float(1e-3, 1e-1, log=True),
        momentum=phyla.Float(0.0, 0.9),
        kind=phyla.Choice(["sgd", "adam"]),
        beta=phyla.Float(0.0, 1.0, when={"kind": ["adam"]}),
        single=phyla.Choice([1]),
    )
    told = found(train, tmp_path / "home", space=space)
    assert told["kind"].verdict == "not known"
    check_facts(told["kind"].text, "sgd", "adam")
    assert told["beta"].verdict == told["single"].verdict == "not known"


def test_a_trial_is_short_unless_told_otherwise(tmp_path: Path) -> None:
    assert steps_of(study_of(None, tmp_path)) == 6
    long = phyla.PBT(population_size=4, steps_per_trial=5000, total_steps=60_000)
    assert steps_of(study_of(None, tmp_path, strategy=long)) == 10
    told = next(checks(study_of(make(), tmp_path / "home"), steps=3, workers=0)).text
    check_facts(told, "3", "6 steps")


def test_a_value_that_a_saved_configuration_brings_back_is_found(tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        x, config = 10.0, {"rate": trial.params["lr"]}
        if trial.source:
            x = float(np.load(trial.source.path / "weights.npy")[0])
            config = json.loads((trial.source.path / "adapter_config.json").read_text())
        for _ in trial.steps():
            x -= config["rate"] * x
        (trial.checkpoint_dir / "adapter_config.json").write_text(json.dumps(config))
        np.save(trial.checkpoint_dir / "weights.npy", [x])
        trial.report(loss=x * x)

    told = found(train, tmp_path / "home", space=phyla.Space(lr=phyla.Float(1e-3, 1e-1, log=True)))["lr"]
    assert told.verdict == "FAIL"
    check_facts(told.text, "adapter_config.json: rate")
    check_facts(told.change, "lr", "configuration", "config=")


def test_a_long_check_notes_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "NOTED_EVERY_S", 0.0)
    notes: list[str] = []
    verdicts = checks(study_of(make(), tmp_path / "home"), workers=0, note=notes.append)
    next(verdicts)
    early = len(notes)
    assert early
    assert "1 trial" in " ".join(notes)
    list(verdicts)
    counts = [int(re.findall(r"\d+", note)[0]) for note in notes]
    assert len(counts) > early
    assert counts == sorted(counts)
    assert counts[-1] > 12


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with raises(ConfigurationError, "train"):
        check(study_of(None, tmp_path))
    with raises(ConfigurationError, "steps=0"):
        check(study_of(make(), tmp_path), steps=0)
    with raises(ConfigurationError, "workers=-1"):
        check(study_of(make(), tmp_path), workers=-1)


# Facts


def test_files_of_many_kinds_are_read(tmp_path: Path) -> None:
    import h5py
    import joblib
    import torch
    from safetensors.numpy import save_file

    values = np.arange(6.0).reshape(2, 3)
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "b.npz", w=values)
    torch.save({"model": {"w": torch.ones(2, dtype=torch.bfloat16)}, "step": torch.tensor(3.0)}, tmp_path / "c.pt")
    save_file({"w": values}, tmp_path / "d.safetensors")
    (tmp_path / "e.json").write_text('{"w": [1, 2], "step": 4, "name": "x"}')
    (tmp_path / "f-10.pkl").write_bytes(pickle.dumps({"net": types.SimpleNamespace(w=values)}))
    (tmp_path / "g.bin").write_bytes(b"\x00anything")
    joblib.dump(types.SimpleNamespace(w=values), tmp_path / "h.joblib")
    joblib.dump({"w": values}, tmp_path / "i.joblib", compress=3)
    joblib.dump({"w": values}, tmp_path / "j.pkl")
    with h5py.File(tmp_path / "k.weights.h5", "w") as file:  # as Keras writes
        file["layers/dense/vars/0"] = values
    with zipfile.ZipFile(tmp_path / "l.keras", "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.8"}')
        archive.write(tmp_path / "k.weights.h5", "model.weights.h5")
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("data", '{"ent_coef": 0.5}')
        archive.write(tmp_path / "c.pt", "policy.pth")
        archive.writestr("system_info.txt", "Linux")
    with zipfile.ZipFile(tmp_path / "n.zip", "w") as archive:
        archive.writestr("weights", b"nothing that is known")
    known = read(tmp_path)
    assert {name: np.shape(value) for name, value in known.items()} == {
        "a.npy": (2, 3),
        "b.npz: w": (2, 3),
        "c.pt: model.w": (2,),
        "c.pt: step": (),
        "d.safetensors: w": (2, 3),
        "e.json: w": (2,),
        "e.json: step": (),
        "f-#.pkl: net.w": (2, 3),
        "g.bin": (),
        "h.joblib: w": (2, 3),
        "i.joblib: w": (2, 3),
        "j.pkl: w": (2, 3),
        "k.weights.h5: layers.dense.vars.0": (2, 3),
        "l.keras: model.weights.h5.layers.dense.vars.0": (2, 3),
        "m.zip: data.ent_coef": (),
        "m.zip: policy.pth.model.w": (2,),
        "m.zip: policy.pth.step": (),
        "n.zip": (),
    }
    assert "b.npz: w" in comparable_names(known, known)
    assert "e.json: step" not in comparable_names(known, known)


def test_what_ranks_wrote_together_is_one_state(tmp_path: Path) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict_saver import save

    state = {"model": {"w": torch.ones(2, 3)}, "groups": {"0": {"lr": 0.5}}, "step": 3}
    with warnings.catch_warnings(action="ignore"):  # that there is a single process
        for part in ("", "part"):
            save(state, checkpoint_id=tmp_path / part, no_dist=True)
    (tmp_path / "meta.json").write_text('{"step": 4}')
    (tmp_path / "part/__1_0.distcp").write_bytes(b"of an earlier save")
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished/__0_0.distcp").write_bytes(b"of one rank")
    known = read(tmp_path)
    inside = ("model.w", "groups.0.lr", "step")
    parts = {f"{file}: {name}" for file in (".metadata", "part/.metadata") for name in inside}
    assert known.keys() == {*parts, "meta.json: step", "unfinished/__#_#.distcp"}
    assert (known[".metadata: groups.0.lr"], known[".metadata: model.w"].shape) == (0.5, (2, 3))
    before = read(tmp_path / "part")
    (tmp_path / "part/__0_0.distcp").write_bytes(b"cut off")
    after = read(tmp_path / "part")
    assert after.keys() == {".metadata"} != before.keys()
    assert isinstance(after[".metadata"], str)


@pytest.mark.parametrize("layout", ["state in the log", "state beside the log", rarely("arrays beside the log")])
def test_a_log_of_the_trials_in_a_checkpoint_is_no_state_of_training(tmp_path: Path, layout: str) -> None:
    def train(trial: phyla.Trial) -> None:
        state: Any = {"x": 10.0, "log": []}
        if trial.source:
            state = json.loads((trial.source.path / "state.json").read_text())
        if isinstance(state, list):
            state = {"x": state[-1]["x"], "log": state}
        for _ in trial.steps():
            state["x"] -= trial.params["lr"] * min(2 * state["x"], 1e3 / (1 - trial.params["momentum"]))
        entry = {"x": state["x"], "step": trial.end_step, "params": dict(trial.params.flat())}
        state["log"].append(entry)
        (trial.checkpoint_dir / "state.json").write_text(
            json.dumps(state["log"] if layout == "state in the log" else state)
        )
        if layout == "arrays beside the log":
            np.save(trial.checkpoint_dir / "x.npy", [state["x"]])
        trial.report(loss=state["x"] ** 2)

    checked = found(train, tmp_path / "home")
    assert not [one for one in checked.values() if one.verdict == "FAIL"]
    assert [checked[name].verdict for name in ("resume", "lr", "momentum")] == ["ok", "ok", "not known"]


def test_the_newest_file_of_a_series_is_compared_and_all_shards_are(tmp_path: Path) -> None:
    for run, saved in {"half": (8, 9), "whole": (8, 9, 10, 11), "again": (10, 11)}.items():
        for name in (*(f"ck_{step}" for step in saved), "layer_0", "layer_1"):
            (tmp_path / run).mkdir(exist_ok=True)
            (tmp_path / run / f"{name}.json").write_text(json.dumps({"step": int(name.split("_")[1])}))
            os.utime(tmp_path / run / f"{name}.json", (1, 1))  # as where a file system's clock is coarse
    half, whole, again = (read(tmp_path / run) for run in ("half", "whole", "again"))
    assert half["ck_#.json: step"] == 9
    assert whole["ck_#.json: step"] == again["ck_#.json: step"] == 11
    assert {*comparable_names(whole, half)} == {"ck_#.json: step", "layer_#.json: step", "layer_0.json: step"}
    # What was written last is newer than what has a greater number.
    os.utime(tmp_path / "half" / "ck_8.json", (2, 2))
    assert read(tmp_path / "half")["ck_#.json: step"] == 8


def test_the_gap_is_a_share_and_treats_nan_as_equal() -> None:
    assert gap(np.array([1.0, np.nan]), np.array([1.0, np.nan])) == 0
    assert gap(np.array([0.0, 10.0]), np.array([0.0, 9.0])) == pytest.approx(0.1)
    assert gap(1.0, np.nan) == gap(np.ones(2), np.ones(3)) == gap("a", "b") == gap(None, 1.0) == np.inf


ITSELF = """\
import phyla
from phyla.study import check


def train(trial):
    pass


study = phyla.Study(
    "itself", {"lr": phyla.Float(0, 1)}, phyla.Minimize("loss"), phyla.RandomSearch(2, 2, 2), train
)
check(study)
"""


def test_a_study_file_that_checks_itself_is_only_read(tmp_path: Path) -> None:
    file = tmp_path / "itself.py"
    file.write_text(ITSELF)
    module = study_modules.load(file)
    assert function_name(module.study) == "train() (itself.py, line 5)"
    assert next(checks(module.study, workers=0)).verdict == "FAIL"


@pytest.mark.parametrize("place", ["value", "in a list", rarely("beside an array")])
def test_a_checkpoint_that_names_its_trial_is_state_that_a_process_may_share(tmp_path: Path, place: str) -> None:
    def train(trial: phyla.Trial) -> None:
        x = json.loads((trial.source.path / "x.json").read_text())["x"] if trial.source else 10.0
        for _ in trial.steps():
            x -= trial.params["lr"] * (x + trial.params["momentum"])
        label: Any = {"trial": trial.id, "member": trial.member}
        state = {"x": x, **({"last": [label]} if place == "in a list" else label)}
        (trial.checkpoint_dir / "x.json").write_text(json.dumps(state))
        if place == "beside an array":
            np.save(trial.checkpoint_dir / "x.npy", [x])
        trial.report(loss=x * x)

    checked = found(train, tmp_path / "home")
    assert [checked[name].verdict for name in ("equal", "resume", "lr", "momentum")] == ["ok"] * 4


@pytest.mark.parametrize(
    ("mistake", "count", "named"),
    [
        ("", 4, "complete"),
        ("", 8, "random"),
        ("momentum not saved", 17, "resume"),
        ("old learning rate", 17, "lr"),
    ],
)
def test_a_trial_that_crashes_now_and_then_is_named(tmp_path: Path, mistake: str, count: int, named: str) -> None:
    """It is no evidence about what other trials left."""
    sound, calls = make(mistake), list[int]()

    def train(trial: phyla.Trial) -> None:
        calls.append(trial.id)
        if len(calls) == count:
            raise ConnectionError("the data went away")
        sound(trial)

    checked = found(train, tmp_path / "home")
    assert "the data went away" in checked[named].text
    others = {name for name, one in checked.items() if one.verdict == "FAIL"} - {named}
    assert others <= ({MISTAKES[mistake][0]} if mistake else set())
