"""`check_launcher` says what a launcher does wrong, with real processes."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phyla.launchers import Launcher, Pool
from phyla.launchers.local import Local
from phyla.testing import check_launcher


class Planted(Launcher):
    """Does what `Local` does."""

    def start(self, pool: Pool) -> None:
        Local().start(pool)

    def alive(self, pool: Pool) -> int:
        return Local().alive(pool)

    def stop(self, pool: Pool, grace_s: float) -> None:
        Local().stop(pool, grace_s)

    def outcomes(self, pool: Pool) -> Mapping[str, int]:
        return Local().outcomes(pool)

    def logs(self, pool: Pool) -> str:
        return Local().logs(pool)


class StartsOneMore(Planted):
    def start(self, pool: Pool) -> None:
        Local().start(replace(pool, workers=pool.workers + 1))


class Forgets(Planted):
    def __init__(self) -> None:
        self.started = False

    def start(self, pool: Pool) -> None:
        self.started = True
        Local().start(pool)

    def alive(self, pool: Pool) -> int:
        return Local().alive(pool) if self.started else 0


class KillsAtOnce(Planted):
    def stop(self, pool: Pool, grace_s: float) -> None:
        for file in pool.folder.parents[1].glob("programs/*.up"):
            file.with_suffix(".kill").touch()
        while Local().alive(pool):
            pass


class LeavesStubborn(Planted):
    def __init__(self) -> None:
        self.stopped = False

    def alive(self, pool: Pool) -> int:
        return 0 if self.stopped else Local().alive(pool)

    def stop(self, pool: Pool, grace_s: float) -> None:
        if "stubborn" not in pool.command:
            Local().stop(pool, grace_s)
        self.stopped = self.stopped or grace_s > 0
        if not grace_s:
            Local().stop(pool, grace_s)


class StopsAll(Planted):
    def stop(self, pool: Pool, grace_s: float) -> None:
        for folder in pool.folder.parent.iterdir():
            Local().stop(replace(pool, folder=folder), grace_s)


class InventsStates(Planted):
    def outcomes(self, pool: Pool) -> Mapping[str, int]:
        return {"vanished": 1}


class CountsInWords(Planted):
    def outcomes(self, pool: Pool) -> Any:
        return {"completed": "one"}


class HasNoOutcomes(Planted):
    def outcomes(self, pool: Pool) -> Any:
        return None


class HasNoLogs(Planted):
    def logs(self, pool: Pool) -> Any:
        return None


class LosesVariables(Planted):
    def start(self, pool: Pool) -> None:
        Local().start(replace(pool, environment={}))


class StaysWhereItIs(Planted):
    def start(self, pool: Pool) -> None:
        Local().start(replace(pool, directory=pool.folder))


class LosesTheLimit(Planted):
    def start(self, pool: Pool) -> None:
        Local().start(replace(pool, time_limit_s=None))


class IgnoresOptions(Planted):
    def start(self, pool: Pool) -> None:
        Local().start(replace(pool, options={}))


class RaisesAnotherError(Planted):
    def start(self, pool: Pool) -> None:
        if pool.options:
            raise ValueError("what is this?")
        Local().start(pool)


def test_a_launcher_that_does_nothing_wrong_passes(tmp_path: Path) -> None:
    check_launcher(Planted, tmp_path)


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        ("local", ("class of the launcher",)),
        (StartsOneMore, ("alive() after start() of a pool of 2", "3")),
        (Forgets, ("second launcher", "got 0")),
        (KillsAtOnce, ("SIGTERM", "got []")),
        (LeavesStubborn, ("ignores SIGTERM",)),
        (StopsAll, ("two pools", "(0, 0)")),
        (InventsStates, ("outcomes()", "vanished")),
        (CountsInWords, ("outcomes()", "'one'", "integer")),
        (HasNoOutcomes, ("outcomes()", "None")),
        (HasNoLogs, ("logs()", "None")),
        (LosesVariables, ("Pool.environment", "None")),
        (StaysWhereItIs, ("Pool.directory",)),
        (LosesTheLimit, ("--time-limit",)),
        (IgnoresOptions, ("colour of", "ConfigurationError")),
        (RaisesAnotherError, ("colour of", "ValueError (what is this?)", "ConfigurationError")),
    ],
)
def test_what_a_launcher_does_wrong_is_named(make: Any, facts: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        check_launcher(make, tmp_path)
    assert [fact for fact in facts if fact not in str(caught.value)] == []
