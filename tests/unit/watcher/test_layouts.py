"""Layouts of libraries: which entries are checkpoints, when they are finished, and at which step."""

import os
import pickle
import zipfile
from pathlib import Path

import pytest

from foreign import QUIET_S, START, index, safetensors, save, scans, write
from phyla.watcher import get_format

LATER = START + QUIET_S


def save_distributed(folder: Path) -> None:
    """Write what `torch.distributed.checkpoint` does."""
    write(folder / "__0_0.distcp", b"x" * 300)
    parts = [{"relative_path": "__0_0.distcp", "offset": 0, "length": 300}]
    write(folder / ".metadata", pickle.dumps({"state_dict_metadata": {"w": 1}, "storage_data": parts}))


def save_policy(path: Path, *, version: bool = True) -> None:
    """Write a policy in the order of Stable-Baselines3's `save_to_zip_file`."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "{}")
        archive.writestr("policy.pth", b"weights" * 50)
        if version:
            archive.writestr("_stable_baselines3_version", "2.9.0")
            archive.writestr("system_info.txt", "OS")


def auto(root: Path, now: float = START) -> dict[str, tuple[int | None, bool]]:
    """Return step and readiness of what `auto` finds, with the scans that a watcher makes before."""
    scan = scans(get_format("auto", quiet_s=QUIET_S), root)
    scan()
    return {name: (item.step, item.ready) for name, item in scan(now).items()}


# --- single layouts


def test_timm(tmp_path: Path) -> None:
    for name in ("checkpoint-0.pth.tar", "checkpoint-1.pth.tar", "tmp.pth.tar"):
        save(tmp_path / name, name.encode())
    assert auto(tmp_path) == {"checkpoint-0.pth.tar": (0, True), "checkpoint-1.pth.tar": (1, True)}


def test_stable_baselines3(tmp_path: Path) -> None:
    for name in ("rl_model_1000_steps.zip", "best_model.zip"):
        save_policy(tmp_path / name)
    for name in (
        "rl_model_replay_buffer_1000_steps.pkl",
        "rl_model_vecnormalize_1000_steps.pkl",
        "vec_normalize.pkl",
    ):
        write(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "logs_7.zip", "w") as archive:
        archive.writestr("progress.csv", "1")
    assert auto(tmp_path, LATER) == {"best_model.zip": (None, True), "rl_model_1000_steps.zip": (1000, True)}


def test_no_beginning_of_a_policy_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "rl_model_1000_steps.zip"
    save_policy(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert not any(ready for _, ready in auto(tmp_path).values())
    save_policy(path, version=False)  # closed by an exception, or written by an old version
    assert auto(tmp_path) == {path.name: (1000, False)}
    assert auto(tmp_path, LATER) == {path.name: (1000, True)}


def test_olmo_core(tmp_path: Path) -> None:
    for name in ("step1000", "step2000", "step3000-tmp"):
        save_distributed(tmp_path / name / "model_and_optim")
        save(tmp_path / name / "train/rank0.pt")
    assert auto(tmp_path, LATER) == {"step1000": (1000, False), "step2000": (2000, False)}
    write(tmp_path / "step1000/.metadata.json", "{}")
    write(tmp_path / "step1000/config.json", "{}")
    assert auto(tmp_path) == {"step1000": (1000, True), "step2000": (2000, False)}


def test_lerobot(tmp_path: Path) -> None:
    for name in ("000100", "000200"):
        write(tmp_path / name / "pretrained_model/model.safetensors", safetensors({"w": 40}))
        write(tmp_path / name / "training_state/training_step.json", "{}")
    (tmp_path / "last").symlink_to("000200")
    assert auto(tmp_path, LATER) == {"000100": (100, True), "000200": (200, True)}


@pytest.mark.parametrize("suffix", [".ckpt", ""])
def test_nemo_is_waited_for_while_it_is_marked_as_unfinished(suffix: str, tmp_path: Path) -> None:
    name = "gpt--val_loss=2.31-step=100-consumed_samples=800.0"
    if suffix:
        save(tmp_path / f"{name}.ckpt")
    else:
        save_distributed(tmp_path / name / "weights")
        write(tmp_path / name / "context/io.json", "{}")
    marker = write(tmp_path / f"{name}-unfinished", b"")
    assert auto(tmp_path, LATER) == {name + suffix: (100, False)}
    marker.unlink()
    assert auto(tmp_path, LATER) == {name + suffix: (100, True)}


def test_accelerate_with_fsdp_of_the_steps_0_to_2(tmp_path: Path) -> None:
    for step in range(3):
        save_distributed(tmp_path / f"checkpoint_{step}/pytorch_model_fsdp_0")
        assert auto(tmp_path)[f"checkpoint_{step}"] == (step, False)
        save_distributed(tmp_path / f"checkpoint_{step}/optimizer_0")
        save(tmp_path / f"checkpoint_{step}/scheduler.bin")
        assert auto(tmp_path)[f"checkpoint_{step}"] == (step, step > 0)


@pytest.mark.parametrize("part", ["pytorch_model", "checkpoint"])
def test_deepspeed_of_accelerate_and_lightning(part: str, tmp_path: Path) -> None:
    names = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "latest")
    for step in (100, 200):
        for name in names:
            save(tmp_path / f"step={step}.ckpt" / (name if name == "latest" else f"{part}/{name}"))
            assert auto(tmp_path)[f"step={step}.ckpt"] == (step, step == 200 and name == "latest")


def test_lightning_with_fsdp_is_ready_with_the_rest_of_its_state(tmp_path: Path) -> None:
    save_distributed(tmp_path / "step=100.ckpt")
    assert auto(tmp_path) == {"step=100.ckpt": (100, False)}
    rest = save(tmp_path / "step=100.ckpt/meta.pt")
    assert auto(tmp_path) == {"step=100.ckpt": (100, True)}
    metadata, written = tmp_path / "step=100.ckpt/.metadata", rest.stat().st_mtime
    os.utime(metadata, (written + 5, written + 5))
    assert auto(tmp_path) == {"step=100.ckpt": (100, False)}, "it is being overwritten"
    os.utime(metadata, (written - 5, written - 5))
    rest.write_bytes(rest.read_bytes()[:-9])
    assert auto(tmp_path) == {"step=100.ckpt": (100, False)}


def test_lightning_and_keras(tmp_path: Path) -> None:
    save(tmp_path / "epoch=0-step=100.ckpt")
    with zipfile.ZipFile(tmp_path / "weights.02-0.53.keras", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", b"\x89HDF\r\n")
    assert auto(tmp_path) == {"weights.02-0.53.keras": (2, True), "epoch=0-step=100.ckpt": (100, True)}


def test_prime_rl(tmp_path: Path) -> None:
    for step in (100, 200):
        folder = tmp_path / f"step_{step}"
        write(folder / "model-00001-of-00001.safetensors", safetensors({"w": 40}))
        write(folder / "model.safetensors.index.json", index({"w": "model-00001-of-00001.safetensors"}))
    write(tmp_path / "step_100/STABLE", b"")
    assert auto(tmp_path, LATER) == {"step_100": (100, True), "step_200": (200, False)}
    write(tmp_path / "step_200/STABLE", b"")
    assert auto(tmp_path) == {"step_100": (100, True), "step_200": (200, True)}


# --- files that name the newest whole checkpoint, and ranks

DEEPSPEED = "zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
TRACKED = [
    ("latest_checkpointed_iteration.txt", "{}", "iter_{:07d}", "mp_rank_{rank:02d}/model_optim_rng.pt"),
    ("latest_checkpointed_iteration.txt", "{}", "global_step_{}", "actor/model_world_size_2_rank_{rank}.pt"),
    ("latest", "global_step{}", "global_step{}", DEEPSPEED),
]


def save_ranks(folder: Path, path: str, *ranks: int, at: float) -> None:
    for rank in ranks:
        save(folder / path.format(rank=rank), at=at)


@pytest.mark.parametrize(("tracker", "text", "name", "path"), TRACKED)
def test_a_tracker_says_what_is_finished(tracker: str, text: str, name: str, path: str, tmp_path: Path) -> None:
    for step, at in ((100, 500.0), (200, 600.0)):
        save_ranks(tmp_path / name.format(step), path, 0, 1, at=at)
    write(tmp_path / tracker, text.format(200) + "\n", at=601.0)
    save_ranks(tmp_path / name.format(300), path, 0, at=700.0)
    wanted = {name.format(step): (step, True) for step in (100, 200)}
    assert auto(tmp_path) == wanted | {name.format(300): (300, False)}
    assert auto(tmp_path, LATER)[name.format(300)] == (300, False)
    save_ranks(tmp_path / name.format(300), path, 1, at=720.0)
    assert not auto(tmp_path, LATER)[name.format(300)][1]
    write(tmp_path / tracker, text.format(300), at=721.0)
    assert auto(tmp_path) == wanted | {name.format(300): (300, True)}


def test_a_checkpoint_that_is_written_again_below_its_tracker_must_be_quiet(tmp_path: Path) -> None:
    for step in (100, 200):
        save_ranks(tmp_path / f"iter_{step}", "mp_rank_{rank:02d}/w.pt", 0, 1, at=500.0)
    write(tmp_path / "latest_checkpointed_iteration.txt", "200", at=501.0)
    save_ranks(tmp_path / "iter_200", "mp_rank_{rank:02d}/w.pt", 0, at=510.0)
    assert auto(tmp_path) == {"iter_100": (100, True), "iter_200": (200, False)}
    assert auto(tmp_path, LATER)["iter_200"] == (200, True)


def test_a_tracker_counts_more_than_the_number_of_ranks_before(tmp_path: Path) -> None:
    save_ranks(tmp_path / "iter_100", "mp_rank_{rank:02d}/w.pt", 0, 1, at=500.0)
    save_ranks(tmp_path / "iter_200", "mp_rank_{rank:02d}/w.pt", 0, at=510.0)
    write(tmp_path / "latest_checkpointed_iteration.txt", "200", at=511.0)
    assert auto(tmp_path) == {"iter_100": (100, True), "iter_200": (200, True)}


@pytest.mark.parametrize("text", ["release", "", "\xff", "9" * 30, "best", "x" * 300])
def test_a_tracker_that_names_no_step_changes_nothing(text: str, tmp_path: Path) -> None:
    save_ranks(tmp_path / "iter_100", "mp_rank_{rank:02d}/w.pt", 0, at=500.0)
    write(tmp_path / "latest_checkpointed_iteration.txt", text, at=400.0)
    write(tmp_path / "latest", text, at=400.0)
    assert auto(tmp_path) == {"iter_100": (100, False)}
    assert auto(tmp_path, LATER) == {"iter_100": (100, True)}


def test_a_link_to_the_last_checkpoint_says_that_it_is_finished_and_holds_nothing_back(tmp_path: Path) -> None:
    for step in (100, 200):
        save_ranks(tmp_path / f"{step:06d}", "pretrained_model/w.pt", 0, at=500.0 + step)
    (tmp_path / "last").symlink_to("000100")
    os.utime(tmp_path / "last", (601.0, 601.0), follow_symlinks=False)
    save_ranks(tmp_path / "000200", "training_state/rank_{rank}.pt", 0, at=700.0)
    assert auto(tmp_path)["000100"] == (100, True)
    assert auto(tmp_path, LATER)["000200"] == (200, True)


def test_without_a_tracker_the_ranks_of_the_step_before_are_waited_for(tmp_path: Path) -> None:
    for step in (1, 2):
        save_ranks(tmp_path / f"step_{step}", "mp_rank_{rank:02d}/w.pt", 0, 1, 2, at=500.0 + step)
    save_ranks(tmp_path / "step_3", "mp_rank_{rank:02d}/w.pt", 0, 2, at=510.0)
    found = scans(get_format("auto", quiet_s=QUIET_S), tmp_path)
    found()
    late = found(LATER)
    assert {name: item.ready for name, item in late.items()} == {"step_1": True, "step_2": True, "step_3": False}
    assert late["step_3"].why == "mp_rank_01/w.pt is missing, which step_2 has"
    save_ranks(tmp_path / "step_3", "mp_rank_{rank:02d}/w.pt", 1, at=511.0)
    assert found(LATER + 1)["step_3"].ready
    # With fewer ranks from now on: the next one shows that this one was finished.
    save_ranks(tmp_path / "step_4", "mp_rank_{rank:02d}/w.pt", 0, 1, at=520.0)
    assert not found(LATER + 99)["step_4"].ready
    save_ranks(tmp_path / "step_5", "mp_rank_{rank:02d}/w.pt", 0, 1, at=530.0)
    found(LATER + 100)
    assert found(LATER + 200)["step_4"].ready


def test_files_of_ranks_are_one_checkpoint(tmp_path: Path) -> None:
    save_ranks(tmp_path, "model_100_rank{rank}.pt", 0, at=500.0)
    assert auto(tmp_path) == {"model_100_rank*.pt": (100, False)}
    save_ranks(tmp_path, "model_100_rank{rank}.pt", 1, at=500.0)
    assert auto(tmp_path, LATER) == {"model_100_rank*.pt": (100, True)}
    save_ranks(tmp_path, "model_200_rank{rank}.pt", 0, at=600.0)
    assert auto(tmp_path, LATER) == {"model_100_rank*.pt": (100, True), "model_200_rank*.pt": (200, False)}
    save_ranks(tmp_path, "model_200_rank{rank}.pt", 1, at=601.0)
    assert auto(tmp_path)["model_200_rank*.pt"] == (200, True)
