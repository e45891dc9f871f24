"""Foreign checkpoints: found, judged, named and held still.

A training job that knows nothing of phyla writes checkpoints into a directory. This package tells which of
them are finished, never reads weights to tell it, and keeps one readable while its writer goes on. It
decides nothing about evaluations.
"""

from phyla.watcher.directory import Directory
from phyla.watcher.follow import Follow
from phyla.watcher.formats import FORMATS, get_format, step_rule
from phyla.watcher.found import CheckpointFormat, Found
from phyla.watcher.identity import Identity, identity
from phyla.watcher.lock import Lock, holder
from phyla.watcher.sink import Follower, Sink
from phyla.watcher.snapshots import Mode, clean, snapshot_name, take, unchanged
from phyla.watcher.sources import DirectorySources
from phyla.watcher.step import StepFrom
from phyla.watcher.study_watcher import StudyWatcher
from phyla.watcher.watcher import Following, Watcher

__all__ = [
    "FORMATS",
    "CheckpointFormat",
    "Directory",
    "DirectorySources",
    "Follow",
    "Follower",
    "Following",
    "Found",
    "Identity",
    "Lock",
    "Mode",
    "Sink",
    "StepFrom",
    "StudyWatcher",
    "Watcher",
    "clean",
    "get_format",
    "holder",
    "identity",
    "snapshot_name",
    "step_rule",
    "take",
    "unchanged",
]
