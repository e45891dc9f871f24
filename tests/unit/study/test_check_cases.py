"""Correct training functions that `phyla check` must not accuse, and mistakes that it must not pass."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phyla
from effort import rarely
from phyla.study import Checked, check
from quick_checks import quicken

pytestmark = pytest.mark.usefixtures("few_objects", "quick")

X = np.random.default_rng(7).normal(size=(64, 3))
Y = X @ np.array([1.0, -2.0, 0.5])
Case = Callable[[phyla.Trial], None]
LR = {"lr": phyla.Float(1e-3, 1e-1, log=True)}
CORRECT: dict[str, tuple[Case, dict[str, Any], int]] = {}
MISTAKES: dict[str, tuple[Case, dict[str, Any], str]] = {}
"""Functions by name, with their space, and the steps of a trial, or the check that may not say ok."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


def correct(steps: int = 3, /, **space: Any) -> Callable[[Case], Case]:
    def noted(train: Case) -> Case:
        CORRECT[train.__name__] = train, LR | space, steps
        return train

    return noted


def mistake(kind: str, /, **space: Any) -> Callable[[Case], Case]:
    def noted(train: Case) -> Case:
        MISTAKES[train.__name__] = train, LR | space, kind
        return train

    return noted


def loss(w: Any) -> float:
    return float(((X @ w - Y) ** 2).mean())


def slope(w: Any, rows: Any = slice(None)) -> Any:
    return 2 * X[rows].T @ (X[rows] @ w - Y[rows]) / len(X[rows])


def load(trial: phyla.Trial, name: str = "state.pkl", **fresh: Any) -> dict[str, Any]:
    if trial.source is None:
        return {"w": np.zeros(3), **fresh}
    return dict(pickle.loads((trial.source.path / name).read_bytes()))  # noqa: S301  # ours


def save(trial: phyla.Trial, state: Any, name: str = "state.pkl") -> None:
    (trial.checkpoint_dir / name).write_bytes(pickle.dumps(state))
    trial.report(loss=loss(state["w"]))


def descend(trial: phyla.Trial, state: dict[str, Any], rate: float | None = None) -> None:
    for _ in trial.steps():
        state["w"] = state["w"] - (trial.params["lr"] if rate is None else rate) * slope(state["w"])


# Correct


@correct()
def plain(trial: phyla.Trial) -> None:
    state = load(trial)
    descend(trial, state)
    save(trial, state)


@correct()
def a_file_an_epoch(trial: phyla.Trial) -> None:
    files = [] if trial.source is None else sorted(trial.source.path.iterdir(), key=lambda one: len(one.name))
    last = max(files, key=lambda one: int("".join(filter(str.isdigit, one.name)) or -1)) if files else None
    w = np.array(json.loads(last.read_text())["w"]) if last else np.zeros(3)
    for step in trial.steps():
        w = w - trial.params["lr"] * slope(w)
        (trial.checkpoint_dir / f"ck_{step}.json").write_text(json.dumps({"w": w.tolist(), "epoch": step}))
    trial.report(loss=loss(w))


@correct(2)
def the_last_three_files(trial: phyla.Trial) -> None:
    name = f"epoch-{trial.start_step:04}.pkl"
    state = load(trial, name)
    for step in trial.steps():
        state["w"] = state["w"] - trial.params["lr"] * slope(state["w"])
        save(trial, state, f"epoch-{step + 1:04}.pkl")
        (trial.checkpoint_dir / f"epoch-{step - 2:04}.pkl").unlink(missing_ok=True)


@correct()
def a_folder_a_step(trial: phyla.Trial) -> None:
    state = load(trial, f"step_{trial.start_step}/w.pkl")
    for step in trial.steps():
        state["w"] = state["w"] - trial.params["lr"] * slope(state["w"])
        (trial.checkpoint_dir / f"step_{step + 1}").mkdir()
        save(trial, state, f"step_{step + 1}/w.pkl")


@correct()
def layers_in_files(trial: phyla.Trial) -> None:
    w = np.zeros(3)
    for at in range(3 if trial.source else 0):
        w[at] = np.load(trial.source.path / f"layer_{at}.npy")  # type: ignore[union-attr]
    for _ in trial.steps():
        w = w - trial.params["lr"] * slope(w)
    for at in range(3):
        np.save(trial.checkpoint_dir / f"layer_{at}.npy", w[at : at + 1][0])
    trial.report(loss=loss(w))


@correct(clip=phyla.Float(0.3, 300.0, log=True))
def clipping_that_never_acts_in_the_middle(trial: phyla.Trial) -> None:
    state = load(trial)
    for _ in trial.steps():
        step = slope(state["w"])
        step = step * min(1.0, trial.params["clip"] / np.linalg.norm(step))
        state["w"] = state["w"] - trial.params["lr"] * step
    save(trial, state)


@correct(clip=phyla.Float(100.0, 1000.0, log=True))
def clipping_that_never_acts(trial: phyla.Trial) -> None:
    clipping_that_never_acts_in_the_middle(trial)


@correct(clip=phyla.Float(2.0, 20.0, log=True))
def clipping_at_the_beginning_only(trial: phyla.Trial) -> None:
    state = load(trial)
    for _ in trial.steps():
        step = slope(state["w"])
        state["w"] = state["w"] - 0.3 * step * min(1.0, trial.params["clip"] / np.linalg.norm(step))
        state["w"] = state["w"] * (1 - trial.params["lr"])
    save(trial, state)


@correct(scale=phyla.Float(0.1, 1.0))
def the_scale_of_the_first_weights(trial: phyla.Trial) -> None:
    state = load(trial)
    if trial.source is None:
        state["w"] = trial.params["scale"] * np.ones(3)
    descend(trial, state)
    save(trial, state)


@correct(5, gamma=phyla.Float(0.1, 0.9))
def a_decay_once_in_fifty_steps(trial: phyla.Trial) -> None:
    state = load(trial)
    for step in trial.steps():
        power = 0 if step < 50 else step // 50
        rate = trial.params["lr"] * (trial.params["gamma"] ** power if power else 1.0)
        state["w"] = state["w"] - rate * slope(state["w"])
    save(trial, state)


@correct(patience=phyla.Int(5, 50))
def patience(trial: phyla.Trial) -> None:
    state = load(trial, bad=0, best=np.inf)
    for _ in trial.steps():
        state["w"] = state["w"] - trial.params["lr"] * slope(state["w"])
        state["bad"] = 0 if loss(state["w"]) < state["best"] else state["bad"] + 1
        state["best"] = min(state["best"], loss(state["w"]))
        if state["bad"] > trial.params["patience"]:
            state["w"] = state["w"] * 0.5
    save(trial, state)


@correct(2)
def an_update_every_ten_steps(trial: phyla.Trial) -> None:
    state = load(trial, sum=np.zeros(3))
    for step in trial.steps():
        state["sum"] = state["sum"] + slope(state["w"])
        if (step + 1) % 10 == 0:
            state["w"] = state["w"] - trial.params["lr"] * state["sum"] / 10
            state["sum"] = np.zeros(3)
    np.save(trial.checkpoint_dir / "unused.npy", np.ones(2))
    save(trial, state)


@correct(2)
def nothing_to_do_in_so_few_steps(trial: phyla.Trial) -> None:
    state = load(trial)
    for step in trial.steps():
        if (step + 1) % 10 == 0:
            state["w"] = state["w"] - trial.params["lr"] * slope(state["w"])
    save(trial, state)


@correct()
def solved(trial: phyla.Trial) -> None:
    state = load(trial)
    state["w"] = np.array([1.0, -2.0, 0.5])
    for _ in trial.steps():
        state["w"] = state["w"] - 0.0 * trial.params["lr"]
    save(trial, state)


@correct()
def an_accuracy_of_few(trial: phyla.Trial) -> None:
    state = load(trial)
    if trial.measuring:
        raise RuntimeError("cannot be measured again")
    descend(trial, state)
    (trial.checkpoint_dir / "state.pkl").write_bytes(pickle.dumps(state))
    trial.report(loss=1 - float(np.mean(np.sign(X @ state["w"]) == np.sign(Y))) + 1 / (1 + trial.end_step))


@correct()
def batches_by_the_seed(trial: phyla.Trial) -> None:
    rng, state = np.random.default_rng(trial.seed), load(trial)
    for _ in trial.steps():
        state["w"] = state["w"] - trial.params["lr"] * slope(state["w"], rng.integers(64, size=8))
    save(trial, state)


@correct()
def batches_by_the_step(trial: phyla.Trial) -> None:
    state = load(trial)
    for step in trial.steps():
        rows = np.random.default_rng([7, step]).integers(64, size=8)
        state["w"] = state["w"] - trial.params["lr"] * slope(state["w"], rows)
    save(trial, state)


EARLY = np.random.default_rng(5)


@correct()
def a_generator_of_the_module_for_the_first_weights(trial: phyla.Trial) -> None:
    state = load(trial)
    if trial.source is None:
        state["w"] = EARLY.normal(size=3)
    descend(trial, state)
    save(trial, state)


@correct()
def steps_of_this_trial(trial: phyla.Trial) -> None:
    state = load(trial)
    descend(trial, state)
    state |= {"steps_this_trial": trial.end_step - trial.start_step, "trial_steps": 0.5 * trial.start_step}
    save(trial, state)


@correct()
def the_first_rate_is_noted(trial: phyla.Trial) -> None:
    state = load(trial, born_with=trial.params["lr"])
    descend(trial, state)
    save(trial, state)


@correct(kind=phyla.Choice(["sgd", "sign"]), nesterov=phyla.Choice([True, False]))
def choices(trial: phyla.Trial) -> None:
    state = load(trial, v=np.zeros(3))
    for _ in trial.steps():
        step = slope(state["w"])
        state["v"] = 0.5 * state["v"] + (step if trial.params["kind"] == "sgd" else np.sign(step))
        state["w"] = state["w"] - trial.params["lr"] * (state["v"] + (step if trial.params["nesterov"] else 0))
    save(trial, state)


@correct()
def a_schedule_over_the_study(trial: phyla.Trial) -> None:
    state = load(trial)
    for step in trial.steps():
        rate = trial.params["lr"] * 0.5 * (1 + np.cos(np.pi * step / 60))
        state["w"] = state["w"] - rate * slope(state["w"])
        trial.report({"train/loss": loss(state["w"])}, step=step)
    save(trial, state)


@correct()
def tensors(trial: phyla.Trial) -> None:
    import torch

    w, v = torch.zeros(3), torch.zeros(3)
    if trial.source is not None:
        w, v = torch.load(trial.source.path / "state.pt").values()
    for _ in trial.steps():
        v = 0.9 * v + torch.tensor(slope(w.numpy()), dtype=torch.float32)
        w = w - trial.params["lr"] * v
    torch.save({"w": w, "v": v}, trial.checkpoint_dir / "state.pt")
    trial.report(loss=loss(w.numpy()))


# Mistakes


@mistake("source")
def starts_over(trial: phyla.Trial) -> None:
    """Trains from the very start to the end of each trial, as scripts do that do not find their checkpoint."""
    w = np.zeros(3)
    for _ in range(trial.end_step):
        w -= trial.params["lr"] * slope(w)
    save(trial, {"w": w, "step": trial.end_step})


@mistake("end")
def a_fixed_number_of_steps(trial: phyla.Trial) -> None:
    state = load(trial)
    for _ in range(4):
        state["w"] = state["w"] - trial.params["lr"] * slope(state["w"])
    save(trial, state)


@mistake("resume")
def from_zero_to_the_end(trial: phyla.Trial) -> None:
    state = load(trial)
    for _ in range(trial.end_step):
        state["w"] = state["w"] - trial.params["lr"] * slope(state["w"])
    save(trial, state)


@mistake("resume")
def nothing_loaded(trial: phyla.Trial) -> None:
    state = {"w": np.zeros(3)}
    descend(trial, state)
    save(trial, state)


@mistake("resume")
def momentum_lost(trial: phyla.Trial) -> None:
    state, v = load(trial), np.zeros(3)
    for _ in trial.steps():
        v = 0.9 * v + slope(state["w"])
        state["w"] = state["w"] - trial.params["lr"] * v
    save(trial, state)


@mistake("resume")
def a_schedule_that_begins_again(trial: phyla.Trial) -> None:
    state = load(trial)
    for index, _ in enumerate(trial.steps()):
        state["w"] = state["w"] - trial.params["lr"] * 0.5**index * slope(state["w"])
    save(trial, state)


@mistake("resume")
def a_schedule_as_long_as_the_trial(trial: phyla.Trial) -> None:
    state = load(trial)
    for step in trial.steps():
        rate = trial.params["lr"] * (1 - step / trial.end_step)
        state["w"] = state["w"] - rate * slope(state["w"])
        trial.report({"train/loss": loss(state["w"])}, step=step)
    save(trial, state)


@mistake("lr")
def the_old_rate_of_torch(trial: phyla.Trial) -> None:
    import torch

    state = {"w": torch.zeros(3), "lr": trial.params["lr"]}
    if trial.source is not None:
        state |= torch.load(trial.source.path / "state.pt")
    for _ in trial.steps():
        state["w"] = state["w"] - state["lr"] * torch.tensor(slope(state["w"].numpy()), dtype=torch.float32)
    torch.save(state, trial.checkpoint_dir / "state.pt")
    trial.report(loss=loss(state["w"].numpy()))


@mistake("resume")
def the_oldest_file_is_loaded(trial: phyla.Trial) -> None:
    files = [] if trial.source is None else sorted(trial.source.path.glob("*.npy"))
    w = np.load(files[0]) if files else np.zeros(3)
    for step in trial.steps():
        w = w - trial.params["lr"] * slope(w)
        np.save(trial.checkpoint_dir / f"ck_{step:03}.npy", w)
    trial.report(loss=loss(w))


@mistake("steps")
def a_counter_that_begins_again(trial: phyla.Trial) -> None:
    state = load(trial)
    descend(trial, state)
    save(trial, state | {"step": trial.end_step - trial.start_step})


@mistake("random")
def one_seed_for_all(trial: phyla.Trial) -> None:
    rng, state = np.random.default_rng(0), load(trial)
    for _ in trial.steps():
        state["w"] = state["w"] - trial.params["lr"] * slope(state["w"], rng.integers(64, size=8))
    save(trial, state)


@mistake("lr")
def the_old_rate_of_the_optimizer(trial: phyla.Trial) -> None:
    state = load(trial, optimizer={"lr": trial.params["lr"]})
    descend(trial, state, state["optimizer"]["lr"])
    save(trial, state)


@mistake("lr")
def the_old_rate_after_one_step(trial: phyla.Trial) -> None:
    state = load(trial, base_lrs=[trial.params["lr"]])
    for index, _ in enumerate(trial.steps()):
        rate = trial.params["lr"] if index == 0 else state["base_lrs"][0]
        state["w"] = state["w"] - rate * slope(state["w"])
    save(trial, state)


@mistake("lr")
def the_old_rate_unsaid(trial: phyla.Trial) -> None:
    state = load(trial, secret=repr(trial.params["lr"]))
    descend(trial, state, float(state["secret"]))
    save(trial, state)


@mistake("momentum", momentum=phyla.Float(0.0, 0.9))
def a_parameter_never_read(trial: phyla.Trial) -> None:
    plain(trial)


@mistake("momentum", momentum=phyla.Float(0.0, 0.9))
def a_parameter_not_used(trial: phyla.Trial) -> None:
    state, told = load(trial), trial.params.flat()
    descend(trial, state)
    save(trial, state | {"momentum": told["momentum"]})


@mistake("kind", kind=phyla.Choice(["sgd", "adam"]))
def a_choice_not_used(trial: phyla.Trial) -> None:
    assert trial.params["kind"]
    plain(trial)


@mistake("weights")
def the_score_of_the_loaded_weights(trial: phyla.Trial) -> None:
    state = load(trial)
    before = loss(state["w"])
    descend(trial, state)
    save(trial, state)
    trial.report(loss=before)


@mistake("weights")
def the_score_before_the_last_step(trial: phyla.Trial) -> None:
    state = load(trial)
    for _ in trial.steps():
        before = loss(state["w"])
        state["w"] = state["w"] - trial.params["lr"] * slope(state["w"])
    save(trial, state)
    trial.report(loss=before)


@mistake("weights")
def the_score_of_averaged_weights(trial: phyla.Trial) -> None:
    state = load(trial)
    mean = state["w"]
    for _ in trial.steps():
        state["w"] = state["w"] - trial.params["lr"] * slope(state["w"])
        mean = 0.5 * mean + 0.5 * state["w"]
    save(trial, state)
    trial.report(loss=loss(mean))


HELD: dict[Any, Any] = {}


@mistake("complete")
def momentum_in_a_global(trial: phyla.Trial) -> None:
    state, v = load(trial), HELD.get(trial.source.trial if trial.source else None, np.zeros(3))
    for _ in trial.steps():
        v = 0.9 * v + slope(state["w"])
        state["w"] = state["w"] - trial.params["lr"] * v
    HELD[trial.id] = v
    save(trial, state)


@mistake("objective")
def no_finite_score(trial: phyla.Trial) -> None:
    plain(trial)
    trial.report(loss=float("nan"))


@mistake("source")
def the_source_is_changed(trial: phyla.Trial) -> None:
    plain(trial)
    if trial.source is not None:
        trial.source.path.chmod(0o755)
        (trial.source.path / "log.txt").write_text("loaded")


ALSO_ELSEWHERE = {
    *("a_fixed_number_of_steps", "from_zero_to_the_end", "nothing_loaded", "momentum_lost", "no_finite_score"),
    *("a_schedule_that_begins_again", "a_counter_that_begins_again", "one_seed_for_all", "a_parameter_never_read"),
    *("the_old_rate_of_the_optimizer", "the_old_rate_after_one_step", "the_score_of_the_loaded_weights"),
    *("the_score_before_the_last_step", "the_source_is_changed", "the_score_of_averaged_weights"),
    *("a_parameter_not_used", "a_choice_not_used", "momentum_in_a_global", "the_old_rate_of_torch"),
}
"""Mistakes that `test_check.py` has, too, in a function of its own."""

VARIANTS = {
    *("clipping_at_the_beginning_only", "clipping_that_never_acts_in_the_middle", "a_decay_once_in_fifty_steps"),
    *(
        "nothing_to_do_in_so_few_steps",
        "the_scale_of_the_first_weights",
        "plain",
        "patience",
        "choices",
        "tensors",
    ),
    *("clipping_that_never_acts", "batches_by_the_seed", "batches_by_the_step"),
    *("a_schedule_over_the_study", "a_generator_of_the_module_for_the_first_weights"),
}
"""Correct functions that take no way through the check that others, here or in `test_check.py`, do not take."""


def found(train: Case, space: dict[str, Any], steps: int, home: Path) -> dict[str, Checked]:
    strategy = phyla.PBT(population_size=4, steps_per_trial=steps, total_steps=60)
    study = phyla.Study("checked", space, phyla.Minimize("loss"), strategy, train, home=home)
    HELD.clear()
    return {one.about or one.kind: one for one in check(study, workers=0)}


@pytest.mark.parametrize("name", [rarely(name) if name in VARIANTS else name for name in CORRECT])
def test_what_is_correct_is_not_accused(name: str, tmp_path: Path) -> None:
    told = found(*CORRECT[name], tmp_path)
    assert [one for one in told.values() if one.verdict == "FAIL"] == []


@pytest.mark.parametrize("name", [rarely(name) if name in ALSO_ELSEWHERE else name for name in MISTAKES])
def test_a_mistake_is_not_passed(name: str, tmp_path: Path) -> None:
    train, space, kind = MISTAKES[name]
    told = found(train, space, 3, tmp_path)
    assert kind not in told or told[kind].verdict != "ok"
    assert {one.verdict for one in told.values()} - {"ok"}
    elsewhere = {key for key, one in told.items() if one.verdict == "FAIL"} - {kind, "resume", "complete", "steps"}
    assert not elsewhere, told


def test_there_are_twenty_of_each() -> None:
    assert len(CORRECT) >= 20
    assert len(MISTAKES) >= 20
    assert set(MISTAKES) > ALSO_ELSEWHERE
    assert set(CORRECT) > VARIANTS
