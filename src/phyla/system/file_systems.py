"""The file system of a path, as far as Linux knows it."""

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")

NETWORK = frozenset(
    "9p afs beegfs ceph cifs fuse.ceph fuse.gcsfuse fuse.glusterfs fuse.goofys fuse.juicefs fuse.mount-s3 "  # noqa: SIM905
    "fuse.rclone fuse.s3fs fuse.sshfs glusterfs gpfs lustre nfs nfs4 panfs smb3 smbfs wekafs".split()
)
"""Types whose shared memory or locks do not reach other hosts, or not reliably."""

LOCAL = frozenset("aufs bcachefs btrfs ext2 ext3 ext4 f2fs jfs overlay ramfs reiserfs tmpfs xfs zfs".split())  # noqa: SIM905
"""File systems served by one kernel alone, whose locks are therefore complete."""

_OCTAL = re.compile(rb"\\([0-7]{3})")


def network_file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the network file system that a path is on; None if it is on none or unknown.

    Symbolic links are followed, even if the path itself does not exist yet.
    """
    kind = _kind(path, mounts)
    return kind if kind in NETWORK else None


def is_local(path: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether a path is certainly on a file system of this machine alone."""
    return _kind(path, mounts) in LOCAL


def _kind(path: Path, mounts: Path) -> str:
    real = Path(os.path.realpath(path))  # First: reaching it may mount it.
    try:
        lines = mounts.read_bytes().split(b"\n")
    except OSError:
        return ""
    kind, deepest = "", -1
    for line in filter(None, lines):
        _, point, this_kind, *_ = line.split(b" ")
        root = Path(os.fsdecode(_OCTAL.sub(lambda escape: bytes([int(escape[1], 8)]), point)))
        if len(root.parts) >= deepest and real.is_relative_to(root):
            kind, deepest = os.fsdecode(this_kind), len(root.parts)
    return kind
