"""Where a study keeps its things."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import final

from phyla import settings
from phyla.store.sqlite_url import sqlite_url

NAME = re.compile(r"\w[\w.-]{0,99}")
"""What studies of every kind may be called."""
NOT_FOUND = "(not found on this machine)"


def shown(path: Path) -> str:
    """Return a path as text that says so if there is nothing."""
    return str(path) if path.exists() else f"{path} {NOT_FOUND}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where studies live.

    Attributes:
        home: directory for everything.
        storage: URL of the store.
        checkpoint_root: directory of all studies' checkpoints.
    """

    home: Path
    storage: str
    checkpoint_root: Path

    @staticmethod
    def of(
        home: str | Path | None = None, storage: str | None = None, checkpoints: str | Path | None = None
    ) -> "Places":
        """Fill in what was not given: the environment's, else everything under `.phyla`."""
        root = Path(home) if home is not None else settings.home()
        root = root.expanduser().absolute()
        url = storage or (None if home is not None else settings.storage()) or sqlite_url(root / "phyla.db")
        return Places(
            home=root,
            storage=url,
            checkpoint_root=Path(checkpoints).expanduser().absolute() if checkpoints else root / "checkpoints",
        )

    def checkpoints(self, study: str) -> Path:
        """Return the directory of one study's checkpoints."""
        return self.checkpoint_root / study

    def work(self, study: str) -> Path:
        """Return the directory of one study's working directories."""
        return self.home / "work" / study

    def outputs(self, run: str) -> Path:
        """Return the directory of what the evaluations of one study or run save."""
        return self.home / "outputs" / run

    def snapshots(self, run: str) -> Path:
        """Return the directory of snapshots of a watched directory's checkpoints."""
        return self.home / "snapshots" / run

    def best(self, run: str) -> Path:
        """Return the directory of links to the best checkpoints of one watched run."""
        return self.home / "best" / run

    @property
    def locks(self) -> Path | None:
        """Return the directory of the locks of launches; None where no other process can see the store."""
        return None if self.storage == "memory://" else self.home / "locks"

    def watch_lock(self, run: str) -> Path:
        """Return the file that the process that watches a run holds a lock on."""
        return self.home / "watch" / f"{run}.lock"

    def logs(self, study: str) -> Path:
        """Return the directory of one study's worker logs."""
        return self.home / "logs" / study
