"""Real libraries write, slowly or until they are killed, while we scan: what is ready can be loaded.

A checkpoint that is ready is taken and loaded at once, as an evaluation would. If it cannot be loaded, it must
have been overwritten in place meanwhile, and `unchanged` must say so.
"""

import os
import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from effort import rarely, times
from foreign import QUIET_S, START, scans
from forked import SUPPORT, Forked
from phyla.errors import CheckpointChanged, CheckpointGone
from phyla.settings import child_environment
from phyla.watcher import Found, get_format
from phyla.watcher.snapshots import is_unchanged, take

pytestmark = pytest.mark.xdist_group("frameworks")

WRITERS = SUPPORT / "checkpoints/writers.py"
FORMATS_OF = {
    "torch": ("torch",),
    "slow": ("torch",),
    "in-place": ("torch", "auto"),
    "dcp": ("dcp", "auto"),
    "dcp-in-place": ("dcp",),
    "safetensors": ("safetensors",),
    "shards": ("safetensors", "auto"),
    "policy": ("torch", "auto"),
    "orbax": ("orbax", "auto"),
    "orbax-commit-file": ("orbax",),
    "huggingface": ("huggingface",),
}
OTHERS = ("slow", "dcp-in-place", "safetensors", "orbax-commit-file")
"""Ways to save in formats that others are saved in, too; `unit/watcher/test_formats.py` has each state of each."""
STEPS, WHOLE = 400, 4
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


class Program:
    """Works with the real libraries, in a process of its own, and prints lines."""

    def __init__(self, *arguments: object) -> None:
        env = child_environment(ENVIRONMENT)
        self._process = Forked([WRITERS, *arguments], env=env, frameworks=True)
        self._read = 0

    def line(self) -> str | None:
        """Wait for the next line; None says that the process has ended without one."""
        while True:
            status = self._process.poll()
            line, end, _ = self._process.printed()[self._read :].partition("\n")
            if end:
                self._read += len(line) + 1
                return line
            if status is not None:
                return None
            time.sleep(0.002)

    def saved_steps(self, count: int) -> list[int]:
        """Wait until this many steps are saved."""
        steps: list[int] = []
        while len(steps) < count:
            line = self.line()
            assert line is not None
            if line.isdecimal():
                steps.append(int(line))
        return steps

    def kill(self) -> int:
        self._process.kill()
        return self._process.wait()


class Loader:
    """Loads with the real libraries, in a process of its own, which some loads do not survive."""

    def __init__(self, folder: Path) -> None:
        self._requests = folder / "requests"
        os.mkfifo(self._requests)
        self._start()

    def _start(self) -> None:
        self.program = Program("load", self._requests)
        self._asked = self._requests.open("w")

    def __call__(self, library: str, path: Path, found: Found) -> str:
        print(library, found.step or 0, path, file=self._asked, flush=True)
        answer = self.program.line()
        if answer is None:
            # A file that is mapped into memory and truncated ends the process that reads it.
            answer = f"the loading process died with status {self.program.kill()}"
            self._asked.close()
            self._start()
        return answer

    def close(self) -> None:
        self._asked.close()
        self.program.kill()


@contextmanager
def started(*arguments: object) -> Iterator[Program]:
    program = Program(*arguments)
    try:
        yield program
    finally:
        program.kill()


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    with closing(Loader(tmp_path_factory.mktemp("load"))) as loader:
        yield loader


@pytest.mark.parametrize("library", [rarely(name) if name in OTHERS else name for name in FORMATS_OF])
def test_what_is_saved_is_found_and_what_is_ready_can_be_loaded(
    library: str, load: Loader, tmp_path: Path
) -> None:
    root, whole = tmp_path / "root", tmp_path / "whole"
    root.mkdir()
    rng = random.Random(library)
    scan_as = {name: scans(get_format(name, quiet_s=QUIET_S), root) for name in FORMATS_OF[library]}
    loaded: set[tuple[str, str]] = set()

    def evaluate(name: str, found: Found, *, at_rest: bool) -> None:
        if (name, found.fingerprint) in loaded:
            return
        try:
            path = take(root, found, tmp_path / name, "link")
        except (CheckpointChanged, CheckpointGone):
            assert not at_rest
            return
        answer = load(library, path, found)
        if answer == "ok":
            loaded.add((name, found.fingerprint))
        else:
            assert not at_rest, f"{name}: {found}: {answer}"
            assert not is_unchanged(path, found), f"{name}: {found}: {answer}"

    kill = -1
    # On a slow machine a writer that overwrites may change each one while it is loaded.
    while kill < 1 or ({name for name, _ in loaded} != scan_as.keys() and kill < 30):
        kill += 1
        with started(library, root, STEPS, *([] if kill else [whole])) as writer:
            if not kill:
                # One more, since it may go on with a step after it said that it is saved.
                check_whole(library, whole, writer.saved_steps(WHOLE + 1)[:-1])
            for _ in range(rng.randrange(2, 5)):
                writer.saved_steps(1)
                for name, scan in scan_as.items():
                    for found in newest_ready(scan(), 2):
                        evaluate(name, found, at_rest=False)
            for _ in range(rng.randrange(times(8, 100))):
                for scan in scan_as.values():
                    scan()
            writer.kill()
        now = START + kill * 1000
        for moment in (now, now + 1, now + 1 + QUIET_S):
            # What a deletion left that was cut short may look whole.
            for name, scan in scan_as.items():
                for found in newest_ready(scan(moment), 6):
                    if "added or removed" not in found.why:
                        evaluate(name, found, at_rest=True)
    assert {name for name, _ in loaded} == scan_as.keys()


def newest_ready(found: dict[str, Found], count: int) -> list[Found]:
    ready = [item for item in found.values() if item.ready]
    return sorted(ready, key=lambda item: item.modified_at)[-count:]


def check_whole(library: str, root: Path, saved: list[int]) -> None:
    """All that was saved to the end is found at once."""
    scan = scans(get_format(FORMATS_OF[library][0]), root)
    ready = {found.step for found in scan().values() if found.ready}
    assert len(ready) == 1 if "in-place" in library else ready == set(saved)
