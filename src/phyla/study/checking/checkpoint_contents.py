"""The contents of a checkpoint as comparable numbers, whatever framework wrote it.

JSON, NumPy, PyTorch and its `distributed.checkpoint`, safetensors, Orbax, HDF5, pickles and joblib are read, and
zip files of these, as Keras and Stable-Baselines3 write; of other files only a digest is known. They come from a
training function that is run here and now, so pickles are loaded.
"""

import contextlib
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from phyla.checkpoints.manifest import MANIFEST_NAME
from phyla.worker.commands.placeholders import age

Facts: TypeAlias = dict[str, Any]
"""By name, as in `state.pt: optimizer.step`: an array, some numbers, a number, or the digest of a file as text."""

OBJECTIVE = "objective "
"""Begins the names of metrics."""
OF_RANKS = ".metadata"
"""The file of `torch.distributed.checkpoint` that stands for all files that ranks wrote beside it."""
DEEPEST = 16
FEW = 8
"""Numbers in one place that may be hyperparameters."""
COUNTERS = re.compile(
    r"^(?!_|.*(trial|session|since|this)).*(step|iter|epoch|update|sample|token|frame|count|batch)", re.IGNORECASE
)
INDEX = re.compile(r"(?<![^.])\d+(?=\.|$)")
"""In a name, the place of an item in a list."""
COUNTERS_DEEPEST = 2
"""Numbers deeper in a file are a framework's own counters."""


def read(directory: Path) -> Facts:
    """Return the contents of the files of a checkpoint.

    Digits in their names are left out, as they may be steps: of several files whose names differ in nothing else,
    the newest has that name, and the others have their own.
    """
    facts: Facts = {}
    of_orbax = {file.parent for file in directory.rglob("_METADATA")}
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
    parts = [*of_orbax, *(path for path in files if of_orbax.isdisjoint(path.parents) and not _is_shard(path))]
    names = set()
    for file in sorted(parts, key=age, reverse=True):
        relative = str(file.relative_to(directory))
        name = series(relative) if series(relative) not in names else relative
        names.add(name)
        facts |= _facts_of(file, name)
    return facts


def _is_shard(file: Path) -> bool:
    return file.suffix == ".distcp" and (file.parent / OF_RANKS).is_file()


def series(name: str) -> str:
    """Return the name of a file without its digits, except those of an ending such as `.h5`."""
    return re.sub(r"(\.[a-z]+\d)$|\d+", lambda digits: digits[1] or "#", name)


def _facts_of(file: Path, name: str) -> Facts:
    try:
        return dict(_leaves(_load(file), f"{name}: "))
    except Exception:  # noqa: BLE001  # whatever a reader does not understand is bytes to us
        whole = file.parent if file.name == OF_RANKS else file
        parts = sorted(path for path in whole.rglob("*") if path.is_file()) if whole.is_dir() else [file]
        return {name: hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()}


def _load(file: Path) -> Any:
    if file.is_dir():
        import orbax.checkpoint as ocp

        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(file.absolute())
    if file.name == OF_RANKS:
        return _load_shards(file.parent)
    if file.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return load_file(file)
    with file.open("rb") as stream:
        return _load_stream(stream, file.suffix)


def _load_shards(directory: Path) -> Any:
    """Return what ranks saved with `torch.distributed.checkpoint`."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    whole: Any = io.BytesIO()
    try:
        dcp_to_torch_save(directory, whole)
    except CheckpointException as error:  # no Exception, but a BaseException
        raise ValueError(f"{directory} cannot be read") from error
    whole.seek(0)
    return _load_zip(whole)


def _load_stream(stream: IO[bytes], suffix: str) -> Any:
    head = stream.read(8)
    stream.seek(0)
    if head.startswith(b"PK"):
        return _load_zip(stream)
    if head.startswith(b"\x93NUMPY"):
        return np.load(stream, allow_pickle=True)
    if head.startswith(b"\x89HDF"):
        import h5py

        with h5py.File(stream, "r") as file:
            return _h5(file)
    if head.startswith(b"\x80") or suffix == ".joblib":
        try:
            import joblib  # reads any pickle
        except ImportError:
            return np.load(stream, allow_pickle=True)
        return joblib.load(stream)
    return json.load(stream)


def _load_zip(stream: IO[bytes]) -> Any:
    """Return what PyTorch or NumPy wrote, else what can be read of the files in it, by name."""
    with zipfile.ZipFile(stream) as archive:
        names = archive.namelist()
        if any(name.endswith("data.pkl") for name in names):
            import torch

            stream.seek(0)
            return torch.load(stream, map_location="cpu", weights_only=False)
        contents = {}
        for name in names:
            with contextlib.suppress(Exception):
                contents[name.removesuffix(".npy")] = _load_stream(
                    io.BytesIO(archive.read(name)), Path(name).suffix
                )
        if not contents:
            raise ValueError(f"no file in it can be read: {names}")
        return contents


def _h5(group: Any) -> dict[str, Any]:
    return {name: item[()] if hasattr(item, "dtype") else _h5(item) for name, item in group.items()}


def _leaves(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield numbers and arrays with their names; texts, and what holds neither, are left out."""
    if depth > DEEPEST or value is None or isinstance(value, str | bytes):
        return
    if hasattr(value, "detach"):  # a tensor of PyTorch
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value
    try:
        array = np.asarray(value) if hasattr(value, "__array__") else None
    except TypeError:  # a key of a random generator of JAX, or the like
        return
    if isinstance(value, bool | int | float):
        yield name.rstrip(".: "), float(value)
    elif array is not None and array.dtype != object:
        array = array.astype(np.float32) if array.dtype.kind == "V" else array  # bfloat16 and the like
        if array.dtype.kind in "fiubc":
            yield name.rstrip(".: "), array if array.ndim else float(array.real)
    elif isinstance(value, Sequence) and len(value) > 1 and all(type(item) in (int, float) for item in value):
        yield name.rstrip(".: "), tuple(map(float, value))
    else:
        value = value if array is None else array.tolist()
        items: Any = enumerate(value) if isinstance(value, Sequence) else getattr(value, "__dict__", {}).items()
        for key, item in value.items() if isinstance(value, Mapping) else items:
            yield from _leaves(item, f"{name}{key}.", depth + 1)


def gap(value: Any, other: Any) -> float:
    """Return how far two values are apart, as a share of the larger; infinite where they cannot be compared."""
    if value is None or other is None or isinstance(value, str) or isinstance(other, str):
        return 0.0 if isinstance(value, str) and isinstance(other, str) and value == other else np.inf
    first, second = np.asarray(value), np.asarray(other)
    if first.shape != second.shape:
        return np.inf
    if np.array_equal(first, second, equal_nan=True):
        return 0.0
    finite = np.isfinite(first)
    if not finite.any() or not np.array_equal(finite, np.isfinite(second)):
        return np.inf
    first, second = 1.0 * first[finite], 1.0 * second[finite]
    return float(np.abs(first - second).max() / max(np.abs(first).max(), np.abs(second).max()))


def are(known: Any, value: Any) -> bool:
    """Return whether a stored number equals a value, up to the precision of files."""
    numbers = isinstance(known, float) and isinstance(value, int | float)
    return numbers and bool(np.isclose(known, value, rtol=1e-6, atol=0.0))


def describe_contents(*known: tuple[Facts, Any]) -> str:
    """Return the name of a number, or of a few, that has this value in each of these; empty if there is none."""
    if any(isinstance(value, bool) or not isinstance(value, int | float) for _, value in known):
        return ""
    logs = grown_lists(known[0][0], known[-1][0])
    for name, fact in known[0][0].items():
        if not logs.isdisjoint(lists(name)):
            continue
        cases = [np.ravel(facts.get(name, ())) for facts, _ in known]
        if isinstance(fact, str) or not 0 < cases[0].size == min(map(len, cases)) == max(map(len, cases)) <= FEW:
            continue
        close = [
            np.isclose(case, value, rtol=1e-6, atol=0.0) for case, (_, value) in zip(cases, known, strict=True)
        ]
        if np.logical_and.reduce(close).any():
            return name
    return ""


def comparable_names(whole: Facts, half: Facts) -> list[str]:
    """Return the names to compare between two checkpoints: of arrays, else numbers, else metrics, else digests.

    Numbers are the framework's own records if there are also arrays, or unreadable files that change. A value
    whose shape changes during training is a log, and is left out, as are the items of a list that grows. If
    training adds files to a series, only the newest counts; shards and layers are the same files in both.
    """
    files = [{name.partition(": ")[0] for name in known} for known in (whole, half)]
    grown, logs = {series(file) for file in files[0] ^ files[1]}, grown_lists(half, whole)
    common = [
        name
        for name in whole
        if _shape(whole[name]) == _shape(half.get(name))
        and not _older(name, grown)
        and logs.isdisjoint(lists(name))
    ]
    metrics = [name for name in common if name.startswith(OBJECTIVE)]
    arrays = [name for name in common if isinstance(whole[name], np.ndarray) and whole[name].dtype.kind in "fc"]
    closed = any(isinstance(whole[name], str) and whole[name] != half[name] for name in common)
    numbers = [name for name in common if not isinstance(whole[name], str) and name not in metrics]
    return arrays or (not closed and numbers) or metrics or common


def grown_lists(before: Facts, after: Facts) -> set[str]:
    """Return the lists that got longer, such as one of an object per epoch or trial, by how their items begin."""
    old, new = ({item for name in known for item in lists(name).items()} for known in (before, after))
    return {name for name, _ in new - old}


def lists(name: str) -> dict[str, str]:
    """Return the lists that a value is in, by the beginning of its name, and its index in each."""
    file, _, inside = name.partition(": ")
    return {f"{file}: {inside[: index.start()]}": index[0] for index in INDEX.finditer(inside)}


def _older(name: str, among: Container[str]) -> bool:
    """Return whether a value is in a file of one of these series, which has a newer file."""
    file = name.partition(": ")[0]
    return series(file) != file and series(file) in among


def only_metrics(names: Iterable[str]) -> bool:
    """Return whether all of these are metrics, as where no file of a checkpoint can be read."""
    return all(name.startswith(OBJECTIVE) for name in names)


def list_unread(known: Facts) -> Facts:
    """Return the digests of the files that cannot be read."""
    return {name: value for name, value in known.items() if isinstance(value, str)}


def _shape(value: Any) -> Any:
    return type(value) if value is None or isinstance(value, str) else np.shape(value)


def lost_counters(whole: Facts, half: Facts, resumed: Facts) -> list[str]:
    """Return the names of step counters that do not continue from the checkpoint that training resumed from."""
    logs = grown_lists(half, resumed)
    return [
        name
        for name, value in whole.items()
        if isinstance(value, float)
        and logs.isdisjoint(lists(name))
        and not _older(name, {series(name.partition(": ")[0])})
        and name.partition(": ")[2].count(".") < COUNTERS_DEEPEST
        and COUNTERS.search(re.split(r"[.:/ ]", name)[-1])
        and half.get(name) != value != resumed.get(name, value)
    ]
