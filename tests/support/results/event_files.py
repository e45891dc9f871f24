"""Reads TensorBoard's event files: the framing by hand, the messages with tensorboardX's protocol buffers."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c


@dataclass(frozen=True)
class Logged:
    tag: str
    step: int
    wall_time: float
    value: float | None


def events(file: Path) -> Iterator[Any]:
    content = file.read_bytes()
    at = 0
    while at < len(content):
        header = content[at : at + 8]
        (length,) = struct.unpack("<Q", header)
        body = content[at + 12 : at + 12 + length]
        sums = struct.unpack("<I", content[at + 8 : at + 12]) + struct.unpack(
            "<I", content[at + 12 + length : at + 16 + length]
        )
        assert sums == (masked_crc32c(header), masked_crc32c(body))
        event = Event()
        event.ParseFromString(body)
        yield event
        at += 16 + length


def logged(folder: Path) -> dict[str, list[Logged]]:
    """Return what each TensorBoard run below a log directory holds, in the order of the files."""
    found: dict[str, list[Logged]] = {}
    for file in sorted(path for path in folder.rglob("*") if "tfevents" in path.name):
        first, *rest = events(file)
        assert first.file_version == "brain.Event:2"
        mine = found.setdefault(str(file.parent.relative_to(folder)), [])
        for event in rest:
            for value in event.summary.value:
                mine.append(Logged(value.tag, event.step, event.wall_time, value.simple_value))
    return found
