"""Check the contract of any launcher, with real processes."""

import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

from phyla.errors import ConfigurationError, LauncherFailed
from phyla.launchers import Launcher, Pool
from phyla.testing.requirements import require, require_equal, require_raises, wait_until_equal

AWKWARD = "a b'c\"d\n$HOME `e` \\ %j é;#"
"""What no shell may read as anything but text."""
WAIT_S = 180.0
GRACE_S = 60.0
LIMIT_S = 3600.0
OUTCOMES = {"queued", "completed", "failed"}

PROGRAM = """
import json, os, pathlib, platform, signal, sys, time
folder, ending = pathlib.Path(sys.argv[1]), sys.argv[2]
me = folder / f"{platform.node()}-{os.getpid()}.x"

def end(number, frame):
    me.with_suffix(".saved").write_text(signal.Signals(number).name)
    if ending != "stubborn":
        os._exit(75)

signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, end)
print("worker", os.getpid(), flush=True)
facts = {
    "pid": os.getpid(), "host": platform.node(), "name": me.stem, "arguments": sys.argv[3:],
    "directory": os.getcwd(), "value": os.environ.get("VALUE"),
}
me.with_suffix(".draft").write_text(json.dumps(facts))
me.with_suffix(".draft").rename(me.with_suffix(".up"))
while not (folder / "end").exists():
    if me.with_suffix(".kill").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
"""
"""Reports that it is up; ends at a signal, when a file says so, or, if it is `stubborn`, only with SIGKILL."""

Facts: TypeAlias = Mapping[str, Any]
"""What a program reported when it was up."""


@final
class Programs:
    """Programs in place of workers, and what they left in a folder that they share with us."""

    def __init__(self, folder: Path, *, wait_s: float = WAIT_S) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)
        self._wait_s = wait_s

    def pool(self, launcher: str, folder: Path, *arguments: str, workers: int = 2, **more: Any) -> Pool:
        """Return a pool of such programs, with its file written."""
        ending = more.pop("ending", "soon")
        pool = Pool(
            name=folder.name,
            launcher=launcher,
            command=[sys.executable, "-I", str(self.program), str(self.folder), ending, *arguments],
            workers=workers,
            folder=folder,
            **more,
        )
        pool.save()
        return pool

    def up(self) -> list[Facts]:
        """Return what each program reported."""
        return [json.loads(file.read_text()) for file in self.folder.glob("*.up")]

    def until_up(self, count: int) -> list[Facts]:
        """Wait until as many programs as that were started, ever."""
        wait_until_equal(lambda: min(len(self.up()), count), count, "workers that are up", self._wait_s)
        up = self.up()
        require_equal(len(up), count, "workers that are up")
        return up

    def saved(self) -> list[str]:
        """Return the signals that programs were told to end with."""
        return [file.read_text() for file in self.folder.glob("*.saved")]

    def kill(self, program: Facts) -> None:
        """Let one program die of SIGKILL, on whichever machine."""
        (self.folder / f"{program['name']}.kill").touch()

    def end(self) -> None:
        """Let all programs end by themselves."""
        (self.folder / "end").touch()


@final
@dataclass
class _Site:
    """A launcher under test, a folder, and the pools that it started there."""

    make: Callable[[], Launcher]
    folder: Path
    wait_s: float
    settings: Mapping[str, Any]
    pools: list[Pool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.launcher = self.make()
        self.programs = Programs(self.folder / "programs", wait_s=self.wait_s)

    def pool(self, *arguments: str, name: str = "pool", **more: Any) -> Pool:
        label = getattr(self.make, "__name__", "launcher").lower()
        settings = {**self.settings, **more}
        self.pools.append(self.programs.pool(label, self.folder / "pools" / name, *arguments, **settings))
        return self.pools[-1]

    def until_alive(self, pool: Pool, count: int, when: str) -> None:
        wait_until_equal(lambda: self.launcher.alive(pool), count, f"alive() {when}", self.wait_s)

    def close(self) -> None:
        for pool in self.pools:
            with contextlib.suppress(LauncherFailed):
                self.launcher.stop(pool, 0)


def _starts_what_is_missing(site: _Site) -> None:
    pool = site.pool()
    require_equal(site.launcher.alive(pool), 0, "alive() before start()")
    site.launcher.start(pool)
    require_equal(site.launcher.alive(pool), 2, "alive() after start() of a pool of 2")
    site.launcher.start(pool)
    first, _ = site.programs.until_up(2)
    site.programs.kill(first)
    site.until_alive(pool, 1, "after one of 2 workers was killed")
    site.launcher.start(pool)
    site.programs.until_up(3)
    require_equal(site.launcher.alive(pool), 2, "alive() after start() replaced a killed worker")


def _another_process_finds_them(site: _Site) -> None:
    site.launcher.start(site.pool())
    pool, other = Pool.load(site.pool().folder), site.make()
    assert pool is not None
    require_equal(other.alive(pool), 2, "alive() of a second launcher, which has only the folder of the pool")
    site.programs.until_up(2)
    other.stop(pool, GRACE_S)
    require_equal(site.launcher.alive(pool), 0, "alive() after stop() of a second launcher")


def _workers_have_time_to_save(site: _Site) -> None:
    pool = site.pool()
    site.launcher.start(pool)
    site.programs.until_up(2)
    site.launcher.stop(pool, GRACE_S)
    require_equal(site.programs.saved(), ["SIGTERM", "SIGTERM"], "signals that 2 workers got from stop()")
    require_equal(site.launcher.alive(pool), 0, "alive() after stop()")


def _stubborn_workers_are_killed(site: _Site) -> None:
    pool = site.pool(ending="stubborn", workers=1)
    site.launcher.start(pool)
    (worker,) = site.programs.until_up(1)
    site.launcher.stop(pool, 0.5)
    require_equal(site.launcher.alive(pool), 0, "alive() after stop() of a worker that ignores SIGTERM")
    if worker["host"] == platform.node():
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker["pid"], 0)
            raise AssertionError("a worker that ignores SIGTERM is still there after stop()")


def _an_empty_pool_is_stopped(site: _Site) -> None:
    site.launcher.stop(site.pool(), 0)


def _ended_workers_are_not_alive(site: _Site) -> None:
    pool = site.pool(workers=1)
    site.launcher.start(pool)
    site.programs.until_up(1)
    site.programs.end()
    site.until_alive(pool, 0, "after the only worker ended by itself")
    outcomes = site.launcher.outcomes(pool)
    require(outcomes.keys() <= OUTCOMES, f"outcomes() has {[*outcomes]}, and may have {sorted(OUTCOMES)}")


def _pools_are_apart(site: _Site) -> None:
    first, second = site.pool(name="first", workers=1), site.pool(name="second", workers=1)
    site.launcher.start(first)
    site.launcher.start(second)
    site.programs.until_up(2)
    site.launcher.stop(first, GRACE_S)
    alive = (site.launcher.alive(first), site.launcher.alive(second))
    require_equal(alive, (0, 1), "alive() of two pools after stop() of the first")


def _text_arrives_as_it_is(site: _Site) -> None:
    directory = site.folder / AWKWARD
    directory.mkdir()
    environment = {**site.settings.get("environment", {}), "VALUE": AWKWARD}
    # Slurm writes no logs where there is a backslash.
    name = AWKWARD.replace("\\", "")
    site.launcher.start(site.pool(AWKWARD, name=name, workers=1, environment=environment, directory=directory))
    (worker,) = site.programs.until_up(1)
    require_equal(worker["arguments"][:3], [AWKWARD, "--workers", "1"], "arguments of a worker, see Pool.worker()")
    require_equal(worker["value"], AWKWARD, "a variable of Pool.environment")
    require_equal(worker["directory"], str(directory), "the working directory, Pool.directory")


def _workers_know_their_time_limit(site: _Site) -> None:
    site.launcher.start(site.pool(workers=1, time_limit_s=LIMIT_S))
    (worker,) = site.programs.until_up(1)
    words = worker["arguments"]
    require("--time-limit" in words, f"a worker of a pool with time_limit_s got no --time-limit: {words}")
    limit_s = float(words[words.index("--time-limit") + 1].removesuffix("s"))
    require(0.9 * LIMIT_S < limit_s <= LIMIT_S, f"--time-limit of a worker is {limit_s:g} s, not {LIMIT_S:g} s")


def _output_is_where_logs_says(site: _Site) -> None:
    pool = site.pool(workers=1)
    site.launcher.start(pool)
    (worker,) = site.programs.until_up(1)
    where = Path(site.launcher.logs(pool))
    if where.is_absolute():  # else it is a command
        line = f"worker {worker['pid']}\n"
        wait_until_equal(
            lambda: sum(line in log.read_text() for log in where.parent.glob(where.name)),
            1,
            f"logs at {where}, which logs() names, with the line that a worker printed",
            site.wait_s,
        )


def _unknown_options_are_refused(site: _Site) -> None:
    pool = site.pool(options={**site.settings.get("options", {}), "colour of": "red"})
    require_raises(ConfigurationError, lambda: site.launcher.start(pool), "start() with the option 'colour of'")
    require_equal(site.launcher.alive(pool), 0, "alive() after start() refused an option")


CHECKS: tuple[Callable[[_Site], None], ...] = (
    _an_empty_pool_is_stopped,
    _starts_what_is_missing,
    _another_process_finds_them,
    _workers_have_time_to_save,
    _stubborn_workers_are_killed,
    _ended_workers_are_not_alive,
    _pools_are_apart,
    _text_arrives_as_it_is,
    _workers_know_their_time_limit,
    _output_is_where_logs_says,
    _unknown_options_are_refused,
)


def check_launcher(make: Callable[[], Launcher], folder: Path, *, wait_s: float = WAIT_S, **pool: Any) -> None:
    """Start, count and stop pools of small programs with a launcher, and check the contract of any launcher.

    - `start` starts what is missing and no more; `alive` counts it; a second launcher finds it by the folder.
    - `stop` lets workers save at SIGTERM, kills those that do not end, and leaves other pools alone.
    - Workers get their arguments, variables and directory as they are, and the time limit.
    - Options that the launcher does not know are refused; the output is where `logs` says.

    What the launcher raises otherwise, such as `LauncherFailed`, is raised here.

    Args:
        make: the class of the launcher, or whatever makes one without arguments.
        folder: for what the check writes: an empty directory, which workers see under the same name.
        wait_s: seconds within which workers start and end.
        **pool: fields of `Pool` that workers need there, such as `options={"queue": "debug"}`.

    Raises:
        AssertionError: it breaks the contract; the message says how.
    """
    for check in CHECKS:
        site = _Site(make, folder.absolute() / check.__name__.strip("_"), wait_s, pool)
        try:
            check(site)
        finally:
            site.close()
