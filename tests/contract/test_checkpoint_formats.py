"""All formats keep the contract of a format, with checkpoints as their libraries write them."""

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from foreign import safetensors, torch_zip
from phyla.testing import check_format
from phyla.testing.formats import Save
from phyla.watcher import format_names, get_format

WEIGHTS = safetensors({"w": 300})


def in_halves(path: Path, content: bytes) -> Iterator[None]:
    path.write_bytes(content[: len(content) // 2])
    yield
    path.write_bytes(content)
    yield


def save_torch(root: Path, step: int) -> Iterator[None]:
    torch_zip(root / "model.tmp", {"0": b"12" * step})
    content = (root / "model.tmp").read_bytes()
    (root / "model.tmp").unlink()
    path = root / f"model_{step}.pt"
    path.write_bytes(content[: len(content) // 2])
    yield
    path.write_bytes(content)


def save_safetensors(root: Path, step: int) -> Iterator[None]:
    path = root / f"model_{step}.safetensors"
    path.write_bytes(WEIGHTS[:40])
    yield
    path.write_bytes(WEIGHTS)


def save_trainer(root: Path, step: int) -> Iterator[None]:
    folder = root / f"checkpoint-{step}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    yield
    yield from in_halves(folder / "model.safetensors", WEIGHTS)
    torch_zip(folder / "optimizer.pt", {"0": b"12"})
    yield
    yield from in_halves(folder / "training_args.bin", b"12")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))


def save_orbax(root: Path, step: int) -> Iterator[None]:
    draft = root / f"{step}.orbax-checkpoint-tmp"
    (draft / "default/d").mkdir(parents=True)
    yield
    (draft / "default/d/0123").write_bytes(b"data")
    (draft / "default/manifest.ocdbt").write_bytes(b"manifest")
    (draft / "default/_METADATA").write_text('{"use_ocdbt": true}')
    (draft / "_CHECKPOINT_METADATA").write_text('{"commit_timestamp_nsecs": 5}')
    yield
    if (root / str(step)).exists():
        shutil.rmtree(root / str(step))
        yield
    draft.rename(root / str(step))


def save_orbax_in_place(root: Path, step: int) -> Iterator[None]:
    folder = root / str(step)
    (folder / "default/d").mkdir(parents=True)
    (folder / "_CHECKPOINT_METADATA").write_text('{"commit_timestamp_nsecs": null}')
    yield
    (folder / "default/d/0123").write_bytes(b"data")
    yield
    (folder / "default/manifest.ocdbt").write_bytes(b"manifest")
    (folder / "default/_METADATA").write_text('{"use_ocdbt": true}')
    yield
    (folder / "commit_success.txt").touch()


def save_distributed(root: Path, step: int) -> Iterator[None]:
    folder = root / f"step-{step}"
    folder.mkdir(exist_ok=True)
    yield
    yield from in_halves(folder / "__0_0.distcp", b"x" * 300)
    parts = [{"relative_path": "__0_0.distcp", "offset": 0, "length": 300}]
    described = {"state_dict_metadata": {"w": 1}, "storage_data": parts}
    (folder / ".metadata.tmp").write_bytes(pickle.dumps(described))
    yield
    (folder / ".metadata.tmp").rename(folder / ".metadata")


def save_marked(root: Path, step: int) -> Iterator[None]:
    folder = root / f"step_{step}"
    folder.mkdir(exist_ok=True)
    yield from in_halves(folder / "weights", b"1234")
    (folder / "DONE").touch()


def save_parts(root: Path, step: int) -> Iterator[None]:
    yield from in_halves(root / f"params_{step}", b"1234")
    yield from in_halves(root / f"checkpoint_{step}", b"1234")


def save_any(root: Path, step: int) -> Iterator[None]:
    yield from in_halves(root / f"any_{step}", b"1234")


def save_at_once(root: Path, step: int) -> None:
    (root / "draft.tmp").write_bytes(WEIGHTS)
    (root / "draft.tmp").rename(root / f"model_{step}.safetensors")


WRITERS: dict[str, list[Save]] = {
    "auto": [save_torch, save_safetensors, save_trainer, save_orbax, save_distributed, save_at_once],
    "dcp": [save_distributed],
    "huggingface": [save_trainer],
    "marker": [save_marked],
    "orbax": [save_orbax, save_orbax_in_place],
    "quiet": [save_any, save_at_once],
    "safetensors": [save_safetensors, save_at_once],
    "steps": [save_parts],
    "torch": [save_torch],
}


def test_every_format_is_checked() -> None:
    assert sorted(WRITERS) == format_names()


@pytest.mark.parametrize(("name", "save"), [(name, save) for name, all_ in WRITERS.items() for save in all_])
def test_it_keeps_the_contract_of_a_format(name: str, save: Save) -> None:
    check_format(get_format(name), save)
