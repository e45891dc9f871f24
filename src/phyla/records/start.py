"""Where members start: a checkpoint that exists before the study does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, final

from phyla.errors import ConfigurationError
from phyla.records.json import Json, JsonObject


@final
@dataclass(frozen=True, slots=True)
class StartFrom:
    """A checkpoint to start members from, with what is known about it.

    Args:
        path: directory or file; made absolute.
        step: age of its weights; None takes what a checkpoint of phyla says about itself, and 0 for others.
        params: hyperparameters to start with, flat or nested; those left out are chosen as for a fresh start.
        index: place within it, when it holds several models.
        digest: what the digest of its content must be; None accepts any.

    Raises:
        ConfigurationError: an argument makes no sense.
    """

    path: str | PathLike[str]
    step: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    index: int = 0
    digest: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | PathLike) or not str(self.path):
            raise ConfigurationError(f"StartFrom({self.path!r}): must be the path of a directory or file")
        for name, value in (("step", self.step), ("index", self.index)):
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            if not whole and not (name == "step" and value is None):
                raise ConfigurationError(f"StartFrom({name}={value!r}): must be an integer of at least 0")
        if not isinstance(self.params, Mapping):
            raise ConfigurationError(f"StartFrom(params={self.params!r}): must map names to values")
        object.__setattr__(self, "path", str(Path(self.path).expanduser().absolute()))
        object.__setattr__(self, "params", dict(self.params))

    @classmethod
    def of(cls, entry: object) -> "StartFrom":
        """Return an entry of `start_from`: itself, or that of a path.

        Raises:
            ConfigurationError: it is neither.
        """
        if isinstance(entry, cls):
            return entry
        if isinstance(entry, str | PathLike):
            return cls(entry)
        raise ConfigurationError(f"start_from: {entry!r} is neither a path nor a StartFrom(path, ...)")

    def to_json(self) -> JsonObject:
        """Return it as JSON."""
        params: dict[str, Json] = dict(self.params)
        return {
            "path": str(self.path),
            "step": self.step,
            "params": params,
            "index": self.index,
            "digest": self.digest,
        }
