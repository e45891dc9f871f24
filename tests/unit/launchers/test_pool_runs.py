"""What a run tells about its pool."""

import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from facts import check_facts
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
