"""Trackers log a study's metrics, hyperparameters, lineage and evaluations, one run per member.

A watched run has one run, with the evaluations of its checkpoints.
"""

import hashlib
import importlib.util
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, final

from phyla import plugins
from phyla.errors import ConfigurationError
from phyla.validation import look_up

GROUP = "phyla.trackers"

Value: TypeAlias = float | str
"""A metric, or a hyperparameter that is not a number."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedStudy:
    """The study whose members have a run each, or the watched run, which has one: that of member 0."""

    name: str
    created_at: float
    config: Mapping[str, Any]  # its settings, as JSON
    home: Path  # the default place of trackers
    watched: bool = False
    existing: str | None = None  # id of the tracker's run to write to: that of the training which is watched

    def run_id(self, member: int | str) -> str:
        """Return the id of a member's run: the same in every process, a new one for a study made from scratch."""
        if self.existing is not None:
            return self.existing
        digest = hashlib.sha256(f"{self.name}:{self.created_at!r}".encode()).hexdigest()
        return f"{self.name[:40]}-{digest[:8]}" + ("" if self.watched else f"-m{member}")

    def run_name(self, member: int | str) -> str:
        """Return the name of a member's run."""
        return self.name if self.watched else f"{self.name}/member{member}"

    @property
    def axis(self) -> str:
        """The name of a row's progress where a tracker shows it as a metric."""
        return "checkpoint_step" if self.watched else "phyla/progress"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """New facts about a member at one point of its progress, or about a watched checkpoint at its step."""

    member: int
    progress: int  # its clock in steps, which never decreases within one metric, but for late evaluations
    at: float  # in seconds since the epoch
    values: Mapping[str, Value]
    note: str | None = None  # the decision in words, if the member copied another one


class Tracker(Protocol):
    """Writes the runs of a study's members to one place; called by one thread of one process.

    It is registered in the entry point group `phyla.trackers` and created with the PLACE of `--tracker
    NAME=PLACE`, or None. Errors of its methods are retried, and never harm the study.

    Attributes:
        name: the name it is registered under.
        place: where it writes; None for its default.

    Raises:
        ImportError: its library is missing; the message tells how to install it.
    """

    name: ClassVar[str]
    place: str | None

    def __init__(self, place: str | None = None) -> None: ...

    def environment(self, study: TrackedStudy) -> Mapping[str, str]:
        """Return the environment variables for training code; `{member}` in it stands for the member's index.

        It is called before anything is trained, writes nothing, and raises ConfigurationError where the tracker
        could not be used now, for example because its place cannot be written.
        """
        return {}

    def open(self, study: TrackedStudy) -> None:
        """Connect; an existing run continues."""
        ...

    def log(self, rows: Sequence[Row]) -> None:
        """Write rows, those of one member in order. On return they are durable, if the library supports that."""
        ...

    def close(self) -> None:
        """End all runs for now."""
        ...


def variables_of(tracker: Tracker, study: TrackedStudy) -> Mapping[str, str]:
    """Return the environment variables of a tracker; `ConfigurationError` where it gives something else."""
    given: object = tracker.environment(study)
    if not isinstance(given, Mapping) or not all(_is_variable(*item) for item in given.items()):
        raise ConfigurationError(
            f"environment() of the tracker {tracker.name} returned {given!r}; it must return texts by the names "
            "of environment variables, or {}"
        )
    return given


def _is_variable(name: object, text: object) -> bool:
    names = isinstance(name, str) and name != "" and not {"=", "\0"} & set(name)
    return names and isinstance(text, str) and "\0" not in text


def check_installed(tracker: str, *modules: str, extra: str) -> None:
    """Raise ImportError with the command to install it; imports nothing, which may take seconds."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ImportError(f'{tracker} needs {module}: pip install "phyla[{extra}]"')


def check_writable(folder: Path, instead: str) -> None:
    """Raise ConfigurationError if the directory, or a file in it, cannot be created; leaves no files."""
    for existing in (folder, *folder.parents):
        try:
            with tempfile.TemporaryFile(dir=existing):
                return
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or os.path.lexists(existing):
                why = f"{existing}: {error.strerror}; make it a writable directory, or {instead}"
                raise ConfigurationError(f"cannot write to {folder}: {why}") from error


def split_run(text: str) -> tuple[str, str | None]:
    """Split `NAME=PLACE#RUN` into what `make_tracker` takes, and the id of an existing run, if any."""
    named = re.fullmatch(r"(.*)#([\w.-]+)", text, re.DOTALL)
    return (text, None) if named is None else (named[1], named[2])


def make_tracker(tracker: str | Tracker) -> Tracker:
    """Return a tracker from `NAME` or `NAME=PLACE`, or an existing object.

    Raises:
        ConfigurationError: there is no tracker of that name, its library is missing, or the object is no tracker.
    """
    if not isinstance(tracker, str):
        needed = ("name", "place", "environment", "open", "log", "close")
        missing = [part for part in needed if not hasattr(tracker, part)]
        if isinstance(tracker, type) or missing:
            of_class = isinstance(tracker, type)
            why = "is a class, not an object of it" if of_class else f"has no {' and no '.join(missing)}"
            raise ConfigurationError(
                f"trackers=[{tracker!r}]: this {why}; give a name, such as 'tensorboard', or an object of a class "
                "that derives from phyla.integrations.trackers.Tracker"
            )
        return tracker
    name, _, place = tracker.partition("=")
    kind: type[Tracker] = plugins.load(look_up("tracker", name, plugins.of_group(GROUP)))
    try:
        return kind(place or None)
    except ImportError as error:
        raise ConfigurationError(str(error)) from error
