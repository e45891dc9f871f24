"""Several files of weights that one index holds together."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from phyla.watcher.contents import INDEX_ENDINGS, check_index
from phyla.watcher.listing import Listing, Root
from phyla.watcher.survey import Candidate
from phyla.watcher.verdict import Verdict

_SHARD = re.compile(r".+-\d{5}-of-\d{5}\.[a-z]+")


def is_shard(name: str) -> bool:
    """Return whether a file is one of several by its name, as `model-00001-of-00002.safetensors`."""
    return _SHARD.fullmatch(name) is not None


def sharded(root: Root, ending: str) -> tuple[list[Candidate], frozenset[str]]:
    """Return a candidate for every index directly in a directory, and the files that belong to them."""
    found = []
    taken: set[str] = set()
    for index in (name for name in root.files if name.endswith(ending)):
        shards = sorted(_named_in(root.path / index) & root.files.keys())
        taken.update(shards)
        found.append(Candidate(name=index, paths=(index, *shards), judge=_by_index(index)))
    return found, frozenset(taken)


def index_of(names: "set[str] | frozenset[str]") -> str | None:
    """Return the index among names of files, safetensors first."""
    return next((name for ending in INDEX_ENDINGS for name in sorted(names) if name.endswith(ending)), None)


def _named_in(index: Path) -> frozenset[str]:
    try:
        mapping = json.loads(index.read_bytes())["weight_map"]
        return frozenset(shard for shard in mapping.values() if isinstance(shard, str))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        # The same content is judged later, in words.
        return frozenset()


def _by_index(index: str) -> Callable[[Path, Listing], Verdict]:
    def judge(root: Path, listed: Listing) -> Verdict:
        return check_index(root, index, {file.relative: file for file in listed.files})

    return judge
