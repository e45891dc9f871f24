"""Samples of an eval task: what was measured on each, kept as compressed JSON lines beside the result."""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from phyla.errors import MetricInvalid
from phyla.records import JsonObject

NAME: Final = "samples"
"""Name of the saved file among those of an evaluation."""
FILE: Final = "samples.jsonl.gz"
ID: Final = "id"
GROUP: Final = "group"


def write_samples(path: Path, samples: Iterable[Mapping[str, Any]]) -> None:
    """Write samples, one line each.

    Raises:
        MetricInvalid: a sample has no id, or another one has the same.
    """
    known = set[int | str]()
    # Without a name and a time in its header, the same samples give the same file.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        for sample in samples:
            key = sample.get(ID) if isinstance(sample, Mapping) else None
            if not isinstance(key, int | str) or isinstance(key, bool):
                raise MetricInvalid(
                    f"save_samples(): {sample!r:.200} needs an {ID!r}, a number or a text that is the same for "
                    "every checkpoint"
                )
            if key in known:
                raise MetricInvalid(f"save_samples(): two samples have the id {key!r}")
            known.add(key)
            file.write(json.dumps(sample, default=_plain).encode() + b"\n")


def _plain(value: object) -> object:
    """Return what JSON has in place of a value that it lacks: numbers and lists of NumPy, else text."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


def read_samples(path: Path) -> Iterator[JsonObject]:
    """Yield the samples of one shard."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)
