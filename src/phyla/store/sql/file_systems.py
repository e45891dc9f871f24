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


def network_file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the network file system that a path is on; None if it is on none or unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    kind, deepest = "", -1
    for line in lines:
        _, point, this_kind, *_ = line.split(" ")
        root = Path(_unescaped(point))
        if len(root.parts) >= deepest and path.is_relative_to(root):
            kind, deepest = this_kind, len(root.parts)
    return kind if kind in NETWORK else None


def _unescaped(point: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(escape, character)
    return point
