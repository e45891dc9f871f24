"""Runs the command of a study for one trial, reads its reports, and checks how it ended."""

import errno
import glob
import logging
import shlex
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import settings
from phyla.errors import (
    CheckpointError,
    CheckpointsAbsent,
    CheckpointStorageFailed,
    CommandFailed,
    ConfigurationError,
    GivenBack,
    MetricsUnreadable,
    NoCheckpoint,
    NoFitness,
    UsageError,
)
from phyla.records import Phase
from phyla.space import Params
from phyla.worker.commands import placeholders
from phyla.worker.commands.outputs import LAST_CHARACTERS, OUTPUT_IN, last_lines, places, tail
from phyla.worker.commands.readings import EventFileReading, Reading, Readings
from phyla.worker.containment import processes
from phyla.worker.gangs import engine
from phyla.worker.training.trial import Trial, session_of

if TYPE_CHECKING:
    from phyla.worker.commands.command import Command

GIVE_BACK = 75
"""Exit status of a command that asks to be run again later, EX_TEMPFAIL of sysexits.h."""
LOG = logging.getLogger("phyla")
POLL_S = 0.1
"""Interval of reading metrics and checking for requests to stop; the end of a command is noticed at once."""


@final
@dataclass
class Run:
    """A command on one trial."""

    command: "Command"
    trial: Trial
    _: KW_ONLY
    reached: int = -1
    asked: bool = False
    late: bool = False
    waiting: bool = False
    bad: MetricsUnreadable | None = None

    def __post_init__(self) -> None:
        command, trial = self.command, self.trial
        self.session = session = session_of(trial)
        self.folder = trial.working_dir
        self.output, self.errors = (self.folder / f"{name}-{trial.token}.txt" for name in ("stdout", "stderr"))
        self.waits = self.folder / f"waits-{trial.token}.txt"
        self.metrics, params_file = self.folder / f"metrics-{trial.token}.jsonl", self.folder / "params.json"
        self.params: dict[str, Any] = dict(session.record.params)
        nested = placeholders.dump(Params.of_flat(self.params).nested())
        self.metrics.touch()
        params_file.write_text(nested)
        self._note_use()
        source = session.progress or session.parent
        start = session.progress.step if session.progress else trial.start_step
        facts = {
            "source": None if source is None else source.path.absolute(),
            "save_to": trial.checkpoint_dir.absolute(),
            "metrics": self.metrics.absolute(),
            "params_file": params_file.absolute(),
            "working_dir": self.folder.absolute(),
            "seed": trial.seed,
            "member": trial.member,
            "trial": trial.id,
            "start_step": start,
            "end_step": trial.end_step,
            "steps": trial.end_step - start,
            "gpus": ",".join(settings.visible_gpus() or ()) or None,
        }
        if command.nodes > 1:
            facts["gpus"] = None  # those of the worker are of no use to a command on other machines
        known = {name: None if value is None else str(value) for name, value in facts.items()}
        hyperparameters = {name: placeholders.text_of(value) for name, value in self.params.items()}
        machines = {} if command.resources is None else engine.values_here(command.resources)
        self.values: dict[str, str | None] = {
            **dict.fromkeys(command.names),
            **hyperparameters,
            **known,
            **machines,
        }
        self.environment = {f"PHYLA_{name.upper()}": value for name, value in known.items()}
        if machines and command.nodes == 1:
            self.environment |= {name.upper(): machines[name] for name in ("master_addr", "master_port")}
        self.environment["PHYLA_PARAMS"] = nested

    def _note_use(self) -> None:
        """Record the inputs that the command uses, by its placeholders."""
        used = self.command.names
        named = used & self.params.keys()
        for name in named if named and not used & {"params_file", placeholders.HYDRA} else self.params:
            _ = self.trial.params[name]
        if "source" in used or "save_to" not in used:
            _ = self.trial.source

    def run(self) -> None:
        """Run it; return when it has trained to the end, or was asked to stop.

        Raises:
            CommandFailed: it cannot start, takes too long, is killed by a signal, or exits with a status other
            than 0 and 75. GivenBack: its exit status is 75. MetricsUnreadable: a line of its metrics is invalid.
            NoCheckpoint: it left nothing in `{save_to}`. ConfigurationError: a value is absent, or nothing in the
            source matches.
        """
        command = self.command
        try:
            arguments = placeholders.fill_arguments(command.arguments, self.values, self.params)
            own = {name: self._fill_variable(value) for name, value in command.env.items()}
            cwd = placeholders.fill(str(command.cwd), self.values)
            globs = {
                name: (placeholders.fill(pattern, self.values, glob.escape), tag)
                for name, (pattern, tag) in command.tensorboard.items()
            }
        except placeholders.Absent as absent:
            raise ConfigurationError(
                f"{absent} has no value in this trial; put its argument into a list of its own, such as "
                f"['--option', '{absent}'], which is left out then"
            ) from None
        events = EventFileReading(self.folder, globs)
        outputs, needed = (self.output, self.errors), self.session.metrics
        self.readings = Readings(self.metrics, outputs, command.metrics, events, needed)
        self.session.watch.enter(Phase.TRAINING)
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            try:
                environment = {**self.environment, **own}
                words = arguments
                if command.nodes > 1:
                    gang = engine.engine_for(command.resources or {})
                    words = gang.wrap(arguments, command.nodes, self.waits)
                    environment |= dict.fromkeys(gang.removed)
                with processes.Process(
                    words, output=output, errors=errors, environment=environment, cwd=cwd
                ) as process:
                    status = self._follow(process)
            except processes.CannotStart as error:
                hint = ""
                if error.errno == errno.ENOEXEC:
                    hint = "; its first line should name an interpreter, such as #!/bin/sh"
                elif error.errno == errno.ENOENT and Path(cwd, arguments[0]).is_file():
                    hint = "; its first line names an interpreter that is not there, or ends in \\r\\n"
                raise CommandFailed("it cannot be started", f"{error}{hint}") from None
        self.session.watch.enter(Phase.SAVING)
        self._conclude(arguments, status)

    def _fill_variable(self, text: str) -> str | None:
        """Return the value of an environment variable; None, for no variable, if one of its values is absent."""
        try:
            return placeholders.fill(text, self.values)
        except placeholders.Absent:
            return None

    def _follow(self, process: processes.Process) -> int:
        """Read the reports of a command until it has ended, and ask it to stop if it should; return its status."""
        command, clock = self.command, settings.awake_clock()
        ends_at: float | None = None
        while (status := process.wait(POLL_S)) is None:
            self._read()
            if command.nodes > 1:
                self._tell_wait()
            now = clock()
            self.late = self.late or (command.timeout_s is not None and now >= command.timeout_s)
            if ends_at is None and (self.late or self.bad is not None or self.trial.should_stop):
                self.asked, ends_at = True, now + command.grace_s
                process.terminate()
            elif ends_at is not None and now >= ends_at:
                process.kill()
        # A command that died may have left half a line.
        self._read(last=status == 0)
        return status

    def _tell_wait(self) -> None:
        """Log when a trial on several machines begins to wait for them, and when it no longer waits."""
        waits = self.waits.is_file()
        if waits != self.waiting:
            self.waiting = waits
            why = self.waits.read_text().strip() if waits else "waits no longer"
            LOG.warning("trial %s: %s", self.trial.id, why)

    def _read(self, *, last: bool = False) -> None:
        """Take new readings; an unreadable line does not block the lines after it."""
        while True:
            try:
                for reading in self.readings.read(last=last):
                    self._take(reading)
                return
            except MetricsUnreadable as error:
                self.bad = self.bad or error

    def _take(self, reading: Reading) -> None:
        try:
            if reading.metrics:
                self.trial.report(reading.metrics, step=reading.step)
            if reading.saved:
                self._save(reading)
        except (UsageError, NoCheckpoint) as error:
            raise MetricsUnreadable(f"{reading.where}: {error}") from error
        self.reached = max(self.reached, self.trial.end_step if reading.step is None else reading.step)

    def _save(self, reading: Reading) -> None:
        session, step = self.session, reading.step
        assert step is not None
        session.record.check_progress(step)
        if step == self.trial.end_step or session.measuring or session.stop_reason is not None:
            # Files that are complete at the end are the result.
            return
        if not session.has_saved():
            raise NoCheckpoint("{save_to} is empty; save into that directory first")
        try:
            self.trial.save_progress(step)
        except (CheckpointStorageFailed, CheckpointsAbsent):
            raise
        except CheckpointError as error:
            raise MetricsUnreadable(
                f"{reading.where}: {error}. After this line, write nothing into {{save_to}} until it is empty"
            ) from error

    def _conclude(self, arguments: Sequence[str], status: int) -> None:
        trial, session = self.trial, self.session
        if self.bad is not None and (self.asked or status == 0):
            raise self.bad
        if self.late:
            raise self._make_error(f"time-out after {self.command.timeout_s:g} s", arguments)
        if self.asked:
            if status == 0 and self.reached >= trial.end_step and session.has_saved():
                session.reach(trial.end_step)
            return
        if status == GIVE_BACK:
            raise GivenBack(f"it asks to be rerun later (exit status {GIVE_BACK}): {self._last_line()}")
        if status != 0:
            raise self._make_error(processes.describe_status(status), arguments)
        if not session.has_saved():
            raise NoCheckpoint(
                "the command ended with exit status 0, and left nothing in {save_to}, where it has to save: "
                f"{self._last_line()}"
            )
        if session.unreported:
            name = session.unreported[0]
            do = f'Write a line such as {{"{name}": 0.3}} into {{metrics}}'
            if pattern := self.command.metrics.get(name):
                where = places((self.output, self.errors))
                do = f"In [metrics] the pattern of {name!r} matched nothing in {where}: {pattern}"
            elif name in self.command.tensorboard:
                do = f"In [tensorboard], {self.readings.events.explain_missing(name)}"
            raise NoFitness(session.missing("the command ended without reporting", do=do))
        session.reach(trial.end_step)

    def _make_error(self, how: str, arguments: Sequence[str]) -> CommandFailed:
        tails = [f"the end of {file}:\n{tail(file) or '(nothing)'}" for file in (self.output, self.errors)]
        text = "\n".join([self._last_line(), shlex.join(arguments), *tails])
        return CommandFailed(how, text)

    def _last_line(self) -> str:
        """Return the last line of output, preferably of standard error, and where the full output is."""
        files = self.errors, self.output
        lines = last_lines(files)
        return (
            f"{lines[-1].strip()[:LAST_CHARACTERS]}{OUTPUT_IN}{places(files)}" if lines else "it wrote no output"
        )
