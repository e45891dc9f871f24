"""The provenance of a study's results: recorded at each start, in a thread, so that the start does not wait."""

import logging
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyla import settings, study_modules
from phyla.controller import records_of
from phyla.formatting import mask_password
from phyla.records import JsonObject, RunStart, StudyState

if TYPE_CHECKING:
    from phyla.client import Client

LOG = logging.getLogger("phyla")
DIFF_BYTES = 1_000_000
GIT_S = 5.0
"""How long git may take: large repositories on slow disks."""
LAST_WAIT_S = 2 * GIT_S
PACKAGE = re.compile(r"(.+?)-([^-]+)\.(dist|egg)-info")


@contextmanager
def note_start(client: "Client", state: StudyState) -> Iterator[None]:
    """Record in the store how a study was started, in a thread; a complete study records nothing."""
    if state is StudyState.COMPLETED:
        yield
        return
    directory, at = Path.cwd(), settings.system_clock()

    def note() -> None:
        try:
            facts, diff = collect(client.record.config.get("code"), directory)
            start = RunStart(study=client.record.id, at=at, facts=facts, diff=diff)
            records_of(client.store, client.record.id).note_start(start)
        except Exception as error:  # noqa: BLE001  # best effort: it must never fail the study
            LOG.warning("warning: the start of this study could not be recorded: %r", error)

    thread = threading.Thread(target=note, name="phyla: provenance", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(LAST_WAIT_S)


def collect(code: Any, directory: Path) -> tuple[JsonObject, str | None]:
    """Return the facts about this process, and the diff of tracked files to the commit, if there is git."""
    file = Path(code.get("file") or "") if code else Path()
    source = file.parent if file.is_file() else directory
    commit, diff = _git(source)
    facts: dict[str, Any] = {
        "command": _without_secrets(study_modules.command_line()),
        "directory": str(directory),
        "code": code and code["now"],
        "commit": commit,
        "changed": None if commit is None else bool(diff),
        "python": platform.python_version(),
        "packages": packages(sys.path),
        "variables": {name: mask_password(value) for name, value in settings.recorded_environment().items()},
        "machine": {"name": platform.node(), "system": platform.platform(), "cpus": os.cpu_count()},
        "devices": _devices(),
    }
    text = None
    if diff:
        text = diff[:DIFF_BYTES].decode("utf-8", "replace")
        facts["diff_bytes"] = len(diff)
    return facts, text


def _git(directory: Path) -> tuple[str | None, bytes]:
    """Return the commit, and what differs from it in tracked files; nothing without git or a repository."""

    def output(*words: str) -> bytes:
        command = ["git", "-C", str(directory), *words]
        done = subprocess.run(command, capture_output=True, check=True, timeout=GIT_S, stdin=subprocess.DEVNULL)
        return done.stdout

    try:
        commit = output("rev-parse", "HEAD").decode().strip()
        # The user's own diff tools must not run, and the index must not be written.
        return commit, output(
            "--no-optional-locks", "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color"
        )
    except (OSError, subprocess.SubprocessError):
        return None, b""


def packages(path: Sequence[str]) -> dict[str, str]:
    """Return the installed packages and their versions, by the names of their folders; nothing is imported."""
    versions: dict[str, str] = {}
    # Python imports the first of several versions.
    for entry in reversed(path):
        for folder in Path(entry or ".").glob("*-info"):
            match = PACKAGE.fullmatch(folder.name)
            if match:
                versions[match[1].lower().replace("_", "-")] = match[2]
    return dict(sorted(versions.items()))


def _devices() -> list[str]:
    """Return the models of NVIDIA devices, read from the driver's files, without running a slow program."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [
        model for file in files for model in re.findall(r"^Model:\s*(.+?)\s*$", file.read_text(), re.MULTILINE)
    ]


def _without_secrets(words: Sequence[str]) -> list[str]:
    """Return a command line without passwords in URLs, and without the values of options for secrets."""
    masked: list[str] = []
    hide = False
    for word in words:
        option, equals, _ = word.partition("=")
        secret = bool(settings.SECRET.search(option))
        masked.append("***" if hide else f"{option}=***" if equals and secret else mask_password(word))
        hide = secret and not equals and word.startswith("-")
    return masked
