"""Check the contract of any checkpoint format, on a virtual clock."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias, final

from phyla.errors import CheckpointStorageFailed
from phyla.testing.requirements import require, require_equal, require_raises
from phyla.watcher import CheckpointFormat, Found

Save: TypeAlias = Callable[[Path, int], Iterable[object] | None]
"""`save(root, step)` writes one checkpoint; see `check_format`."""

EARLIER_NS = 60 * 10**9


def check_format(checkpoint_format: CheckpointFormat, save: Save) -> None:
    """Save checkpoints, look at them as a watcher does, and check the contract of any format.

    - What is saved is ready, at the latest when nothing changed for the quiet period, and never while it is being
      saved or overwritten. Its step is the step, and its paths include all of its files.
    - Another checkpoint beside it does not change it, and a second watcher finds the same.
    - In a directory that does not exist or is empty, nothing is ready and nothing is raised; nor for pipes, broken
      links and empty directories that have the names of checkpoints.

    Args:
        checkpoint_format: the format, with the options to be checked.
        save: writes a checkpoint of a step into a directory, as the library does. If it is a generator, each
            `yield` is a moment at which a watcher may look, as after half of a file. It may raise FileExistsError
            if there is one of that step.

    Raises:
        AssertionError: it breaks the contract; the message says how.
    """
    for name in ("name", "awaits"):
        text = getattr(checkpoint_format, name, None)
        require(text and isinstance(text, str), f"{checkpoint_format!r} has no `{name}`, which is text")
    for check in CHECKS:
        with TemporaryDirectory() as folder:
            check(_Watch(checkpoint_format, Path(folder)), save)


@final
@dataclass
class _Watch:
    """Looks at one directory, each time with what it saw before."""

    form: CheckpointFormat
    root: Path
    now: float = 0.0
    seen: dict[str, Found] = field(default_factory=dict)

    def look(self) -> list[Found]:
        """Scan the directory, which must not change it."""
        before = _states(self.root)
        try:
            items = self.form.scan(self.root, now=self.now, previous=self.seen)
        except CheckpointStorageFailed:
            raise
        except Exception as error:
            there = f"in a directory that holds {sorted(before)}"
            raise AssertionError(f"candidates() raised {type(error).__name__} ({error}) {there}") from error
        require_equal(_states(self.root), before, "the files of a directory after a scan, which may only read")
        self.seen = {item.name: item for item in items}
        return items

    def look_later(self) -> list[Found]:
        """Look twice, with a quiet period in between."""
        self.look()
        self.now += self.form.quiet_s
        return self.look()

    def only(self) -> Found:
        """Return the only checkpoint, which must be ready after the quiet period."""
        items = self.look_later()
        require_equal(len(items), 1, f"checkpoints found after one was saved, {[item.name for item in items]}")
        _require_ready(items[0])
        return items[0]

    def saving(self, save: Save, step: int) -> Iterator[list[Found]]:
        """Return what is found at each moment while a checkpoint is saved."""
        for _ in save(self.root, step) or ():
            yield self.look()


def _require_ready(item: Found) -> None:
    require(item.ready, f"{item.name} is saved, and not ready after the quiet period: {item.why}")


def _states(root: Path) -> dict[str, tuple[int, int]]:
    return {
        path.relative_to(root).as_posix(): (status.st_size, status.st_mtime_ns)
        for path in root.rglob("*")
        if (status := path.lstat())
    }


def _finds_nothing(watch: _Watch, save: Save) -> None:
    require_equal(watch.look_later(), [], "checkpoints found in an empty directory")
    elsewhere = _Watch(watch.form, watch.root / "none")
    require_equal(elsewhere.look_later(), [], "checkpoints found in a directory that does not exist")
    elsewhere.root.touch()
    require_raises(CheckpointStorageFailed, elsewhere.look, "a file in place of the directory")


def _finds_what_is_saved(watch: _Watch, save: Save) -> None:
    for number, items in enumerate(watch.saving(save, 1), 1):
        for item in items:
            at = f"{item.name} at yield {number} of save"
            require(not item.ready, f"{at} is ready, and its writer has not finished: {item.why}")
            require(not item.bad, f"{at} counts as damaged before the quiet period is over: {item.why}")
    item = watch.only()
    require_equal(item.step, 1, f"the step of {item.name}, saved at step 1; {watch.form.step_rule(item.name)}")
    covered = [watch.root / path for path in item.paths]
    for file in (path for path in watch.root.rglob("*") if path.is_file()):
        inside = any(file == path or path in file.parents for path in covered)
        require(inside, f"{file.relative_to(watch.root)} was saved, and is not below the paths {item.paths}")


def _keeps_them_apart(watch: _Watch, save: Save) -> None:
    _save(watch, save, 1)
    first = watch.only()
    for number, items in enumerate(watch.saving(save, 20), 1):
        again = next((item for item in items if item.name == first.name), None)
        problem = f"{first.name} changes while another checkpoint is saved, at yield {number} of save: {again}"
        require(again == first, problem)
    looks = {"it": watch.look_later(), "a second watcher": _Watch(watch.form, watch.root).look_later()}
    for name, items in looks.items():
        require_equal([item.step for item in items], [1, 20], f"steps that {name} finds after 1 and 20 were saved")
        for item in items:
            _require_ready(item)


def _waits_for_overwriting(watch: _Watch, save: Save) -> None:
    _save(watch, save, 1)
    _make_older(watch.root)
    before = watch.only()
    try:
        for number, items in enumerate(watch.saving(save, 1), 1):
            for item in items:
                same = item.fingerprint == before.fingerprint
                at = f"{item.name} at yield {number} of save"
                require(same or not item.ready, f"{at} is ready while it is overwritten: {item.why}")
    except FileExistsError:
        return
    watch.only()


def _ignores_others(watch: _Watch, save: Save) -> None:
    _save(watch, save, 1)
    names = [*watch.only().paths, *(f"x{ending}" for ending in watch.form.endings)]
    for make in (os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path.with_name("nowhere"))):
        with TemporaryDirectory() as folder:
            other = _Watch(watch.form, Path(folder))
            for name in names:
                make(other.root / name)
            ready = [item.name for item in other.look_later() if item.ready]
            require_equal(ready, [], "checkpoints that are ready among pipes, empty directories and broken links")


def _save(watch: _Watch, save: Save, step: int) -> None:
    for _ in save(watch.root, step) or ():
        pass


def _make_older(root: Path) -> None:
    """Let everything in a directory be a minute older, so that a new file is surely newer."""
    for path in root.rglob("*"):
        changed_ns = path.lstat().st_mtime_ns - EARLIER_NS
        os.utime(path, ns=(changed_ns, changed_ns), follow_symlinks=False)


CHECKS = (_finds_nothing, _finds_what_is_saved, _keeps_them_apart, _waits_for_overwriting, _ignores_others)
