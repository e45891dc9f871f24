"""Workers that reach their studies through a service keep what they have when it goes away."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from durability import check_whole, load, start
from phyla.records import StudyState
from phyla.store import open_store
from serving import Service

ENDS_S = 120.0


@pytest.mark.parametrize("suites", [False, True], ids=["", "evaluated"])
def test_a_service_that_is_killed_and_started_again(tmp_path: Path, suites: bool) -> None:
    home = tmp_path / "home"
    with Service("--home", str(tmp_path / "service")) as service:
        running = start(home, storage=service.url, workers=2, sleep_s=0.05, trials=8, evaluated=suites)
        ended = threading.Event()

        def kill() -> None:
            behind = open_store(f"sqlite:///{tmp_path}/service/phyla.db")
            for wanted in (3, 12):
                while not ended.wait(0.02):
                    studies = behind.studies()
                    if studies:
                        with behind.reader(studies[0].id) as reader:
                            if reader.counts().get("completed", 0) >= wanted:
                                break
                service.stop(signal.SIGKILL)
                service.start()
            behind.close()

        killer = threading.Thread(target=kill)
        killer.start()
        output, _ = running.communicate(timeout=ENDS_S)
        ended.set()
        killer.join()
        assert running.returncode == 0, output
    storage = f"sqlite:///{tmp_path}/service/phyla.db"
    results = load(home, storage)
    check_whole(results, members=4, trials=8)
    assert not [attempt for attempt in results.attempts() if attempt.error], "no trial was repeated"


def test_a_paused_service_is_waited_for(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Service("--home", str(tmp_path / "service")) as service:
        running = start(home, storage=service.url, workers=1, trials=4)
        behind = open_store(f"sqlite:///{tmp_path}/service/phyla.db")
        while not behind.studies():
            time.sleep(0.01)
        os.kill(service.process.pid, signal.SIGSTOP)
        assert behind.studies()[0].state is StudyState.RUNNING
        os.kill(service.process.pid, signal.SIGCONT)
        output, _ = running.communicate(timeout=ENDS_S)
        assert running.returncode == 0, output
        assert behind.studies()[0].state is StudyState.COMPLETED
        behind.close()
