"""Copies and links of checkpoints that have a step: `last.ckpt`, `best.pt` and the like."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foreign import safetensors, save, write
from watched import QUIET_S, WatchedDirectory


@pytest.fixture
def watched(tmp_path: Path) -> WatchedDirectory:
    return WatchedDirectory(tmp_path)


COPIES: list[Callable[[Path, Path], object]] = [shutil.copy, shutil.copy2, os.link]


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("name", ["last.ckpt", "best.pt", "checkpoint_last.pt", "x-step=200-last.ckpt"])
def test_a_copy_is_told_and_never_evaluated(
    copy: Callable[[Path, Path], object], name: str, watched: WatchedDirectory
) -> None:
    for step in (100, 200):
        save(watched.root / f"step={step}.ckpt", b"%d" % step)
    copy(watched.root / "step=200.ckpt", watched.root / name)
    wanted = [("step=100.ckpt", 100), ("step=200.ckpt", 200)]
    assert watched.look() == watched.look() == watched.look(QUIET_S) == wanted
    assert watched.events() == [f"{name} holds the same weights as step=200.ckpt, so it is not evaluated again"]
    # The original is deleted, or the name moves on.
    (watched.root / "step=200.ckpt").unlink()
    assert watched.look(QUIET_S) == wanted
    save(watched.root / "step=300.ckpt", b"300")
    (watched.root / name).unlink()
    copy(watched.root / "step=300.ckpt", watched.root / name)
    assert watched.look() == watched.look(QUIET_S) == [*wanted, ("step=300.ckpt", 300)]


def test_what_is_saved_anew_is_a_copy_by_its_storages(watched: WatchedDirectory) -> None:
    save(watched.root / "step=100.ckpt", b"weights", b"optimizer")
    with zipfile.ZipFile(watched.root / "step=100.ckpt") as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    with zipfile.ZipFile(watched.root / "last.ckpt", "w") as archive:
        for member, data in members.items():
            name = member.replace("model/", "last/")
            archive.writestr(name, data[:-1] + b"0." if name == "last/data.pkl" else data)
    assert watched.look() == [("step=100.ckpt", 100)]
    assert len(watched.events()) == 1


def test_scores_of_callbacks_make_no_difference(watched: WatchedDirectory) -> None:
    save(watched.root / "step=100.ckpt", b"weights of a model", b"0.25")
    save(watched.root / "best.ckpt", b"weights of a model", b"0.75", b"0.25")
    assert watched.look() == [("step=100.ckpt", 100)]
    assert len(watched.events()) == 1


def test_a_copy_that_comes_before_its_original_waits_for_it(watched: WatchedDirectory) -> None:
    save(watched.root / "checkpoint-0.pth.tar", b"0")
    assert watched.look() == [("checkpoint-0.pth.tar", 0)]
    save(watched.root / "last.pth.tar", b"1")
    assert watched.look() == [("checkpoint-0.pth.tar", 0)]
    os.link(watched.root / "last.pth.tar", watched.root / "checkpoint-1.pth.tar")
    assert watched.look() == watched.look(QUIET_S) == [("checkpoint-0.pth.tar", 0), ("checkpoint-1.pth.tar", 1)]


def test_other_weights_under_such_a_name_are_a_checkpoint(watched: WatchedDirectory) -> None:
    save(watched.root / "step=100.ckpt", b"100")
    save(watched.root / "best.ckpt", b"best")
    assert watched.look() == [("step=100.ckpt", 100)]
    assert [name for name, _ in watched.look(QUIET_S)] == ["step=100.ckpt", "best.ckpt"]


def test_alone_it_is_a_checkpoint_at_once(watched: WatchedDirectory) -> None:
    save(watched.root / "last.ckpt", b"1")
    assert [name for name, _ in watched.look()] == ["last.ckpt"]


def test_checkpoints_with_steps_of_their_own_are_never_copies(watched: WatchedDirectory) -> None:
    for step in (100, 200):
        save(watched.root / f"step={step}.ckpt", b"same")
    assert watched.look() == [("step=100.ckpt", 100), ("step=200.ckpt", 200)]


def test_safetensors_are_compared_by_the_start_of_each_tensor(watched: WatchedDirectory) -> None:
    whole = safetensors({"frozen": 4000, "trained": 100})
    write(watched.root / "step_1.safetensors", whole)
    write(watched.root / "step_2.safetensors", whole[:-100] + bytes(100))
    write(watched.root / "last.safetensors", whole[:-100] + bytes(100))
    write(watched.root / "best.safetensors", whole[:-100] + bytes(99) + b"1")
    assert watched.look() == [("step_1.safetensors", 1), ("step_2.safetensors", 2)]
    assert watched.events() == [
        f"{name} holds the same weights as step_2.safetensors, so it is not evaluated again"
        for name in ("best.safetensors", "last.safetensors")
    ]


def test_arrays_of_numpy_and_directories(watched: WatchedDirectory) -> None:
    for name, value in (("step_1", 1), ("step_2", 2), ("final", 2)):
        folder = watched.root / name
        folder.mkdir()
        np.savez(folder / "weights.npz", w=np.full(3, value))
        write(folder / "notes.txt", name)
    watched.look()
    assert sorted(watched.look(QUIET_S)) == [("step_1", 1), ("step_2", 2)]
    assert watched.events() == ["final holds the same weights as step_2, so it is not evaluated again"]


@pytest.mark.parametrize(
    "names", [["model.safetensors"], ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]]
)
def test_a_final_save_beside_the_directories_of_a_trainer_is_a_copy(
    names: list[str], watched: WatchedDirectory
) -> None:
    for step in (1, 2):
        folder = watched.root / f"checkpoint-{step}"
        folder.mkdir()
        write_weights(folder, names, step)
        write(folder / "optimizer.pt", b"moments")
        write(folder / "trainer_state.json", json.dumps({"global_step": step}))
    write_weights(watched.root, names, 2)
    write(watched.root / "training_args.bin", b"arguments")
    write(watched.root / "config.json", "{}")
    watched.look()
    assert sorted(watched.look(QUIET_S)) == [("checkpoint-1", 1), ("checkpoint-2", 2)]
    assert len(watched.events()) == 1
    write_weights(watched.root, names, 3)
    watched.look()
    assert [step for _, step in sorted(watched.look(QUIET_S))] == [1, 2, -1]


def write_weights(folder: Path, names: list[str], value: int) -> None:
    for name in names:
        write(folder / name, safetensors({name: 100})[:-100] + bytes([value]) * 100)
    if len(names) > 1:
        index = {"metadata": {}, "weight_map": {name: name for name in names}}
        write(folder / "model.safetensors.index.json", json.dumps(index))


def test_without_checksums_only_links_are_copies(watched: WatchedDirectory) -> None:
    write(watched.root / "step_1.msgpack", b"1")
    shutil.copy(watched.root / "step_1.msgpack", watched.root / "best.msgpack")
    os.link(watched.root / "step_1.msgpack", watched.root / "last.msgpack")
    watched.look()
    watched.look(QUIET_S)
    assert sorted(name for name, _ in watched.look(QUIET_S)) == ["best.msgpack", "step_1.msgpack"]
