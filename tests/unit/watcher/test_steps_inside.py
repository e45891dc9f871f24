"""Steps that checkpoints record in themselves, where their names have none."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreign import safetensors, write
from phyla.watcher.formats.pickles import numbers
from watched import QUIET_S, WatchedDirectory

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats() | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=6), st.integers(0, 5))
def test_the_integers_at_the_top_of_a_pickle_are_read(values: dict[str, object], protocol: int) -> None:
    wanted = {key: value for key, value in values.items() if type(value) is int}
    assert numbers(pickle.dumps(values, protocol)) == wanted


def test_a_pickle_is_not_run() -> None:
    class Trap:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, ("exit 1",)

    assert numbers(pickle.dumps({"trap": Trap(), "step": 3})) == {"step": 3}
    assert numbers(pickle.dumps(Trap())) == numbers(pickle.dumps([1])) == numbers(pickle.dumps(7)) == {}


def save(path: Path, **values: object) -> None:
    """Write a file of `torch.save` with a dictionary that has no tensors."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ckpt/data.pkl", pickle.dumps(values, 2))
        archive.writestr("ckpt/data/0", repr(values))


@pytest.fixture
def watched(tmp_path: Path) -> WatchedDirectory:
    return WatchedDirectory(tmp_path)


def test_a_file_that_is_overwritten_has_the_step_that_it_records(watched: WatchedDirectory) -> None:
    for step in (250, 500):
        save(watched.root / "ckpt.pt", model={"w": 1}, optimizer={"step": 7}, iter_num=step, best_val_loss=1.5)
        watched.look()
    assert watched.look() == [("ckpt.pt", 250), ("ckpt.pt", 500)]


@pytest.mark.parametrize("name", ["model.safetensors", "best_model.zip", "final"])
def test_other_files_record_it_too(name: str, watched: WatchedDirectory) -> None:
    path = watched.root / name
    if name == "final":
        write(path / "trainer_state.json", '{"global_step": 300}')
        write(path / "model.safetensors", safetensors({"w": 40}))
    elif name.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data", '{"num_timesteps": 300}')
            archive.writestr("policy.pth", b"w")
            archive.writestr("_stable_baselines3_version", "2.9.0")
    else:
        header = json.dumps({"__metadata__": {"step": "300", "format": "pt"}}).encode()
        write(path, len(header).to_bytes(8, "little") + header)
    watched.look()
    assert watched.look(QUIET_S) == [(name, 300)]


def test_it_counts_only_if_others_count_the_same(watched: WatchedDirectory) -> None:
    for epoch in (1, 2):
        save(watched.root / f"model_{epoch}.pt", epoch=epoch, global_step=epoch * 1000)
    save(watched.root / "best.pt", epoch=1, global_step=1500)
    watched.look()
    assert sorted(watched.look(QUIET_S)) == [("best.pt", 1), ("model_1.pt", 1), ("model_2.pt", 2)]


def test_a_rule_for_steps_comes_first(tmp_path: Path) -> None:
    watched = WatchedDirectory(tmp_path, step=r"_(?P<step>\d+)")
    save(watched.root / "ckpt.pt", step=3)
    assert watched.look() == [("ckpt.pt", -1)]
    save(watched.root / "ckpt_5.pt", step=3)
    assert watched.look() == [("ckpt.pt", -1), ("ckpt_5.pt", 5)]


@pytest.mark.parametrize(
    "state", ["[" * 100_000, "[]", '{"global_step": "3"}', '{"global_step": true}', "", '{"step": -1}']
)
def test_what_cannot_be_read_is_no_step(state: str, watched: WatchedDirectory) -> None:
    write(watched.root / "final/model.safetensors", safetensors({"w": 40}))
    write(watched.root / "final/trainer_state.json", state)
    header = json.dumps({"__metadata__": {"step": 3}}).encode()
    write(watched.root / "other.safetensors", len(header).to_bytes(8, "little") + header)
    watched.look()
    assert sorted(watched.look(QUIET_S)) == [("final", -1), ("other.safetensors", -1)]
