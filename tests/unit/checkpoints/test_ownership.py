"""The marker of a checkpoint directory: who is first owns it, and nothing else is accepted."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phyla.checkpoints import LocalCheckpoints, Owner, attempt_name, import_name, made_by
from phyla.checkpoints.ownership import OWNER_NAME, Ownership
from phyla.errors import CheckpointsAbsent, CheckpointsNotOurs, CheckpointStorageFailed


def checkpoints(root: Path, store: str = "a" * 32, study: str = "s") -> tuple[LocalCheckpoints, Ownership]:
    made = LocalCheckpoints(root, owner=Owner(store=store, study=study, prefix=store[:6]))
    assert made.ownership is not None
    return made, made.ownership


def test_of_two_stores_that_claim_at_once_one_is_refused(tmp_path: Path) -> None:
    for number in range(20):
        root, together = tmp_path / str(number), threading.Barrier(2)

        def claim(store: str, root: Path = root, together: threading.Barrier = together) -> bool:
            _, ownership = checkpoints(root, store)
            together.wait(60)
            try:
                ownership.claim(None)
            except CheckpointsNotOurs:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(claim, ("a" * 32, "b" * 32))) == [False, True]
        assert [path.name for path in root.iterdir()] == [OWNER_NAME]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 2}', "\0\0"])
def test_a_damaged_marker_is_refused_until_the_directory_is_adopted(tmp_path: Path, damage: str) -> None:
    made, ownership = checkpoints(tmp_path)
    ownership.claim(0)
    made.check_owner()
    (tmp_path / OWNER_NAME).unlink()
    (tmp_path / OWNER_NAME).write_text(damage)
    with pytest.raises(CheckpointsNotOurs, match=r"marker .*json is damaged.*doctor s --adopt"):
        made.check_owner()
    ownership.adopt()
    made.check_owner()


def test_a_directory_of_a_store_that_was_copied_can_be_adopted_and_one_of_another_study_cannot(
    tmp_path: Path,
) -> None:
    _, ownership = checkpoints(tmp_path)
    ownership.claim(None)
    copied = LocalCheckpoints(tmp_path, owner=Owner(store="b" * 32, study="s", prefix="b", copied_from="a" * 32))
    with pytest.raises(CheckpointsNotOurs, match=r"of which this store is a copy.*doctor s --adopt"):
        copied.check_owner()
    same_name, _ = checkpoints(tmp_path, "c" * 32)
    with pytest.raises(
        CheckpointsNotOurs, match=r"a study of this name in another store, a{32}\..*doctor s --adopt"
    ):
        same_name.check_owner()
    other, _ = checkpoints(tmp_path, "a" * 32, "t")
    with pytest.raises(CheckpointsNotOurs, match=r"belongs to study 's'.*another name for the study$"):
        other.check_owner()


def test_what_an_interrupted_claim_left_is_no_content(tmp_path: Path) -> None:
    (tmp_path / f"{OWNER_NAME}.0123").write_text("half")
    made, ownership = checkpoints(tmp_path)
    ownership.claim(None)
    made.check_owner()


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, os.strerror(1), str(self))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    made, ownership = checkpoints(tmp_path / "root")
    ownership.claim(None)
    made.check_owner()
    with pytest.raises(CheckpointsNotOurs):
        checkpoints(tmp_path / "root", "b" * 32)[1].claim(None)


def test_staging_never_makes_a_root_that_is_gone(tmp_path: Path) -> None:
    made, ownership = checkpoints(tmp_path / "root")
    ownership.claim(None)
    (tmp_path / "root").rename(tmp_path / "away")
    with pytest.raises(CheckpointsAbsent, match="no such directory"):
        made.stage("1.1")
    assert not (tmp_path / "root").exists()


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("precious")
    with pytest.raises(CheckpointsNotOurs, match="it is a file"):
        checkpoints(tmp_path / "root")[1].claim(None)
    assert (tmp_path / "root").read_text() == "precious"


def test_a_place_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointStorageFailed, match=r"cannot mark /proc/none/s .*--checkpoints"):
        checkpoints(Path("/proc/none/s"))[1].claim(None)


def test_names_say_who_made_them() -> None:
    names = {attempt_name("abcdef", 4, 1, worker, at) for worker in ("w", "v") for at in (1.0, 1.5)}
    assert len(names) == 4
    for name in names:
        for found in (made_by(name), made_by(f"{name}.p3")):
            assert found is not None
            assert (found.prefix, found.claim) == ("abcdef", (4, 1, name[-6:]))
    imported = made_by(import_name("abcdef", 2))
    assert imported is not None
    assert (imported.prefix, imported.claim) == ("abcdef", None)
    for name in ("4.1", "images", "4.1.abcdef", "start-0", "4.1.ABCDEF012345", "4.1.abcdef012345.bak"):
        assert made_by(name) is None
