"""The key under which results of evaluating a foreign checkpoint are kept."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from phyla.checkpoints.digests import digests
from phyla.checkpoints.tree import Entry
from phyla.errors import CheckpointChanged, CheckpointGone
from phyla.records import shown
from phyla.watcher.found import Found
from phyla.watcher.listing import File, Listing, listing


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What was evaluated.

    Attributes:
        kind: what the value is made of.
        value: in hexadecimal: the digest of a single file, else the SHA-256 of the list of its files.
        weak: another content could have the same value, and the same content another one.
    """

    kind: Literal["listing", "content"]
    value: str
    weak: bool


def identity(root: Path, found: Found, *, content: bool = False) -> Identity:
    """Return the identity of a checkpoint as it was found.

    A listing is the names relative to the root, sizes and times of its files: it costs nothing, and is weak. The
    content is read in full; names count relative to the checkpoint, so a copy or a renamed
    checkpoint has the same identity. It is the same for a single file, whatever its name.

    Args:
        root: the directory that was scanned.
        found: the checkpoint.
        content: whether to read everything.

    Raises:
        CheckpointGone: it, or a file of it, was deleted meanwhile.
        CheckpointChanged: it was written to meanwhile.
        OSError: a file cannot be read.
    """
    listed = look_again(root, found)
    if not content:
        lines = (f"{file.relative}\0{file.size_bytes}\0{file.modified_ns}\n" for file in listed.files)
        return Identity(kind="listing", value=_sha256("".join(lines)), weak=True)
    try:
        found_digests = _digest(root, listed.files)
    except FileNotFoundError as error:
        raise CheckpointGone(f"checkpoint {shown(found.name)} was deleted while it was read: {error}") from error
    look_again(root, found)
    if found.paths == tuple(file.relative for file in listed.files[:1]) and len(listed.files) == 1:
        return Identity(kind="content", value=found_digests[0], weak=False)
    start = f"{found.paths[0]}/" if len(found.paths) == 1 else ""
    lines = (
        f"{file.relative.removeprefix(start)}\0{file.size_bytes}\0{digest}\n"
        for file, digest in zip(listed.files, found_digests, strict=True)
    )
    return Identity(kind="content", value=_sha256("".join(lines)), weak=False)


def look_again(root: Path, found: Found) -> Listing:
    """Return the files of a checkpoint, which must still be what they were when it was found.

    Raises:
        CheckpointGone: nothing of it is left, or only a part of what is listed can still be seen.
        CheckpointChanged: something was added or written to.
    """
    try:
        listed = listing(root, found.paths)
    except FileNotFoundError as error:
        raise CheckpointGone(
            f"checkpoint {shown(found.name)} in {root} was deleted after it was found: {error}"
        ) from error
    if listed.fingerprint != found.fingerprint:
        if not listed.files:
            raise CheckpointGone(
                f"checkpoint {shown(found.name)} in {root} was deleted after it was found: it is empty now"
            )
        raise changed(root, found, listed)
    return listed


def changed(root: Path, found: Found, listed: Listing) -> CheckpointChanged:
    """Return the error for files that are not what was found."""
    return CheckpointChanged(
        f"checkpoint {shown(found.name)} in {root} was written to after it was found: it had {found.size_bytes} "
        f"bytes, last changed at {found.modified_at:.3f}, now {listed.size_bytes} at "
        f"{listed.modified_ns / 1e9:.3f}; scan again, and take what is found then"
    )


def _digest(root: Path, files: Sequence[File]) -> list[str]:
    # The one place that chooses how content is digested; for now as in manifests of our own checkpoints.
    return digests(
        [
            Entry(file.relative, root / file.relative, file.size_bytes, file.modified_ns, is_link=False)
            for file in files
        ]
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
