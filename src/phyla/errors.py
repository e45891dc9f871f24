"""Every error that phyla raises, in one tree.

A message says what happened, with the values, and what to do about it.
"""

import errno
import os
import re
import signal
import sys
import sysconfig
import traceback
from contextlib import suppress
from pathlib import Path


class PhylaError(Exception):
    """Root of every error that phyla raises on purpose."""


class UsageError(PhylaError):
    """The caller can fix it by changing the input."""


class SpaceError(UsageError):
    """A search space, or a value for one, is invalid."""


class ConfigurationError(UsageError):
    """A study, a strategy or an option is invalid."""


class WrongArgument(ConfigurationError, TypeError):
    """A constructor has no argument of that name, needs another one, or got a value of a wrong type."""


class StudyChanged(UsageError):
    """An existing study is opened with another configuration."""


class StudyNotFound(UsageError):
    """No study of that name in that store."""


class RunChanged(UsageError):
    """An existing run is followed at another place, or is of another kind."""


class RunFollowed(UsageError):
    """Another process follows the run."""


class NotImportable(UsageError):
    """A worker process could not import the function by its name."""


class StateError(PhylaError):
    """The request does not fit the state of the record."""


class IllegalTransition(StateError):
    """The table of transitions forbids the move; the message carries the record's history."""


class LeaseLost(StateError):
    """A newer claim, a cancellation or a quarantine took the lease away."""


class StoreError(PhylaError):
    """The database failed."""


class StoreUnavailable(StoreError):
    """The database cannot be opened or reached."""


class ConnectionLost(StoreUnavailable):
    """The connection to the database was lost during a transaction, which may have been committed."""


class StoreBusy(StoreError):
    """Another process holds the database for too long."""


class AccessDenied(StoreError):
    """A service refused a request: no token, or one that does not allow it."""


class SchemaMismatch(StoreError):
    """The database was made by another version of phyla."""


class CheckpointError(PhylaError):
    """The bytes of a checkpoint."""


class CheckpointsAbsent(CheckpointError):
    """A study's checkpoint directory is not there, cannot be read, or is a second one; nothing was decided."""


class CheckpointsNotOurs(CheckpointsAbsent):
    """Where the checkpoints of a study should be is something else: other files, or those of another store."""


class CheckpointMissing(CheckpointError):
    """The directory of a checkpoint, or one of its files, is gone."""


class CheckpointCorrupt(CheckpointError):
    """Sizes or digests differ from the manifest."""


class CheckpointChanged(CheckpointError):
    """A foreign checkpoint has changed since it was seen."""


class CheckpointGone(CheckpointError):
    """A foreign checkpoint was deleted, in whole or in part."""


class CheckpointStorageFailed(CheckpointError):
    """The disk is full, the directory read-only, or permission is missing."""


class TrialError(PhylaError):
    """An error inside one trial; its text is stored with the trial."""


class NoCheckpoint(TrialError):
    """The training function returned and left no checkpoint."""


class NoFitness(TrialError):
    """The training function returned and never reported the objective."""


class MetricsUnreadable(TrialError):
    """A command wrote metrics that cannot be read; the message names the file and the line."""


class CommandFailed(TrialError):
    """A command that trains ended badly.

    Attributes:
        how: how it ended: its exit status, a signal, or the time-out.
    """

    def __init__(self, how: str, message: str) -> None:
        super().__init__(f"{how}: {message}")
        self.how = how


class GivenBack(TrialError):
    """A command asks, with exit status 75, to be run again later; that does not count as a failure."""


class EvaluationError(PhylaError):
    """Results of an evaluation are unusable."""


class MetricInvalid(EvaluationError):
    """A recorded value or a stored metric is invalid."""


class MetricMismatch(EvaluationError):
    """Two metrics of one name cannot be merged: another type, other edges, labels or names."""


class MetricMissing(EvaluationError):
    """A task lacks the metric that an aggregator or a comparison asks for."""


class SamplesDiffer(EvaluationError):
    """The number of counted samples is wrong; the message has the counts of each shard."""


class LauncherFailed(PhylaError):
    """The engine that runs the workers of a pool failed, or cannot be reached."""


class StudyFailed(PhylaError):
    """The study stopped itself; the message says what to do."""


class ProcessSpoiled(PhylaError):
    """phyla failed in a process that user code had changed; the message names the changes."""


class TimeTooShort(StudyFailed):
    """No trial fits into the time limit of the run, and none saved its progress: another run would not help."""


class Preempted(KeyboardInterrupt):
    """A signal or a time limit stopped the run; run it again to resume. The message says which."""


_ADVICE = {
    errno.ENOSPC: "room or inodes are used up: make room, or keep fewer checkpoints",
    errno.EDQUOT: "the disk quota is used up: make room, keep fewer checkpoints or ask for a larger quota",
    errno.EROFS: "the file system is read-only: choose another home for the study, or mount it for writing",
    errno.ESTALE: "the file system was mounted or exported anew: mount it again",
}
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")
"""What numpy raises instead of the system's error when a file takes only a part of an array."""
_ADVICE_ON_PLACES = {
    errno.EEXIST: "a file is where a directory should be: move it away, or choose another home",
    errno.ENOTDIR: "a file is where a directory should be: move it away, or choose another home",
    errno.EISDIR: "a directory is where a file should be: move it away",
    errno.ENOTEMPTY: "another thread or process writes into it: end that, or move the directory away",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "symbolic links form a circle: remove one of them",
}
_ADVICE_ON_LIMITS = {
    errno.EAGAIN: "no more processes or threads are allowed: raise `ulimit -u`, or the limit of the container",
    errno.EMFILE: "this process may open no more files: raise `ulimit -n`",
    errno.ENFILE: "the machine may open no more files: end other programs, or raise fs.file-max",
    errno.ENOMEM: "memory is used up: run fewer workers, or raise the limit of the container",
}
_NO_THREAD = "can't start new thread"
_PERMISSION = (errno.EACCES, errno.EPERM)
_PHYLA = str(Path(__file__).parent) + "/"
_LIBRARY = tuple({sysconfig.get_paths()[name] + "/" for name in ("stdlib", "platstdlib")})
_PACKAGES = ("/site-packages/", "/dist-packages/")


def hidden_modules() -> str:
    """Name files, such as a `queue.py` beside a study, that hide modules of Python's own; empty without any."""
    paths = sysconfig.get_paths()
    # Installed packages, such as the distutils of setuptools, hide none by mistake.
    library = tuple(paths[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    known = {
        name: getattr(sys.modules[name], "__file__", None) for name in sys.stdlib_module_names & {*sys.modules}
    }
    hidden = [(name, file) for name, file in sorted(known.items()) if file and not file.startswith(library)]
    return "; ".join(f"{file} hides Python's own module {name!r}: rename it" for name, file in hidden)


def line_of(error: BaseException) -> tuple[str, int] | None:
    """Return the last line of code, where an error was raised, that is neither of phyla, nor of a library."""
    frames = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.lineno is not None and not frame.filename.startswith((_PHYLA, "<frozen ", "<string>"))
    ]
    own = [place for place in frames if not _is_library(place[0])]
    # Code of a user may be an installed package itself.
    places = own or frames
    return places[-1] if places else None


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARY) or any(part in file for part in _PACKAGES)


def ends_only_call(error: BaseException) -> bool:
    """Return whether an error of user code ends the call that raised it, rather than the process."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(ends_only_call, error.exceptions))
    if isinstance(error, Exception):
        return True
    # The others are SystemExit, or what asyncio, trio and pytest raise for what they cancel or fail.
    is_own = type(error).__module__.partition(".")[0] == __name__.partition(".")[0]
    # Where Ctrl-C is ignored, as in worker processes, user code raises it itself.
    by_person = isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    return not (is_own or by_person)


def message_of(error: BaseException) -> str:
    """Return the message of an error of user code, whose `__str__` may fail, too."""
    with suppress(Exception):
        return str(error)
    return "its message cannot be shown, since its __str__ raises"


def with_place(error: BaseException) -> str:
    """Return an error in words, with the file and line of the user's code that raised it."""
    frames = [*traceback.extract_tb(error.__traceback__)]
    # An error of phyla's own code has a line there.
    last = (frames[-1].filename, frames[-1].lineno) if frames and not isinstance(error, UsageError) else None
    place = line_of(error) or last
    words = ": ".join(filter(None, (type(error).__name__, message_of(error))))
    return words if place is None else f"{words} ({place[0]}, line {place[1]})"


def is_storage_error(error: BaseException) -> bool:
    """Return whether an error says that a file system is full, read-only or failing."""
    return isinstance(error, OSError) and (_storage_errno(error) in _ADVICE or error.errno == errno.EIO)


def _storage_errno(error: OSError) -> int | None:
    hidden = error.errno is None and _SHORT_WRITE.fullmatch(str(error))
    return errno.ENOSPC if hidden else error.errno


def is_place_error(error: BaseException) -> bool:
    """Return whether phyla itself, and not code of a user, found a file or directory that it cannot use."""
    if not isinstance(error, OSError) or error.errno not in (*_ADVICE_ON_PLACES, *_PERMISSION):
        return False
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    packages = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    foreign = [package for package in packages if package not in sys.stdlib_module_names]
    return foreign[-1:] == [__name__.partition(".")[0]]


def is_limit_error(error: BaseException) -> bool:
    """Return whether the system allows no more processes, threads, open files or memory."""
    return _errno_of(error) in _ADVICE_ON_LIMITS


def _errno_of(error: BaseException) -> int | None:
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return errno.EAGAIN
    return _storage_errno(error) if isinstance(error, OSError) else None


def advice_on(error: BaseException) -> str:
    """Return what to do about an error of storage, or of a limit, as a clause."""
    number = _errno_of(error)
    if number in _PERMISSION:
        return f"user {os.geteuid()} lacks the permission: give it, or choose another home for the study"
    if number == errno.EBADF:
        return "it was closed in this process: look for os.close and os.closerange in your code"
    known = {**_ADVICE, **_ADVICE_ON_PLACES, **_ADVICE_ON_LIMITS}
    return known.get(number or 0, "look at the file system's health")
