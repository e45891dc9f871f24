"""Weights in several files: shards with an index, a saved model, or the files of many ranks.

Functions raise `OSError` where something is gone or cannot be read, and `ValueError` as `check_file` does.
"""

import json
import os
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, final

from phyla.watcher.format import (
    Candidate,
    Finish,
    Verdict,
    check_all,
    check_file,
    check_order,
    is_companion,
    worst,
)
from phyla.watcher.formats.pickles import PICKLE_BYTES_AT_MOST, extents
from phyla.watcher.listing import File, Listing, Place, Root

SAFETENSORS_ENDING = ".safetensors"
TORCH_ENDINGS = (".pt", ".pth", ".ckpt", ".bin", ".pth.tar", ".pt.tar")
SAFETENSORS_INDEX, TORCH_INDEX = ".safetensors.index.json", ".bin.index.json"

_HEADER_BYTES_AT_MOST = 100_000_000
"""What the safetensors library itself accepts."""
_SHARD = re.compile(r".+-\d{5}-of-\d{5}\.[a-z]+")
_PRETRAINED = re.compile(r"(model|pytorch_model|adapter_model)\.(safetensors|bin)(\.index\.json)?")
"""Weights as `save_pretrained` of transformers and PEFT names them."""
_CONFIGS = {"config.json", "adapter_config.json"}
_NEEDED = re.compile(
    r"([a-z]+_)*config\.json"
    r"|(special_tokens_map|added_tokens|tokenizer|tekken|chat_template|normalizer|emoji|byte_maps)\.json"
    r"|chat_template\.jinja|(modules|config_sentence_transformers)\.json"
    r"|([a-z]+_)?vocab(-src|-tgt)?\.json|word_(shape|pronunciation)\.json|(vocab|merges|dict)\.txt|bpe\.codes"
    r"|(tokenizer|spiece|spm(_char)?|sentencepiece(\.bpe)?)\.model|(source|target)\.spm|prophetnet\.tokenizer"
    r"|(configuration|modeling|tokenization|((image|video)_)?processing|feature_extraction)_\w+\.py"
)
"""Configuration, tokenizer and code as `save_pretrained` names them: files beside weights that loading needs."""
_NEEDED_FOLDER = re.compile(r"additional_chat_templates|\d+_[A-Z][A-Za-z]*")
"""The same; those with a number are modules of sentence-transformers, such as `1_Pooling`."""


def tensors(file: IO[bytes], name: str) -> dict[str, tuple[int, int]]:
    """Return begin and end of every tensor in a safetensors file, in bytes after its header, if that is whole."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 + length or not 2 <= length <= _HEADER_BYTES_AT_MOST:
        raise ValueError(f"{name} has {size} bytes and a header of {length}")
    header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"{name} has a header that is not a JSON object")
    ranges: dict[str, tuple[int, int]] = {}
    for key, value in header.items():
        if key != "__metadata__":
            begin, end = (int(offset) for offset in value["data_offsets"])
            if not 0 <= begin <= end:
                raise ValueError(f"{name} has tensor {key!r} from byte {begin} to {end}")
            ranges[key] = (begin, end)
    return ranges


def weight_files(root: Root, endings: tuple[str, ...], index_ending: str) -> Iterator[Candidate]:
    """Yield sets of files with an index, and single files, directly in a directory."""
    indexed: set[str] = set()
    for index in (name for name in root.files if name.endswith(index_ending)):
        shards: list[str] = []
        # Invalid indexes are reported later.
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            named = set(_weight_map(root.path / index).values())
            shards = [name for name in root.files if name in named]
        indexed.update(shards)
        yield _with_configuration(root, Candidate(index, (index, *shards), partial(_check_set, index)))
    for name in root.files:
        if name.endswith(endings) and not (name in indexed or is_companion(name) or _SHARD.fullmatch(name)):
            yield _with_configuration(root, Candidate.entry(name, check_all))


def _with_configuration(root: Root, weights: Candidate) -> Candidate:
    """Return weights with the files that loading them needs, if `save_pretrained` wrote them."""
    if not _PRETRAINED.fullmatch(weights.name):
        return weights
    needed = [name for name in root.files if _NEEDED.fullmatch(name)]
    needed += [name for name in root.folders if _NEEDED_FOLDER.fullmatch(name)]
    if _CONFIGS.isdisjoint(needed):
        return weights
    return Candidate(weights.name, (*weights.paths, *needed), partial(_check_pretrained, weights))


def _check_pretrained(weights: Candidate, root: Place, listed: Listing) -> Verdict:
    files = tuple(file for file in listed.files if file.relative in weights.paths)
    return worst([weights.check(root, Listing(files)), Verdict.settling("its tokenizer may still follow")])


def _check_set(index: str, root: Place, listed: Listing) -> Verdict:
    return _check_index(root, index, {file.relative: file for file in listed.files})


def _weight_map(index: Place) -> dict[str, Any]:
    """Return the names of shards by tensor, as they are written."""
    return dict(json.loads(index.read_bytes())["weight_map"])


def _check_index(folder: Place, index: str, files: Mapping[str, File]) -> Verdict:
    """Return whether all shards that an index names are whole, and are the ones it was written for."""
    by_shard: dict[str, list[str]] = {}
    try:
        for tensor, shard in _weight_map(folder / index).items():
            if not isinstance(shard, str):
                raise TypeError(f"{shard!r} is not a file name")
            path = posixpath.normpath(shard)
            if path.startswith(("/", "../")) or path in {"..", "."}:
                raise ValueError(f"{shard!r} is outside the checkpoint")
            by_shard.setdefault(path, []).append(tensor)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return Verdict.partial(f"{index} is cut off or damaged: {error}")
    missing = sorted(shard for shard in by_shard if shard not in files)
    if missing:
        return Verdict.partial(f"{index} names {missing[0]}, which is missing ({len(missing)} of {len(by_shard)})")
    if not by_shard:
        return Verdict.partial(f"{index} names no shard")
    verdict = worst(_check_shard(folder, files[shard], shard, names) for shard, names in by_shard.items())
    return check_order(files[index], verdict, [files[shard] for shard in by_shard])


def _check_shard(folder: Place, file: File, shard: str, names: Collection[str]) -> Verdict:
    verdict = check_file(folder / shard, file.size_bytes)
    if verdict.finish is Finish.COMPLETE and shard.endswith(SAFETENSORS_ENDING):
        with (folder / shard).open("rb") as opened:
            absent = sorted(set(names) - tensors(opened, shard).keys())
        if absent:
            return Verdict.partial(f"{shard} lacks tensor {absent[0]!r}, which the index says is in it")
    return verdict


@final
@dataclass(frozen=True, slots=True)
class Weights:
    """The weights in a directory: whether they are complete, their files, and the file that names the others."""

    verdict: Verdict
    files: tuple[File, ...]
    index: File | None = None


def weights(folder: Place, files: Mapping[str, File]) -> Weights | None:
    """Return the weights in a directory; None without any known ones."""
    here = {name: file for name, file in sorted(files.items()) if "/" not in name and not is_companion(name)}
    for ending in (SAFETENSORS_INDEX, TORCH_INDEX):
        for index in (name for name in here if name.endswith(ending)):
            suffix = ending.removesuffix(".index.json")
            single = [file for name, file in here.items() if name.endswith(suffix)]
            return Weights(_check_index(folder, index, files), (here[index], *single), here[index])
    for endings in ((SAFETENSORS_ENDING,), TORCH_ENDINGS):
        matches = tuple(file for name, file in here.items() if name.endswith(endings))
        if any(_SHARD.fullmatch(file.name) for file in matches):
            return Weights(Verdict.partial(f"{matches[0].name} is a shard, and there is no index yet"), matches)
        if matches:
            return Weights(worst(check_file(folder / file.name, file.size_bytes) for file in matches), matches)
    return _below(folder, files)


def check_folder(root: Place, listed: Listing) -> Verdict:
    """Return whether the weights in a directory are whole, by their headers and their index."""
    folder, files = listed.folder()
    content = weights(root / folder, files)
    if content is None:
        return Verdict.partial("there are no weights in it")
    if content.index is None:
        return content.verdict
    return check_order(content.index, content.verdict, folders_ns=listed.folders_ns)


def _below(folder: Place, files: Mapping[str, File]) -> Weights | None:
    verdicts: list[Verdict] = []
    contents: list[File] = []
    for name in sorted({name.partition("/")[0] for name in files if "/" in name}):
        inside = {path[len(name) + 1 :]: file for path, file in files.items() if path.startswith(f"{name}/")}
        if any(path.endswith((".distcp", ".metadata")) for path in inside):
            verdicts.append(check_distributed(folder / name, inside))
        elif name.startswith("global_step"):
            verdicts.append(_deepspeed(folder / name, inside, files))
        else:
            continue
        contents += inside.values()
    return Weights(worst(verdicts), tuple(contents)) if verdicts else None


def _deepspeed(folder: Place, files: Mapping[str, File], above: Mapping[str, File]) -> Verdict:
    # DeepSpeed writes the name of the newest step into `latest` after all ranks have saved.
    if "latest" not in above:
        return Verdict.partial(f"{folder.name} is there, and latest is not, which is written after it")
    states = [name for name in files if name.endswith(TORCH_ENDINGS)]
    if not states:
        return Verdict.partial(f"{folder.name} has no weights in it")
    verdict = worst(check_file(folder / name, files[name].size_bytes) for name in states)
    return worst([verdict, Verdict.settling(f"the number of ranks that save into {folder.name} is unknown")])


def check_distributed(folder: Place, files: Mapping[str, File]) -> Verdict:
    """Return whether a checkpoint of `torch.distributed.checkpoint` is whole.

    `.metadata`, which says how long each data file is, is written last, under another name, and then renamed. A
    rank that saves without the others writes `__RANK.metadata` instead.
    """
    data = {name: file for name, file in files.items() if name.endswith(".distcp")}
    unfinished = next((name for name in files if name.endswith(".metadata.tmp")), None)
    if unfinished is not None:
        return Verdict.partial(f"{unfinished} is there: a save into this directory has not finished")
    empty = next((name for name, file in data.items() if file.size_bytes == 0), None)
    if empty is not None:
        return Verdict.partial(f"{empty} is empty")
    metadata = files.get(".metadata")
    if metadata is None:
        ranks = {name.removeprefix("__").partition("_")[0] for name in data}
        if not ranks or not all(f"__{rank}.metadata" in files for rank in ranks):
            return Verdict.partial(".metadata is missing, which is written last")
        return Verdict.settling(f"{len(ranks)} ranks saved separately; the total number of ranks is unknown")
    if metadata.size_bytes <= 4 * PICKLE_BYTES_AT_MOST:
        with (folder / ".metadata").open("rb") as file:
            wanted = extents(file)
        for name, length in sorted(wanted.items()):
            size = files[name].size_bytes if name in files else 0
            if size < length:
                return Verdict.partial(f"{name} has {size} bytes where .metadata says at least {length}")
    return check_order(
        metadata, Verdict.complete(f".metadata and {len(data)} data files are whole"), data.values()
    )
