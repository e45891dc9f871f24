"""Background tasks of a watched run: trackers that follow it, and a command for each regression.

TensorBoard's files are rewritten as a whole, since it drops points that come late. The command is a list of
arguments, never a shell's line. It gets the facts as JSON on standard input, and as `PHYLA_RUN`, `PHYLA_SUITE`,
`PHYLA_TASK`, `PHYLA_CHECKPOINT`, `PHYLA_STEP` and `PHYLA_MESSAGE`.
"""

import json
import logging
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import settings
from phyla.errors import ConfigurationError
from phyla.integrations.tensorboard import ours
from phyla.integrations.trackers.tensorboard import TensorBoard
from phyla.records import StudyRecord, strict
from phyla.study.places import Places
from phyla.study.results.evaluations import Evaluations
from phyla.study.results.watched_runs import RunChanges
from phyla.study.running.background import Beside, Remembered
from phyla.study.running.trackers import Destination, destinations_of, follow
from phyla.study.watching.regressions import RegressionFeed, keys

if TYPE_CHECKING:
    from phyla.integrations.trackers import Tracker
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


@final
@dataclass(frozen=True, slots=True)
class Outlets:
    """Where the results of watched runs go meanwhile; `alert` is the command on a regression, as words."""

    tensorboard: str | Path | None
    trackers: "Sequence[str | Tracker]"
    alert: Sequence[str]

    def check(self, names: Sequence[str], places: Places) -> dict[str, list[Destination]]:
        """Return the trackers of each run; raise if something cannot be written now."""
        destinations = destinations_of(self.trackers, names, places)
        for name in names:
            for folder in self._boards(destinations[name], places):
                ours(name, folder)
            for destination in destinations[name]:
                if destination.existing and isinstance(destination.tracker, TensorBoard):
                    raise ConfigurationError(
                        f"tensorboard=...#{destination.existing}: TensorBoard has no runs to continue; name a "
                        "directory, as in tensorboard=DIR"
                    )
        return destinations

    def _boards(self, destinations: Sequence[Destination], places: Places) -> list[Path]:
        trackers = [place.tracker for place in destinations if isinstance(place.tracker, TensorBoard)]
        named = [] if self.tensorboard is None else [Path(self.tensorboard)]
        return named + [Path(tracker.place or places.home / TensorBoard.name) for tracker in trackers]

    def start(
        self,
        stack: ExitStack,
        store: "Store",
        run: StudyRecord,
        places: Places,
        destinations: Sequence[Destination],
    ) -> None:
        """Start the background tasks of a run, until the stack is closed."""
        for folder in self._boards(destinations, places):
            stack.enter_context(_board(store, run, places, folder))
        others = [place for place in destinations if not isinstance(place.tracker, TensorBoard)]
        stack.enter_context(follow(others, store, run, places))
        if self.alert:
            stack.enter_context(_alerts(store, run, places, self.alert))


def _board(store: "Store", run: StudyRecord, places: Places, folder: Path) -> Beside:
    """Write event files: points may arrive late, so any new point causes all to be rewritten."""
    evaluations, changes, written = Evaluations(store, run, places), RunChanges(store, run), False

    def write() -> None:
        nonlocal written
        if changes.new() or not written:
            written = False
            evaluations.write_tensorboard(folder)
            written = True

    how = ("--format", "tensorboard", "--output", str(folder))
    instead = f"write them with: {places.command('export', run.name, *how)}"
    return Beside("writing TensorBoard's files", write, instead, every_s=BOARD_EVERY_S)


def _alerts(store: "Store", run: StudyRecord, places: Places, alert: Sequence[str]) -> Beside:
    reported = Remembered(places.folder("tracking", run.name) / f"alerts-{run.id:016x}.json")
    feed = RegressionFeed(Evaluations(store, run, places))
    if not isinstance(reported.read(), list):
        # Regressions from before the alert was requested are not reported.
        reported.write(sorted(key for event in feed.events for key in keys(event)))
    instead = f"see the regressions with: {places.command('evaluations', run.name)}"
    return Beside("looking for regressions", partial(_look, feed, run, reported, alert), instead)


def _look(feed: RegressionFeed, run: StudyRecord, reported: Remembered, command: Sequence[str]) -> None:
    """Run the command once for each regression that is new."""
    feed.new()
    known = {tuple(key) for key in reported.read() or ()}
    for event in feed.events:
        news, known = not known & keys(event), known | keys(event)
        # Before the command: a run that dies meanwhile does not start it again.
        reported.write(sorted(known))
        if news:
            _tell(run.name, event, command)


def _tell(run: str, event: "EvalEvent", command: Sequence[str]) -> None:
    facts: dict[str, Any] = {"run": run, "suite": event.suite, **event.data}
    facts |= {"checkpoint": facts.pop("name", ""), "message": event.message}
    named = {f"PHYLA_{name.upper()}": str(facts.get(name, "")) for name in FACTS}
    task = f"the command on a regression of {run} ({shlex.join(command)})"
    try:
        done = subprocess.run(
            command,
            input=json.dumps(strict(facts)).encode(),
            env=settings.child_environment(named),
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        LOG.warning("warning: %s took longer than %g s and was ended", task, TIMEOUT_S)
    except OSError as error:
        LOG.warning("warning: %s cannot be started: %s", task, error.strerror or error)
    else:
        if done.returncode:
            LOG.warning("warning: %s ended with status %d", task, done.returncode)
