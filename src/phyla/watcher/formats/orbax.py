"""Step directories of Orbax, as JAX programs write them."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, final

from phyla.watcher.format import Candidate, Check, CheckpointFormat, Verdict, check_order
from phyla.watcher.listing import File, Listing, Place, Root

COMMIT = "commit_success.txt"
METADATA = "_CHECKPOINT_METADATA"
_TREE = "_METADATA"
_MANIFEST = "manifest.ocdbt"
_MARKS = frozenset({COMMIT, METADATA, _TREE, _MANIFEST})
_ITEM_ENDINGS = (f"/{_TREE}", f"/{_MANIFEST}")
_STEP = re.compile(r"(.*\D)?\d+")


@final
@dataclass(frozen=True, kw_only=True)
class Orbax(CheckpointFormat):
    """Directories of Orbax, directly in the root, named after their step.

    On file systems with an atomic rename Orbax writes into `STEP.orbax-checkpoint-tmp` (before 0.11 with a
    number behind it), which is ignored. Elsewhere, as on object stores, it writes to the final name, and a file
    `commit_success.txt` is written last. `_CHECKPOINT_METADATA` gets the time of the commit before
    either (orbax-checkpoint 0.12, `path/atomicity.py`). So a directory is ready when it has one of
    the two signs and its arrays have their manifests; one with neither, of an old version, when it is quiet.
    A directory with neither sign that changed after another one got its sign is what a deletion left, and never
    ready.
    """

    name: ClassVar[str] = "orbax"
    awaits: ClassVar[str] = "directories of steps that Orbax has committed"

    def candidates(self, root: Root) -> Iterable[Candidate]:
        check = _checks(root)
        for folder in root.folders:
            if _STEP.fullmatch(folder) or _is_orbax(root, folder):
                yield Candidate.entry(folder, check)

    @classmethod
    def folders(cls, root: Root) -> Mapping[str, Check]:
        return dict.fromkeys([folder for folder in root.folders if _is_orbax(root, folder)], _checks(root))


def _is_orbax(root: Root, folder: str) -> bool:
    """Return whether a directory holds files that only Orbax writes, or an item of a step that does.

    A directory of steps is none of these: there the directories in it have metadata of their own.
    """
    inside = frozenset(root.inside(folder))
    if not _MARKS.isdisjoint(inside):
        return True
    items = {path.partition("/")[0] for path in inside if path.count("/") == 1 and path.endswith(_ITEM_ENDINGS)}
    return any(f"{item}/{METADATA}" not in inside for item in items)


def _checks(root: Root) -> Check:
    """Return a check that a step directory was committed and that no part of it was deleted since.

    The writer of the other directories is its writer too: if it leaves a sign there, a directory without one
    is no checkpoint.
    """
    signed = [
        file.modified_ns
        for listed in map(root.listing, [(folder,) for folder in root.folders])
        if listed is not None
        for file in listed.files
        if file.relative.count("/") == 1 and file.name in (COMMIT, METADATA)
    ]
    return partial(_check, signed_ns=min(signed, default=None))


def _check(root: Place, listed: Listing, *, signed_ns: int | None) -> Verdict:
    folder, files = listed.folder()
    temporary = next((path for path in files if ".orbax-checkpoint-tmp" in path), None)
    if temporary is not None:
        return Verdict.partial(f"{temporary} is not renamed yet")
    committed_at: object = None
    if METADATA in files:
        try:
            committed_at = json.loads((root / folder / METADATA).read_bytes()).get("commit_timestamp_nsecs")
        except (ValueError, AttributeError) as error:
            return Verdict.partial(f"{METADATA} is cut off or damaged: {error}")
        if committed_at is None and COMMIT not in files:
            return Verdict.partial(f"{METADATA} says that it is not committed, and there is no {COMMIT}")
    if not isinstance(root, Path) and files.keys() <= {COMMIT, METADATA}:
        return Verdict.partial("there is nothing in it but its marks")
    incomplete = _incomplete_item(root / folder, files)
    if incomplete is not None:
        return Verdict.partial(incomplete)
    if COMMIT in files:
        return check_order(files[COMMIT], Verdict.complete(f"{COMMIT} is there"), folders_ns=listed.folders_ns)
    if committed_at is not None:
        committed = Verdict.complete(f"{METADATA} says it is committed")
        return check_order(files[METADATA], committed, folders_ns=listed.folders_ns)
    if signed_ns is not None and listed.folders_ns >= signed_ns:
        return Verdict.partial(f"there is neither {COMMIT} nor {METADATA}, which its writer leaves in others")
    return Verdict.settling(f"there is neither {COMMIT} nor {METADATA}")


def _incomplete_item(folder: Place, files: Mapping[str, File]) -> str | None:
    for path in (path for path in files if path.rpartition("/")[2] == _TREE):
        item = path.removesuffix(_TREE)
        try:
            uses_ocdbt = json.loads((folder / path).read_bytes()).get("use_ocdbt", False)
        except (ValueError, AttributeError) as error:
            return f"{path} is cut off or damaged: {error}"
        if uses_ocdbt and f"{item}{_MANIFEST}" not in files:
            return f"{path} is there, {item}{_MANIFEST} is not"
        data = f"{item}d/"
        if uses_ocdbt and not any(name.startswith(data) or f"/{data}" in f"/{name}" for name in files):
            return f"{item}{_MANIFEST} is there, the data in {data} is not"
    return None
