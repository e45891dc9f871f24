"""Gin bindings: parsed anew for every eval task, in a process whose compile caches persist."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from phyla.errors import ConfigurationError


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bindings:
    """Where gin bindings come from, in the order in which they are applied: later ones win.

    Attributes:
        root: directory of the run, where its files of bindings are.
        worker: bindings of this worker.
    """

    root: Path | None = None
    worker: tuple[str, ...] = ()

    def digest(self, files: Sequence[str]) -> str:
        """Return a digest of what the run's files hold; empty without any."""
        if not files:
            return ""
        digest = hashlib.sha256()
        for path in self._paths(files):
            content = path.read_bytes() if path.is_file() else b""
            digest.update(b"%d:" % len(content) + content)
        return digest.hexdigest()[:16]

    def _paths(self, files: Sequence[str]) -> list[Path]:
        return [(self.root or Path()) / name for name in files]

    def apply(self, files: Sequence[str], task: Sequence[str]) -> None:
        """Clear gin's configuration and parse the run's files, the worker's bindings, then the eval task's.

        Bindings of functions that are not imported are passed over.

        Raises:
            ConfigurationError: gin is not installed, a file is missing, or a binding cannot be parsed.
        """
        if not (files or task or self.worker):
            return
        try:
            import gin
        except ModuleNotFoundError:
            raise ConfigurationError(
                "this suite has gin bindings, and gin-config is not installed: pip install 'phyla[gin]'"
            ) from None
        paths = [str(path) for path in self._paths(files)]
        missing = [path for path in paths if not Path(path).is_file()]
        if missing:
            raise ConfigurationError(f"files of gin bindings are missing: {', '.join(missing)}")
        gin.clear_config()
        try:
            gin.parse_config_files_and_bindings(paths, [*self.worker, *task], skip_unknown=True)
        except (SyntaxError, ValueError, TypeError, OSError) as error:
            raise ConfigurationError(f"gin bindings cannot be parsed: {error}") from error
