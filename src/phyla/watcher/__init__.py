"""Foreign checkpoints: detection, checks, names and snapshots.

A training job that knows nothing of phyla writes checkpoints into a directory, or uploads them. This package
detects finished ones without reading weights, and keeps them readable while the writer continues. It does not
decide about evaluations. A format is one file in `formats/`.
"""

from phyla.validation import suggest_arguments
from phyla.watcher.directory_watcher import DirectoryWatcher, Following
from phyla.watcher.format import (
    Candidate,
    CheckpointFormat,
    Found,
    Verdict,
    describe_below,
    format_names,
    get_format,
)
from phyla.watcher.formats.step_source import StepFrom
from phyla.watcher.run_lock import holder, lock
from phyla.watcher.snapshots import DirectorySources
from phyla.watcher.study_watcher import StudyWatcher
from phyla.watcher.watch_thread import WatchThread

__all__ = [
    "Candidate",
    "CheckpointFormat",
    "DirectorySources",
    "DirectoryWatcher",
    "Following",
    "Found",
    "StepFrom",
    "StudyWatcher",
    "Verdict",
    "WatchThread",
    "describe_below",
    "format_names",
    "get_format",
    "holder",
    "lock",
]

suggest_arguments(Following)
