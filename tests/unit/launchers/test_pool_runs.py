"""What a run tells about its pool."""

import errno
import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from facts import check_facts
from phyla.errors import AccessDenied, LauncherFailed, SchemaMismatch, StoreError, StoreUnavailable
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


class Failing(Full):
    """An engine that counts how often its workers are stopped, for a study whose store fails."""

    def __init__(self, *errors: StoreError) -> None:
        super().__init__()
        self._errors = iter(errors)
        self.started, self.stopped = False, 0

    def start(self, pool: Pool) -> None:
        self.started = True

    def alive(self, pool: Pool) -> int:
        return pool.workers if self.started else 0

    def stop(self, pool: Pool, grace_s: float) -> None:
        self.stopped += 1

    def is_active(self) -> bool:
        """Fail in each way once, after the pool was started; then the study has ended."""
        for error in self._errors if self.started else ():
            raise error
        return not self.started


def run_failing(engine: Failing, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.launchers.pools.launcher_named", lambda name: engine)
    monkeypatch.setattr("phyla.launchers.pools.STATE_S", 0.0)
    pool = Pool(name="p", launcher="failing", command=["true"], workers=3, folder=folder / "p")
    client: Any = SimpleNamespace(
        is_active=engine.is_active,
        collect=lambda: None,
        store=SimpleNamespace(hold_on=lambda patience_s: None),
    )
    how: dict[str, Any] = dict.fromkeys(("progress", "on_loss", "on_tick", "on_interrupt"), lambda: 0)
    PoolRun(client=client, pool=pool, term=Term(), **how).run()


def test_a_run_warns_once_of_a_store_that_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = [StoreUnavailable("it is away")] * 3
    with caplog.at_level(logging.WARNING, "phyla"):
        run_failing(Failing(*away, StoreUnavailable("it starts"), *away), tmp_path, monkeypatch)
    assert [message.split(";")[0] for message in caplog.messages] == ["it is away", "it starts", "it is away"]


@pytest.mark.parametrize("error", [AccessDenied("unknown or expired token"), SchemaMismatch("newer")])
def test_a_run_whose_store_refuses_it_stops_its_pool_and_fails(
    error: StoreError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Failing(StoreUnavailable("it is away"), error)
    with pytest.raises(type(error)):
        run_failing(engine, tmp_path, monkeypatch)
    assert engine.stopped == 1


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
