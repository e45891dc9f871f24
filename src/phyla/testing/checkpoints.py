"""Check that a directory or an object store keeps checkpoints as phyla needs it."""

import shutil
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TypeVar, final

from phyla.checkpoints import Checkpoints, LocalCheckpoints, Owner, RemoteCheckpoints, RemotePlace, place_of
from phyla.checkpoints.objects import Objects
from phyla.errors import CheckpointCorrupt, CheckpointError, CheckpointsNotOurs
from phyla.testing.requirements import require, require_equal, require_raises

Answer = TypeVar("Answer")

WEIGHTS = b"weights" * 40
LARGE_BYTES = 33 << 20
"""More than object stores take in one request."""
AT_ONCE = 3
ROUNDS = 5
WAIT_S = 180.0

FILES = {"steps/100/w [1]?*.bin": WEIGHTS, "empty": b"", "großes ü+&%20": bytes(LARGE_BYTES)}
SMALL = {"weights.bin": WEIGHTS, "optimizer/state": b""}
DAMAGES: dict[str, tuple[str, bytes | None]] = {
    "one byte of a file was changed": ("weights.bin", WEIGHTS[:-1] + b"?"),
    "a file was cut": ("weights.bin", WEIGHTS[:-1]),
    "a file was removed": ("optimizer/state", None),
    "a file was added": ("added", b""),
}


def check_checkpoints(where: str | Path) -> None:
    """Save, read, damage and delete checkpoints in a place, and check that it keeps them as studies need it.

    - Another machine reads what was committed, at once and exactly, and never a part of it.
    - A name is committed once. A deleted checkpoint is gone at once, even if several machines delete it together.
    - Damage is noticed before a checkpoint is used.
    - If two stores claim the place at the same moment, one is rejected.

    Args:
        where: what `checkpoints=` of a study would be: a directory, or a URL such as `gs://bucket/prefix`. The
            check writes some 35 MB below a new name there, and removes them in the end.

    Raises:
        AssertionError: the place is not fit for checkpoints; the message says why.
        ConfigurationError: the URL is not understood, or a library for it is missing.
    """
    with TemporaryDirectory() as machines:
        root = _Site(place_of(where, Path(machines)), Path(machines)) / f"check-{uuid.uuid4().hex[:12]}"
        try:
            for check in CHECKS:
                check(root / check.__name__.strip("_"))
        except CheckpointError as error:
            raise AssertionError(str(error)) from error
        finally:
            root.clear()


@final
@dataclass(frozen=True)
class _Site:
    """A place, as several machines see it."""

    place: Path | RemotePlace
    machines: Path

    def __truediv__(self, name: str) -> "_Site":
        return _Site(self.place / name, self.machines)

    def open(self, owner: Owner | None = None) -> Checkpoints:
        """Open it on a machine that has read nothing of it."""
        if isinstance(self.place, Path):
            return LocalCheckpoints(self.place, owner=owner)
        cache = Path(mkdtemp(dir=self.machines))
        return RemoteCheckpoints(RemotePlace(self.place.url, cache), owner=owner)

    def put(self, key: str, content: bytes | None) -> None:
        """Write or remove a file behind the back of checkpoints."""
        if not isinstance(self.place, Path):
            objects = Objects(self.place.url)
            objects.remove([key]) if content is None else objects.write(key, content)
            return
        file = self.place / key
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)

    def clear(self) -> None:
        """Remove everything, as far as that can be done."""
        if isinstance(self.place, Path):
            shutil.rmtree(self.place, ignore_errors=True)
        else:
            objects = Objects(self.place.url)
            with suppress(CheckpointError):
                objects.remove(objects.sizes())


def _stage(checkpoints: Checkpoints, name: str, files: dict[str, bytes]) -> Path:
    staged = checkpoints.stage(name)
    for relative, content in files.items():
        (staged / relative).parent.mkdir(parents=True, exist_ok=True)
        (staged / relative).write_bytes(content)
    return staged


def _commit(checkpoints: Checkpoints, name: str, files: dict[str, bytes] = SMALL) -> str:
    _stage(checkpoints, name, files)
    return checkpoints.commit(name, step=1, now=0.0).digest


def _another_machine_reads_it(site: _Site) -> None:
    mine = site.open()
    (_stage(mine, "1.1", FILES) / "latest").symlink_to("steps/100")
    digest = mine.commit("1.1", step=1, now=0.0).digest
    theirs = site.open()
    require_equal(theirs.names(), ("1.1",), "checkpoints that another machine sees after a commit")
    path = theirs.use("1.1", digest)
    for relative, content in FILES.items():
        require((path / relative).read_bytes() == content, f"{relative!r} has other content on another machine")
    require_equal((path / "latest").readlink(), Path("steps/100"), "the target of a link on another machine")


def _a_name_is_committed_once(site: _Site) -> None:
    digest = _commit(site.open(), "1.1")
    other = site.open()
    require_raises(CheckpointError, lambda: _commit(other, "1.1", {"other": b"x"}), "a second commit of one name")
    site.open().use("1.1", digest)


def _readers_see_no_part(site: _Site) -> None:
    writer, reader = site.open(), site.open()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [_commit(writer, f"{number}.1") for number in range(ROUNDS)])
        while not writing.done():
            for name in reader.names():
                reader.use(name)
        writing.result()


def _what_is_deleted_is_gone(site: _Site) -> None:
    checkpoints = site.open()
    _commit(checkpoints, "1.1")
    digest = _commit(checkpoints, "2.1")
    require(checkpoints.delete("1.1") >= len(WEIGHTS), "delete() freed less than was committed")
    theirs = site.open()
    require_equal(theirs.names(), ("2.1",), "checkpoints that another machine sees after one of two was deleted")
    require_equal(theirs.deleting(), (), "checkpoints of which something is left after delete()")
    require_equal(theirs.delete("1.1"), 0, "bytes that a second delete() freed")
    theirs.use("2.1", digest)


def _several_delete_at_once(site: _Site) -> None:
    names = [f"{number}.1" for number in range(4)]
    for name in names:
        _commit(site.open(), name, {f"{number}.bin": WEIGHTS for number in range(10)})

    def delete(checkpoints: Checkpoints) -> None:
        for name in names:
            checkpoints.delete(name)
            checkpoints.delete(*checkpoints.deleting())

    _at_once(delete, [site.open() for _ in range(AT_ONCE)])
    rest = (site.open().names(), site.open().deleting())
    require_equal(rest, ((), ()), f"what remains after {AT_ONCE} machines deleted everything at once")


def _damage_is_noticed(site: _Site) -> None:
    for number, (damage, (file, content)) in enumerate(DAMAGES.items()):
        name = f"{number}.1"
        digest = _commit(site.open(), name)
        site.put(f"{name}/{file}", content)
        require_raises(CheckpointCorrupt, partial(site.open().use, name, digest), f"use() after {damage}")


def _one_of_two_claims_it(site: _Site) -> None:
    def claim(checkpoints: Checkpoints) -> bool:
        assert checkpoints.ownership is not None
        try:
            checkpoints.ownership.claim(None)
        except CheckpointsNotOurs:
            return False
        return True

    for number in range(ROUNDS):
        owners = [Owner(store=letter * 32, study="s", prefix=letter * 6) for letter in "ab"]
        claims = _at_once(claim, [(site / str(number)).open(owner) for owner in owners])
        require_equal(sorted(claims), [False, True], "whether each of two stores that claim it at once owns it")


def _at_once(call: Callable[[Checkpoints], Answer], opened: list[Checkpoints]) -> list[Answer]:
    """Call a function on several machines at the same moment."""
    together = threading.Barrier(len(opened))

    def wait_and_call(checkpoints: Checkpoints) -> Answer:
        together.wait(WAIT_S)
        return call(checkpoints)

    with ThreadPoolExecutor(len(opened)) as pool:
        return [*pool.map(wait_and_call, opened)]


CHECKS = (
    _another_machine_reads_it,
    _a_name_is_committed_once,
    _readers_see_no_part,
    _what_is_deleted_is_gone,
    _several_delete_at_once,
    _damage_is_noticed,
    _one_of_two_claims_it,
)
