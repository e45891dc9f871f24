"""Locks of launches: which tell that a launch is dead, and which tell nothing."""

from pathlib import Path

import pytest

from phyla.system.file_systems import is_local
from phyla.worker import Launch, dead_launches, launch_of

URL = "sqlite:///store.db"


def test_a_launch_is_dead_once_its_lock_is_free_and_nothing_else_is(tmp_path: Path) -> None:
    alive, dead, closed = (Launch(tmp_path, URL, ["s"]) for _ in range(3))
    _leave(dead)
    closed.close()
    unknown = "0123456789abcdef"
    (tmp_path / "x.lock").write_text("{}")
    ids = [alive.id, dead.id, closed.id, unknown, "x", "../locks/x", "12345"]
    assert dead_launches(tmp_path, ids) == {dead.id}
    assert dead_launches(tmp_path / "elsewhere", ids) == dead_launches(None, ids) == frozenset()
    assert launch_of(alive.worker_name(3, 77)) == alive.id
    assert alive.worker_name(3, 77).rsplit(":", 2)[0] == alive.worker_name(3).rsplit(":", 2)[0]
    alive.close()


def test_only_launches_for_the_same_work_are_company_or_predecessors(tmp_path: Path) -> None:
    other_study, other_store, same = (
        Launch(tmp_path, URL, ["t"]),
        Launch(tmp_path, "u", ["s"]),
        Launch(None, URL, []),
    )
    mine = Launch(tmp_path, URL, ["s", "r"])
    assert not mine.has_company()
    assert not same.has_company()
    earlier = Launch(tmp_path, URL, ["r"])
    assert mine.has_company()
    for launch in (earlier, other_study, other_store):
        _leave(launch)
    assert not mine.has_company()
    assert mine.predecessors() == {earlier.id}
    mine.close()


@pytest.mark.parametrize(("kind", "local"), [("ext4", True), ("nfs4", False), ("fuse.unheard-of", False)])
def test_locks_are_trusted_on_file_systems_of_one_machine_only(tmp_path: Path, kind: str, local: bool) -> None:
    mounts = tmp_path / "mounts"
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nhere {tmp_path / 'there'} {kind} rw 0 0\n")
    assert is_local(tmp_path / "there", mounts) is local
    assert is_local(tmp_path / "link", mounts) is local
    assert is_local(tmp_path, mounts)
    assert not is_local(tmp_path, tmp_path / "no mounts")


def _leave(launch: Launch) -> None:
    """Unlock it as the end of its process does."""
    with pytest.raises(KeyboardInterrupt), launch:
        raise KeyboardInterrupt
