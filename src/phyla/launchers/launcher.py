"""What a launcher is, and which one is used."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from phyla import plugins, settings
from phyla.api import Client
from phyla.errors import ConfigurationError
from phyla.launchers.spec import WorkerSpec
from phyla.worker import Launch

GROUP = "phyla.launchers"


class Launcher(Protocol):
    """Starts worker processes, wherever that is, and keeps them going until their work ends.

    It is named under the entry point group `phyla.launchers`. A worker is `python -m phyla.launchers.process`
    with its spec on standard input.

    Args:
        client: speaks with the studies.
        specs: one per worker.
        launch: names the workers; they inherit its lock.
        environments: extra environment variables, one mapping per worker.
        logs: directory for what the workers print.
        renew_s: how often leases are renewed.
        stall_timeout_s: seconds without a step, a report or a finished trial before a worker is ended, counted
            from its first request on; None never ends one.
        on_tick: called many times a second, for live displays.
        on_interrupt: called for each interrupt inside the signal handler, so it must be brief.
    """

    def __init__(
        self,
        client: Client,
        specs: Sequence[WorkerSpec],
        *,
        launch: Launch,
        environments: Sequence[Mapping[str, str]],
        logs: Path,
        renew_s: float,
        stall_timeout_s: float | None,
        on_tick: Callable[[], None] = ...,
        on_interrupt: Callable[[], None] = ...,
    ) -> None: ...

    def run(self) -> bool:
        """Work until the study ends; return False when a person interrupted it.

        Raises:
            StudyFailed: workers cannot start, or die again and again.
            CheckpointsAbsent: the directory of the checkpoints is gone.
            StudyChanged: settings or suites were changed, and workers cannot take them over.
            StoreError: the database failed.
        """
        ...


def get_launcher() -> type[Launcher]:
    """Return the launcher that `PHYLA_LAUNCHER` names, by default `local`.

    Raises:
        ConfigurationError: no launcher of that name is installed.
    """
    name = settings.launcher()
    found = plugins.of_group(GROUP)
    if name not in found:
        raise ConfigurationError(
            f"PHYLA_LAUNCHER={name!r}: no such launcher is installed; choose one of: {', '.join(sorted(found))}"
        )
    kind: type[Launcher] = found[name].load()
    return kind
