"""Files as foreign programs write them, made by hand, and scans of them."""

import json
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from phyla.watcher import CheckpointFormat, Found

START = 1000.0
QUIET_S = 30.0


class Scan(Protocol):
    def __call__(self, now: float = START) -> dict[str, Found]: ...


def scans(form: CheckpointFormat, root: Path) -> Scan:
    """Return a scan of `root` at a time, which remembers the one before."""
    previous: dict[str, Found] = {}

    def scan(now: float = START) -> dict[str, Found]:
        found = {item.name: item for item in form.scan(root, now=now, previous=previous)}
        previous.clear()
        previous.update(found)
        return found

    return scan


def safetensors(tensors: Mapping[str, int]) -> bytes:
    """A file with tensors of so many bytes."""
    header, end = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(range(256)) * (end // 256) + bytes(end % 256)


def torch_zip(path: Path, storages: Mapping[str, bytes], *, without: frozenset[str] = frozenset()) -> None:
    """An archive as `torch.save` lays it out, whose description refers to all `storages`."""
    pickle = b"\x80\x02]q\x00("
    for key, data in storages.items():
        pickle += b"(X\x07\x00\x00\x00storagectorch\nByteStorage\n"
        pickle += b"X" + struct.pack("<I", len(key)) + key.encode() + b"X\x03\x00\x00\x00cpu"
        pickle += b"J" + struct.pack("<i", len(data)) + b"tQ"
    pickle += b"e."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickle)
        for key, data in storages.items():
            if key not in without:
                archive.writestr(f"model/data/{key}", data)
        archive.writestr("model/.data/serialization_id", b"1")


def index(weight_map: Mapping[str, str]) -> str:
    """The text of an index of shards."""
    return json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})


def trainer(root: Path, step: int, *, told: Any = None) -> Path:
    """A whole checkpoint directory of the Trainer."""
    folder = root / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors({"w": 300}))
    torch_zip(folder / "optimizer.pt", {"0": b"12"})
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step if told is None else told}))
    return folder


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
