"""The marker of a checkpoint directory: who is first owns it, and nothing else is accepted."""

import errno
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from facts import check_facts, raises
from phyla.checkpoints import MANIFEST_NAME, LocalCheckpoints, Owner, attempt_name, import_name, parse_name
from phyla.checkpoints.disk import Disk
from phyla.checkpoints.ownership import FORMAT, OWNER_NAME, Ownership
from phyla.errors import CheckpointError, CheckpointsAbsent, CheckpointsNotOurs, CheckpointStorageFailed


def checkpoints(root: Path, store: str = "a" * 32, study: str = "s") -> tuple[LocalCheckpoints, Ownership]:
    made = LocalCheckpoints(root, owner=Owner(store=store, study=study, prefix=store[:6]))
    assert made.ownership is not None
    return made, made.ownership


def test_of_two_stores_that_claim_at_once_one_is_refused(tmp_path: Path) -> None:
    for number in range(20):
        root, together = tmp_path / str(number), threading.Barrier(2)

        def claim(store: str, root: Path = root, together: threading.Barrier = together) -> bool:
            _, ownership = checkpoints(root, store)
            together.wait(180)
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
    ownership.claim("")
    made.check_owner()
    (tmp_path / OWNER_NAME).unlink()
    (tmp_path / OWNER_NAME).write_text(damage)
    with raises(CheckpointsNotOurs, "json", "--adopt"):
        made.check_owner()
    ownership.adopt()
    made.check_owner()


def test_a_marker_without_a_name_is_as_good_until_the_store_knows_one(tmp_path: Path) -> None:
    made, ownership = checkpoints(tmp_path)
    (tmp_path / OWNER_NAME).write_text(json.dumps({"format": FORMAT, "store": "a" * 32, "study": "s"}))
    made.check_owner()
    assert ownership.claim("") == ""
    with raises(CheckpointsAbsent, "another place", "phyla doctor s --adopt"):
        ownership.claim("another place")


def test_of_two_directories_of_a_study_only_the_one_that_the_store_knows_is_its(tmp_path: Path) -> None:
    (_, first), (stray, second) = checkpoints(tmp_path / "first"), checkpoints(tmp_path / "second")
    known = first.claim(None)
    for facts in (second.claim(""), f"{tmp_path}/second"):
        for call in (lambda: second.claim(known), stray.check_owner, lambda: stray.stage("1.1")):
            with raises(CheckpointsAbsent, known, facts, "--checkpoints", "phyla doctor s --adopt"):
                call()
    # A process that opens it later is refused, too.
    owner = Owner(store="a" * 32, study="s", prefix="a" * 6, directory=known)
    with raises(CheckpointsAbsent, known):
        LocalCheckpoints(tmp_path / "second", owner=owner).check_owner()
    assert [path.name for path in (tmp_path / "second").iterdir()] == [OWNER_NAME]
    # The marker moves with the directory.
    (tmp_path / "first").rename(tmp_path / "moved")
    LocalCheckpoints(tmp_path / "moved", owner=owner).check_owner()
    with raises(CheckpointsAbsent, known, tmp_path / "first"):
        first.claim(known)
    assert not (tmp_path / "first").exists()
    # Once it is adopted, the other is refused.
    check_facts(second.adopt(), known)
    adopted = second.check()
    with raises(CheckpointsAbsent, known, adopted):
        checkpoints(tmp_path / "moved")[1].claim(adopted)


def test_a_directory_of_a_store_that_was_copied_can_be_adopted_and_one_of_another_study_cannot(
    tmp_path: Path,
) -> None:
    _, ownership = checkpoints(tmp_path)
    ownership.claim(None)
    copied = LocalCheckpoints(tmp_path, owner=Owner(store="b" * 32, study="s", prefix="b", copied_from="a" * 32))
    with raises(CheckpointsNotOurs, "a" * 32, "phyla doctor s --adopt"):
        copied.check_owner()
    same_name, _ = checkpoints(tmp_path, "c" * 32)
    with pytest.raises(
        CheckpointsNotOurs, match=r"a study of this name in another store, a{32}\..*doctor s --adopt"
    ):
        same_name.check_owner()
    other, _ = checkpoints(tmp_path, "a" * 32, "t")
    with raises(CheckpointsNotOurs, "study 's'"):
        other.check_owner()


@pytest.mark.parametrize("replacement", ["busy store", "new store", "nothing"])
def test_a_root_that_is_replaced_while_a_checkpoint_is_staged_stays_as_it_is(
    tmp_path: Path, replacement: str
) -> None:
    root, away = tmp_path / "root", tmp_path / "away"

    class Overtaken(Disk):
        """The root is replaced between its check and the first change in it."""

        def make_dir(self, path: Path) -> None:
            if path.parent.name == ".staging" and not away.exists():
                root.rename(away)
                if replacement != "nothing":
                    checkpoints(root, "b" * 32)[1].claim(None)
                if replacement == "busy store":
                    (root / ".staging").mkdir()
            super().make_dir(path)

    owner = Owner(store="a" * 32, study="s", prefix="a" * 6)
    made = LocalCheckpoints(root, Overtaken(), owner=owner)
    assert made.ownership is not None
    made.ownership.claim(None)
    with pytest.raises(CheckpointError):
        made.stage("1.1")
    assert not [path for path in tmp_path.rglob("*") if path.name == "1.1"]
    assert root.exists() == (replacement != "nothing")


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


@pytest.mark.parametrize("links", [True, False])
def test_the_marker_of_who_was_quicker_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    _, second = checkpoints(tmp_path / "root", "b" * 32)
    hardlink_to = Path.hardlink_to

    def overtaken(self: Path, target: Path) -> None:
        monkeypatch.setattr(Path, "hardlink_to", hardlink_to)
        checkpoints(tmp_path / "root")[1].claim(None)
        if not links:
            raise PermissionError(1, os.strerror(1), str(self))
        hardlink_to(self, target)

    monkeypatch.setattr(Path, "hardlink_to", overtaken)
    with pytest.raises(CheckpointsNotOurs, match=r"another store, a{32}"):
        second.claim(None)
    checkpoints(tmp_path / "root")[1].check()
    assert [path.name for path in (tmp_path / "root").iterdir()] == [OWNER_NAME]


def test_staging_never_makes_a_root_that_is_gone(tmp_path: Path) -> None:
    made, ownership = checkpoints(tmp_path / "root")
    ownership.claim(None)
    (tmp_path / "root").rename(tmp_path / "away")
    with pytest.raises(CheckpointsAbsent, match="no such directory"):
        made.stage("1.1")
    assert not (tmp_path / "root").exists()


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("precious")
    for directory in (None, ""):
        with raises(CheckpointsNotOurs, "root"):
            checkpoints(tmp_path / "root")[1].claim(directory)
    assert (tmp_path / "root").read_text() == "precious"


def test_a_place_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with raises(CheckpointStorageFailed, "/proc/none/s", "/proc/none"):
        checkpoints(Path("/proc/none/s"))[1].claim(None)


def content(root: Path, *names: str) -> dict[str, bytes]:
    """Put files into a directory, and return what is in it; a name with `/` at its end gets a manifest."""
    for name in names:
        path = root / name / MANIFEST_NAME if name.endswith("/") else root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("names", "held", "adoptable"),
    [
        (["thesis.tex"], ["thesis.tex"], False),
        (["1.1/"], ["1.1"], True),
        ([".staging/", ".deleting/", "1.1/"], [".deleting", ".staging", "1.1"], True),
        ([".staging/half", "2.1/"], [".staging", "2.1"], True),
        (["1.1/", "2.1/weights"], ["1.1", "2.1"], False),
        (["a", "b", "c", "d", "e"], ["a", "b", "c", "2 more"], False),
        (["a", "b", "c"], ["a", "b", "c"], False),
    ],
)
def test_content_without_a_marker_is_refused_and_only_checkpoints_can_be_adopted(
    tmp_path: Path, names: list[str], held: list[str], adoptable: bool
) -> None:
    made, ownership = checkpoints(tmp_path)
    before = content(tmp_path, *names)
    for directory in ("", "another", None):
        with raises(CheckpointsNotOurs, OWNER_NAME, *held) as caught:
            ownership.claim(directory)
        # A study that does not exist yet has nothing to adopt.
        assert str(caught.value).endswith("(it deletes nothing)") == (adoptable and directory is not None)
    with raises(CheckpointsNotOurs, *held):
        made.check_owner()
    if adoptable:
        assert ownership.adopt() == "it had no marker, and only checkpoints in it"
        made.check_owner()
        ownership.claim(ownership.check())
        (tmp_path / OWNER_NAME).unlink()
    else:
        with raises(CheckpointsNotOurs, OWNER_NAME):
            ownership.adopt()
    assert content(tmp_path) == before


def test_what_was_adopted_is_named(tmp_path: Path) -> None:
    _, ours = checkpoints(tmp_path / "root")
    with pytest.raises(CheckpointsAbsent, match="no such directory"):
        ours.adopt()
    assert not (tmp_path / "root").exists()
    (tmp_path / "root").mkdir()
    assert ours.adopt() == "it was empty"
    ours.check()
    _, theirs = checkpoints(tmp_path / "root", "b" * 32)
    check_facts(theirs.adopt(), "a" * 32)
    theirs.check()
    with pytest.raises(CheckpointsNotOurs, match=r"another store, b{32}"):
        ours.check()
    _, other = checkpoints(tmp_path / "root", "b" * 32, "t")
    with raises(CheckpointsNotOurs, "study 's'"):
        other.adopt()
    theirs.check()


def test_of_checkpoints_that_are_not_there_it_is_said_why(tmp_path: Path) -> None:
    _, ownership = checkpoints(tmp_path / "root")
    with raises(CheckpointsAbsent, "study 's'", tmp_path / "root"):
        ownership.check()
    with pytest.raises(CheckpointsAbsent, match="no such directory"):
        ownership.claim("another")
    assert not (tmp_path / "root").exists(), "a second directory is not made"
    (tmp_path / "root").mkdir()
    with raises(CheckpointsAbsent, "phyla doctor s --adopt"):
        ownership.claim("another")
    assert list((tmp_path / "root").iterdir()) == []
    ownership.claim(ownership.claim(""))


def test_checkpoints_that_the_store_does_not_know_are_named(tmp_path: Path) -> None:
    _, ownership = checkpoints(tmp_path)
    found = str(ownership.make_restored_error(["1.1", "2.1", "3.1", "4.1"]))
    check_facts(found, "1.1", "2.1", "3.1", "1 more")
    assert found.endswith("phyla doctor s --adopt (it deletes nothing)")


@pytest.mark.parametrize("store", ["a", "b"])
def test_content_belongs_to_whoever_marks_the_directory_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    iterdir = Path.iterdir

    def overtaken(self: Path) -> Iterator[Path]:
        monkeypatch.setattr(Path, "iterdir", iterdir)
        checkpoints(tmp_path / "root")[1].claim(None)
        content(tmp_path / "root", "1.1/")
        return iterdir(self)

    monkeypatch.setattr(Path, "iterdir", overtaken)
    made, _ = checkpoints(tmp_path / "root", store * 32)
    if store == "a":
        made.check_owner()
    else:
        with pytest.raises(CheckpointsNotOurs, match=r"another store, a{32}"):
            made.check_owner()


def test_a_directory_that_cannot_be_read_is_absent_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = checkpoints(tmp_path)
    (tmp_path / OWNER_NAME).mkdir()
    with raises(CheckpointsAbsent, OWNER_NAME, os.strerror(errno.EISDIR)):
        made.check_owner()
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with raises(CheckpointsAbsent, os.strerror(errno.ELOOP)):
        checkpoints(loop)[1].claim(None)

    def broken(self: Path) -> Iterator[Path]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))

    monkeypatch.setattr(Path, "iterdir", broken)
    with raises(CheckpointsAbsent, os.strerror(errno.EIO)):
        checkpoints(tmp_path / "other")[1].claim(None)
    assert not (tmp_path / "other").exists()


def test_names_say_who_made_them() -> None:
    names = {attempt_name("abcdef", 4, 1, worker, at) for worker in ("w", "v") for at in (1.0, 1.5)}
    assert len(names) == 4
    for name in names:
        for found in (parse_name(name), parse_name(f"{name}.p3")):
            assert found is not None
            assert (found.prefix, found.claim) == ("abcdef", (4, 1, name[-6:]))
    imported = parse_name(import_name("abcdef", 2))
    assert imported is not None
    assert (imported.prefix, imported.claim) == ("abcdef", None)
    for name in ("4.1", "images", "4.1.abcdef", "start-0", "4.1.ABCDEF012345", "4.1.abcdef012345.bak"):
        assert parse_name(name) is None
