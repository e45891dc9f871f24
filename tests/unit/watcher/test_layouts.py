"""Layouts of libraries: which entries are checkpoints, when they are finished, and at which step."""

import os
import pickle
import zipfile
from pathlib import Path

import pytest

from foreign import QUIET_S, START, index, safetensors, scans, torch_zip
from phyla.watcher import get_format

LATER = START + QUIET_S


def write(path: Path, content: bytes | str = b"1", *, at: float | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if at is not None:
        os.utime(path, (at, at))
    return path


def save(path: Path, *storages: bytes, at: float | None = None) -> Path:
    """Write a file of `torch.save`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch_zip(path, {str(number): data for number, data in enumerate(storages or (b"1",))})
    if at is not None:
        os.utime(path, (at, at))
    return path


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
