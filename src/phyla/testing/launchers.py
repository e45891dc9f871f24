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
"""Reports that it is up; ends at a signal or once a file is there; if it is `stubborn`, only with SIGKILL."""

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
class _Fleet:
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


def _starts_what_is_missing(fleet: _Fleet) -> None:
    pool = fleet.pool()
    require_equal(fleet.launcher.alive(pool), 0, "alive() before start()")
    fleet.launcher.start(pool)
    require_equal(fleet.launcher.alive(pool), 2, "alive() after start() of a pool of 2")
    fleet.launcher.start(pool)
    first, _ = fleet.programs.until_up(2)
    fleet.programs.kill(first)
    fleet.until_alive(pool, 1, "after one of 2 workers was killed")
    fleet.launcher.start(pool)
    fleet.programs.until_up(3)
    require_equal(fleet.launcher.alive(pool), 2, "alive() after start() replaced a killed worker")


def _another_process_finds_them(fleet: _Fleet) -> None:
    fleet.launcher.start(fleet.pool())
    pool, other = Pool.load(fleet.pool().folder), fleet.make()
    assert pool is not None
    require_equal(other.alive(pool), 2, "alive() of a second launcher, which has only the folder of the pool")
    fleet.programs.until_up(2)
    other.stop(pool, GRACE_S)
    require_equal(fleet.launcher.alive(pool), 0, "alive() after stop() of a second launcher")


def _workers_have_time_to_save(fleet: _Fleet) -> None:
    pool = fleet.pool()
    fleet.launcher.start(pool)
    fleet.programs.until_up(2)
    fleet.launcher.stop(pool, GRACE_S)
    require_equal(fleet.programs.saved(), ["SIGTERM", "SIGTERM"], "signals that 2 workers got from stop()")
    require_equal(fleet.launcher.alive(pool), 0, "alive() after stop()")


def _stubborn_workers_are_killed(fleet: _Fleet) -> None:
    pool = fleet.pool(ending="stubborn", workers=1)
    fleet.launcher.start(pool)
    (worker,) = fleet.programs.until_up(1)
    fleet.launcher.stop(pool, 0.5)
    require_equal(fleet.launcher.alive(pool), 0, "alive() after stop() of a worker that ignores SIGTERM")
    if worker["host"] == platform.node():
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker["pid"], 0)
            raise AssertionError("a worker that ignores SIGTERM is still there after stop()")


def _an_empty_pool_is_stopped(fleet: _Fleet) -> None:
    fleet.launcher.stop(fleet.pool(), 0)


def _ended_workers_are_not_alive(fleet: _Fleet) -> None:
    pool = fleet.pool(workers=1)
    fleet.launcher.start(pool)
    fleet.programs.until_up(1)
    fleet.programs.end()
    fleet.until_alive(pool, 0, "after the only worker ended by itself")
    outcomes = fleet.launcher.outcomes(pool)
    require(isinstance(outcomes, Mapping), f"outcomes() returned {outcomes!r}, and has to return a mapping")
    require(outcomes.keys() <= OUTCOMES, f"outcomes() has {[*outcomes]}, and may have {sorted(OUTCOMES)}")
    counts = [type(count) is int and count >= 0 for count in outcomes.values()]
    require(all(counts), f"outcomes() returned {outcomes!r}, and each of its counts has to be an integer")


def _pools_are_apart(fleet: _Fleet) -> None:
    first, second = fleet.pool(name="first", workers=1), fleet.pool(name="second", workers=1)
    fleet.launcher.start(first)
    fleet.launcher.start(second)
    fleet.programs.until_up(2)
    fleet.launcher.stop(first, GRACE_S)
    alive = (fleet.launcher.alive(first), fleet.launcher.alive(second))
    require_equal(alive, (0, 1), "alive() of two pools after stop() of the first")


def _text_arrives_as_it_is(fleet: _Fleet) -> None:
    directory = fleet.folder / AWKWARD
    directory.mkdir()
    environment = {**fleet.settings.get("environment", {}), "VALUE": AWKWARD}
    # Slurm writes no logs where there is a backslash.
    name = AWKWARD.replace("\\", "")
    fleet.launcher.start(fleet.pool(AWKWARD, name=name, workers=1, environment=environment, directory=directory))
    (worker,) = fleet.programs.until_up(1)
    require_equal(worker["arguments"][:3], [AWKWARD, "--workers", "1"], "arguments of a worker, see Pool.worker()")
    require_equal(worker["value"], AWKWARD, "a variable of Pool.environment")
    require_equal(worker["directory"], str(directory), "the working directory, Pool.directory")


def _workers_know_their_time_limit(fleet: _Fleet) -> None:
    fleet.launcher.start(fleet.pool(workers=1, time_limit_s=LIMIT_S))
    (worker,) = fleet.programs.until_up(1)
    words = worker["arguments"]
    require("--time-limit" in words, f"a worker of a pool with time_limit_s got no --time-limit: {words}")
    limit_s = float(words[words.index("--time-limit") + 1].removesuffix("s"))
    require(0.9 * LIMIT_S < limit_s <= LIMIT_S, f"--time-limit of a worker is {limit_s:g} s, not {LIMIT_S:g} s")


def _output_is_where_logs_says(fleet: _Fleet) -> None:
    pool = fleet.pool(workers=1)
    fleet.launcher.start(pool)
    (worker,) = fleet.programs.until_up(1)
    logs: object = fleet.launcher.logs(pool)
    require(isinstance(logs, str) and logs, f"logs() returned {logs!r}, and has to return a path or a command")
    where = Path(str(logs))
    if where.is_absolute():  # else it is a command
        line = f"worker {worker['pid']}\n"
        wait_until_equal(
            lambda: sum(line in log.read_text() for log in where.parent.glob(where.name)),
            1,
            f"logs at {where}, which logs() names, with the line that a worker printed",
            fleet.wait_s,
        )


def _unknown_options_are_refused(fleet: _Fleet) -> None:
    pool = fleet.pool(options={**fleet.settings.get("options", {}), "colour of": "red"})
    require_raises(ConfigurationError, lambda: fleet.launcher.start(pool), "start() with the option 'colour of'")
    require_equal(fleet.launcher.alive(pool), 0, "alive() after start() refused an option")


CHECKS: tuple[Callable[[_Fleet], None], ...] = (
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
    - Options that the launcher does not know are rejected; the output is where `logs` says.

    What the launcher raises otherwise, such as `LauncherFailed`, is raised here.

    Args:
        make: the class of the launcher, or whatever makes one without arguments.
        folder: for what the check writes: an empty directory, which workers see under the same name.
        wait_s: seconds within which workers start and end.
        **pool: fields of `Pool` that workers need there, such as `options={"queue": "debug"}`.

    Raises:
        AssertionError: it breaks the contract; the message says how.
    """
    require(
        callable(make),
        f"check_launcher({make!r}, ...): give the class of the launcher, as in check_launcher(Local, ...)",
    )
    for check in CHECKS:
        fleet = _Fleet(make, folder.absolute() / check.__name__.strip("_"), wait_s, pool)
        try:
            check(fleet)
        finally:
            fleet.close()
