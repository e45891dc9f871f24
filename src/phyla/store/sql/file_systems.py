"""Which file system a path is on, as far as Linux tells."""

from pathlib import Path

MOUNTS = Path("/proc/self/mounts")

NETWORK = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.ceph",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.juicefs",
        "fuse.mount-s3",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "panfs",
        "smb3",
        "smbfs",
        "wekafs",
    }
)
"""Types whose shared memory or locks do not reach other hosts, or not reliably."""


LOCAL = frozenset(
    {
        "aufs",
        "bcachefs",
        "btrfs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "jfs",
        "overlay",
        "ramfs",
        "reiserfs",
        "tmpfs",
        "xfs",
        "zfs",
    }
)
"""Types that one kernel alone serves, so that its locks are all there are."""


def network_file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the network file system that a path is on; None if it is on none or unknown."""
    kind = _kind(path, mounts)
    return kind if kind in NETWORK else None


def is_local(path: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether a path is certainly on a file system of this machine alone."""
    return _kind(path.resolve(), mounts) in LOCAL


def _kind(path: Path, mounts: Path) -> str:
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    kind, deepest = "", -1
    for line in lines:
        _, point, this_kind, *_ = line.split(" ")
        root = Path(_unescaped(point))
        if len(root.parts) >= deepest and path.is_relative_to(root):
            kind, deepest = this_kind, len(root.parts)
    return kind


def _unescaped(point: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(escape, character)
    return point
