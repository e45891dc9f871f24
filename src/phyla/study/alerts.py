"""What goes on beside a watched run: event files that follow it, and a command for each regression.

The command is a list of arguments, never a shell's line. It gets the facts as JSON on standard input, and as
`PHYLA_RUN`, `PHYLA_SUITE`, `PHYLA_TASK`, `PHYLA_CHECKPOINT`, `PHYLA_STEP` and `PHYLA_MESSAGE`.
"""

import contextlib
import json
import logging
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyla import settings
from phyla.errors import ConfigurationError
from phyla.records import StudyRecord, strict
from phyla.study.beside import Beside
from phyla.study.evaluations import Evaluations
from phyla.study.places import Places
from phyla.study.standing import Changes

if TYPE_CHECKING:
    from phyla.records import EvalEvent
    from phyla.store import Store

LOG = logging.getLogger("phyla")
FACTS = ("run", "suite", "task", "checkpoint", "step", "message")
"""What the command also gets in its environment."""
TIMEOUT_S = 60.0
BOARD_EVERY_S = 5.0


def words_of(command: str | Sequence[str] | None) -> list[str]:
    """Return a command as a list of arguments; raise if there is no such program."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command or ())
    except ValueError as error:
        raise ConfigurationError(f"on_alert={command!r} cannot be split into arguments: {error}") from error
    if command is not None and (not words or shutil.which(words[0]) is None):
        raise ConfigurationError(
            f"on_alert={command!r}: there is no program {(words or [''])[0]!r} that can be run"
        )
    return words


def beside(
    stack: ExitStack,
    store: "Store",
    run: StudyRecord,
    places: Places,
    tensorboard: str | Path | None,
    alert: Sequence[str],
) -> None:
    """Begin what goes on beside a run, until the stack is closed."""
    if tensorboard is not None:
        found, changes, written = Evaluations(store, run, places), Changes(store, run), False

        def write() -> None:
            nonlocal written
            # Points may come late: all of them are written anew, where there are any new ones.
            if changes.new() or not written:
                written = False
                found.write_tensorboard(tensorboard)
                written = True

        instead = f"write them with: phyla export {run.name} --format tensorboard --output {tensorboard}"
        stack.enter_context(Beside("writing TensorBoard's files", write, instead, every_s=BOARD_EVERY_S))
    if alert:
        alerts = Alerts(store, run, places, alert)
        instead = f"see the regressions with: phyla evaluations {run.name}"
        stack.enter_context(Beside("looking for regressions", alerts.look, instead))


class Alerts:
    """Runs a command once for each regression of a run; a file remembers for which it ran."""

    def __init__(self, store: "Store", run: StudyRecord, places: Places, command: Sequence[str]) -> None:
        self._store = store
        self._run = run
        self._command = command
        self._file = places.tracking(run.name) / f"alerts-{run.id:016x}.json"
        if self._after() is None:
            # What was found before anybody wanted to know is no news.
            with store.reader(run.id) as reader:
                self._remember(max((event.id for event in reader.events()), default=0))

    def look(self) -> None:
        """Run the command for the regressions that are new."""
        with self._store.reader(self._run.id) as reader:
            events = reader.events(after=self._after() or 0)
        for event in events:
            if event.kind == "regression":
                self._start(event)
            else:
                self._remember(event.id)

    def _start(self, event: "EvalEvent") -> None:
        facts: dict[str, Any] = {"run": self._run.name, "suite": event.suite, **event.data}
        facts |= {"checkpoint": facts.pop("name", ""), "message": event.message}
        named = {f"PHYLA_{name.upper()}": str(facts.get(name, "")) for name in FACTS}
        told = json.dumps(strict(facts)).encode()
        try:
            with subprocess.Popen(
                self._command, stdin=subprocess.PIPE, env=settings.child_environment(named)
            ) as process:
                # Started once: a run that dies now does not start it again.
                self._remember(event.id)
                try:
                    process.communicate(told, timeout=TIMEOUT_S)
                except BaseException:
                    process.kill()
                    raise
                if process.returncode:
                    LOG.warning("warning: %s ended with status %d", self._words, process.returncode)
        except subprocess.TimeoutExpired:
            LOG.warning("warning: %s took longer than %g s and was ended", self._words, TIMEOUT_S)
        except OSError as error:
            self._remember(event.id)
            LOG.warning("warning: %s cannot be started: %s", self._words, error.strerror or error)

    @property
    def _words(self) -> str:
        return f"the command on a regression of {self._run.name} ({shlex.join(self._command)})"

    def _after(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int(self._file.read_text())
        return None

    def _remember(self, event: int) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".draft")
        draft.write_text(str(event))
        draft.replace(self._file)
