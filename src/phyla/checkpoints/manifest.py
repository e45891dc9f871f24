"""What a committed checkpoint consists of: every file with its size and digest."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Self, final

from blake3 import blake3

from phyla.errors import CheckpointCorrupt

MANIFEST_NAME = ".phyla-manifest.json"
FORMAT = 1


@final
@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file, or one symbolic link, of a checkpoint.

    Attributes:
        path: relative to the checkpoint, with `/` between its parts.
        size_bytes: length of the content; of a link, the length of its target's name.
        digest: as `phyla.checkpoints.digests` defines it, in hexadecimal.
    """

    path: str
    size_bytes: int
    digest: str


@final
@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The files of a checkpoint at one step.

    Attributes:
        step: age of the weights.
        created_at: when it was committed, in seconds since the epoch (UTC).
        files: in the order of their paths.
        format: version of the manifest and of the definition of digests.
    """

    step: int
    created_at: float
    files: tuple[ManifestFile, ...]
    format: int = FORMAT

    @classmethod
    def of(cls, files: Iterable[ManifestFile], *, step: int, created_at: float) -> Self:
        """Return the manifest of these files, in any order."""
        return cls(step=step, created_at=created_at, files=tuple(sorted(files, key=lambda file: file.path)))

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size_bytes for file in self.files)

    @cached_property
    def digest(self) -> str:
        r"""Identity of the content: equal for equal files, whatever their step and time.

        BLAKE3 over `path NUL size NUL digest LF` for every file in the order of the paths; the
        path in UTF-8 (bytes that are no UTF-8 as they are), the size in decimal.
        """
        whole = blake3()
        for file in self.files:
            line = f"{file.path}\0{file.size_bytes}\0{file.digest}\n"
            whole.update(line.encode("utf-8", "surrogateescape"))
        return whole.hexdigest()

    def to_json(self) -> str:
        """Return the text of the manifest file: one line per file and a checksum of the text before it."""
        lines = ",\n".join(
            json.dumps({"path": file.path, "size_bytes": file.size_bytes, "digest": file.digest})
            for file in self.files
        )
        head = json.dumps(
            {"format": self.format, "step": self.step, "created_at": self.created_at, "digest": self.digest}
        )
        text = f'{head[:-1]}, "files": [\n{lines}\n]'
        return f'{text}, "checksum": "{blake3(text.encode()).hexdigest()}"}}\n'

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a manifest file back; only exactly what `to_json` writes is accepted.

        Raises:
            CheckpointCorrupt: the text is damaged, or of another format.
        """
        try:
            text = content.decode()
            raw = json.loads(text)
            written_format = raw["format"]
            manifest = cls(
                step=raw["step"],
                created_at=raw["created_at"],
                files=tuple(ManifestFile(**file) for file in raw["files"]),
            )
            intact = written_format != FORMAT or manifest.to_json() == text
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointCorrupt(f"{MANIFEST_NAME} cannot be read: {error}") from error
        if written_format != FORMAT:
            raise CheckpointCorrupt(
                f"{MANIFEST_NAME} has format {written_format!r}, this version of phyla reads {FORMAT}: "
                "open it with the version that wrote it"
            )
        if not intact:
            raise CheckpointCorrupt(f"{MANIFEST_NAME} differs from what was written: its checksum does not fit")
        return manifest
