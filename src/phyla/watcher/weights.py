"""Whether a directory that a model was saved to has all of its weights."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from phyla.watcher.contents import SAFETENSORS_ENDING, TORCH_ENDINGS, check_distributed, check_file, check_index
from phyla.watcher.formats.shards import index_of, is_shard
from phyla.watcher.formats.torch import is_companion
from phyla.watcher.listing import File
from phyla.watcher.verdict import Verdict, worst


class Weights(NamedTuple):
    """The weights in a directory.

    Attributes:
        verdict: whether they are whole.
        files: the files they consist of.
    """

    verdict: Verdict
    files: tuple[File, ...]


def weights(folder: Path, files: Mapping[str, File]) -> Weights | None:
    """Look for weights in a directory; None if there are none that this package knows.

    Args:
        folder: the directory.
        files: what lies in there, by relative path.

    Raises:
        OSError: something is gone or cannot be read.
        ValueError: as `phyla.watcher.contents.check_file`.
    """
    here = {name: file for name, file in files.items() if "/" not in name}
    index = index_of(frozenset(here))
    if index is not None:
        ending = SAFETENSORS_ENDING if SAFETENSORS_ENDING in index else ".bin"
        single = _of_kind(here, (ending,))
        return Weights(check_index(folder, index, files), (here[index], *single))
    for endings in ((SAFETENSORS_ENDING,), TORCH_ENDINGS):
        found = _of_kind(here, endings)
        if any(is_shard(file.name) for file in found):
            return Weights(Verdict.partial(f"{found[0].name} is a shard, and there is no index yet"), found)
        if found:
            return Weights(worst(check_file(folder / file.name, file.size_bytes) for file in found), found)
    return _below(folder, files)


def _of_kind(files: Mapping[str, File], endings: tuple[str, ...]) -> tuple[File, ...]:
    return tuple(file for name, file in sorted(files.items()) if name.endswith(endings) and not is_companion(name))


def _below(folder: Path, files: Mapping[str, File]) -> Weights | None:
    parts: list[Weights] = []
    for name in sorted({name.partition("/")[0] for name in files if "/" in name}):
        inside = {path[len(name) + 1 :]: file for path, file in files.items() if path.startswith(f"{name}/")}
        if any(path.endswith((".distcp", ".metadata")) for path in inside):
            parts.append(Weights(check_distributed(folder / name, inside), tuple(inside.values())))
        elif name.startswith("global_step"):
            parts.append(Weights(_deepspeed(folder / name, inside, files), tuple(inside.values())))
    if not parts:
        return None
    return Weights(worst(part.verdict for part in parts), tuple(_all(part.files for part in parts)))


def _deepspeed(folder: Path, files: Mapping[str, File], above: Mapping[str, File]) -> Verdict:
    # DeepSpeed writes the name of the newest step into `latest` after all ranks have saved.
    if "latest" not in above:
        return Verdict.partial(f"{folder.name} is there, and latest is not, which is written after it")
    states = [name for name in files if name.endswith(TORCH_ENDINGS)]
    if not states:
        return Verdict.partial(f"{folder.name} has no weights in it")
    verdict = worst(check_file(folder / name, files[name].size_bytes) for name in states)
    return worst([verdict, Verdict.settling(f"how many ranks save into {folder.name}, nothing tells")])


def _all(parts: Iterable[tuple[File, ...]]) -> Iterable[File]:
    return (file for part in parts for file in part)
