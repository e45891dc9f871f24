"""What a run tells about its pool."""

import errno
import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from facts import check_facts
from phyla.errors import LauncherFailed
from phyla.launchers import Launcher, Pool
from phyla.launchers.pools import PoolRun
from phyla.supervision.term import Term


class Full(Launcher):
    """An engine that has no room for workers, for other reasons at each look."""

    def __init__(self, *looks: Mapping[str, int]) -> None:
        self._looks = iter(looks)
        self.look()

    def look(self) -> bool:
        """Go on to the next reasons; return whether there are more."""
        self._now = next(self._looks, None)
        return self._now is not None

    def start(self, pool: Pool) -> None: ...

    def alive(self, pool: Pool) -> int:
        return pool.workers

    def stop(self, pool: Pool, grace_s: float) -> None: ...

    def outcomes(self, pool: Pool) -> Mapping[str, int]:
        return {"queued": sum((self._now or {}).values())}

    def reasons(self, pool: Pool) -> Mapping[str, int]:
        return {reason: count for reason, count in (self._now or {}).items() if reason}

    def logs(self, pool: Pool) -> str:
        return ""


class Losing(Full):
    """An engine that has lost all workers until they are started again; the first start fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._errors = [error]
        self.started = self.stopped = 0

    def start(self, pool: Pool) -> None:
        if self._errors:
            raise self._errors.pop()
        self.started += 1

    def alive(self, pool: Pool) -> int:
        return pool.workers if self.started else 0

    def stop(self, pool: Pool, grace_s: float) -> None:
        self.stopped += 1


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device", "pool.json"), ConnectionResetError(), LauncherFailed("off")],
)
def test_a_failure_while_a_worker_is_replaced_does_not_stop_the_pool(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Losing(error)
    monkeypatch.setattr("phyla.launchers.pools.launcher_named", lambda name: engine)
    monkeypatch.setattr("phyla.launchers.pools.LOOK_S", (0.0, 0.0))
    monkeypatch.setattr("phyla.launchers.pools.STATE_S", 0.0)
    pool = Pool(name="p", launcher="losing", command=["true"], workers=3, folder=tmp_path / "p")
    pool.save()
    # The study ends once all workers are there.
    client: Any = SimpleNamespace(is_active=lambda: not engine.started, collect=lambda: None)
    how: dict[str, Any] = dict.fromkeys(("progress", "on_loss", "on_tick", "on_interrupt"), lambda: 0)
    run = PoolRun(client=client, pool=pool, term=Term(), **how)
    with caplog.at_level(logging.WARNING, "phyla"):
        run._attend()
    assert len(caplog.messages) == 1
    assert (engine.started, engine.stopped) == (1, 0)


def test_a_run_tells_once_for_each_reason_that_workers_are_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Full(
        {}, {}, {"": 3}, {"Priority": 2}, {"Priority": 1}, {}, {"Priority": 3}, {"Priority": 1, "Limit": 1}
    )
    monkeypatch.setattr("phyla.launchers.pools.launcher_named", lambda name: engine)
    monkeypatch.setattr("phyla.launchers.pools.LOOK_S", (0.0, 0.0))
    monkeypatch.setattr("phyla.launchers.pools.STATE_S", 0.0)
    client: Any = SimpleNamespace(is_active=engine.look, collect=lambda: None)
    how: dict[str, Any] = dict.fromkeys(("progress", "on_loss", "on_tick", "on_interrupt"), lambda: 0)
    pool = Pool(name="p", launcher="full", command=["true"], workers=3, folder=tmp_path / "p")
    with caplog.at_level(logging.WARNING, "phyla"):
        assert PoolRun(client=client, pool=pool, term=Term(), **how).run()
    told = caplog.messages
    assert len(told) == 3
    check_facts(told[0], "3 of 3")
    check_facts(told[1], "2 of 3", "2 Priority")
    check_facts(told[2], "2 of 3", "1 Priority", "1 Limit")
