"""Workers that reach their studies through a service keep what they have when it goes away."""

import signal
import threading
from pathlib import Path

import pytest

import phyla
from durability import check_whole, load, start
from effort import rarely
from forked import Forked
from phyla.records import StudyState
from phyla.store import Store, open_store
from serving import Service
from waiting import until

ENDS_S = 180.0


@pytest.mark.parametrize("suites", [rarely(False), True])
def test_a_service_that_is_killed_and_started_again(tmp_path: Path, suites: bool) -> None:
    home = tmp_path / "home"
    with Service("--home", str(tmp_path / "service")) as service:
        running = start(home, storage=service.url, workers=2, sleep_s=0.05, trials=4, evaluated=suites)
        ended = threading.Event()

        def kill() -> None:
            behind = open_store(f"sqlite:///{tmp_path}/service/phyla.db")
            for wanted in (2, 7):
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
    check_whole(results, members=4, trials=4)
    assert not [attempt for attempt in results.attempts() if attempt.error], "no trial was repeated"


# Below: Ctrl-C while the service is away.
@pytest.mark.parametrize("number", [rarely(signal.SIGINT), signal.SIGTERM])
def test_a_run_whose_service_is_silent_ends_when_it_is_told_to(tmp_path: Path, number: int) -> None:
    with Service("--home", str(tmp_path / "service")) as service:
        running = start(tmp_path / "home", storage=service.url, workers=1, sleep_s=0.5, trials=99, grace_s=2.0)
        behind = open_store(f"sqlite:///{tmp_path}/service/phyla.db")
        until(lambda: bool(behind.studies()) and completed(behind) > 0, "a trial", process=running)
        service.process.send_signal(signal.SIGSTOP)
        running.send_signal(number)
        running.wait(120)
        service.process.send_signal(signal.SIGCONT)
        assert running.returncode != 0, running.printed()
        behind.close()


def completed(store: Store) -> int:
    (study,) = store.studies()
    with store.reader(study.id) as reader:
        return reader.counts().get("completed", 0)


STUDY = """
name = "moved"
command = ["sh", "{folder}/train.sh", "{{lr}}", "{{end_step}}", "{{save_to}}", "{{metrics}}"]
objective = "minimize loss"

[space]
lr = {{ low = 0.1, high = 1.0 }}

[pbt]
population_size = 4
steps_per_trial = 10
total_steps = 30
"""
TRAIN = """
while [ "$2" -gt 10 ] && [ ! -e "${0%/*}/go-on" ]; do sleep 0.1; done
echo "$1" > "$3/weights"
echo "{\\"step\\": $2, \\"loss\\": $1}" >> "$4"
"""


def test_a_study_moves_to_a_service_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(TRAIN)
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(folder=tmp_path))
    home, command = tmp_path / "home", ("-m", "phyla.cli")
    here = Forked([*command, "--home", home, "run", file, "--workers", 1], spares=1)
    storage = f"sqlite:///{home}/phyla.db"

    def completed() -> int:
        return load_any("moved", storage).counts().get("completed", 0)

    until(
        lambda: (home / "phyla.db").exists() and "moved" in names(storage) and completed() > 0,
        "a trial",
        process=here,
    )
    with Service("--home", str(home)) as service:
        places = ("--home", tmp_path / "other", "--server", service.url, "--checkpoints", home / "checkpoints")
        there = Forked([*command, *places, "worker", file, "--workers", 1], spares=1)
        until(
            lambda: len({row.worker.split(":")[-1] for row in load_any("moved", storage).attempts()}) > 1,
            "another worker",
            process=there,
        )
        here.send_signal(signal.SIGTERM)
        assert here.wait(ENDS_S) == 75
        (tmp_path / "go-on").touch()
        assert there.wait(ENDS_S) == 0
    results = load_any("moved", storage)
    assert results.state is StudyState.COMPLETED
    assert sum(trial.end_step - trial.start_step for trial in results.trials() if trial.fitness is not None) == 120


@pytest.mark.thorough  # test_preemption.py; above: a service
def test_a_run_that_is_preempted_leaves_the_study_to_other_machines(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(TRAIN)
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(folder=tmp_path))
    with Service("--home", str(tmp_path / "service")) as service:
        places = ("--home", tmp_path / "home", "--server", service.url)
        command = ("-m", "phyla.cli", *places, "run", file, "--workers", 1)
        storage = f"sqlite:///{tmp_path}/service/phyla.db"
        first = Forked(command)
        until(
            lambda: "moved" in names(storage) and load_any("moved", storage).attempts(), "it trains", process=first
        )
        first.send_signal(signal.SIGTERM)
        assert first.wait(ENDS_S) == 75
        assert load_any("moved", storage).state is StudyState.RUNNING
        (tmp_path / "go-on").touch()
        assert Forked(command).wait(ENDS_S) == 0
    assert load_any("moved", storage).state is StudyState.COMPLETED


@pytest.mark.parametrize("workers", [0, 1])
def test_ctrl_c_ends_a_run_whose_service_is_away(tmp_path: Path, workers: int) -> None:
    (tmp_path / "train.sh").write_text(TRAIN)
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(folder=tmp_path))
    storage = f"sqlite:///{tmp_path}/service/phyla.db"
    with Service("--home", str(tmp_path / "service")) as service:
        places = ("--home", tmp_path / "home", "--server", service.url)
        run = Forked(("-m", "phyla.cli", *places, "run", file, "--workers", workers), spares=workers)
        until(
            lambda: "moved" in names(storage) and load_any("moved", storage).attempts(), "it trains", process=run
        )
        service.stop(signal.SIGKILL)

        def ended() -> bool:
            run.send_signal(signal.SIGINT)
            return run.poll() is not None

        until(ended, "it ends", timeout_s=60.0)


def names(storage: str) -> list[str]:
    store = open_store(storage)
    found = [study.name for study in store.studies()]
    store.close()
    return found


def load_any(name: str, storage: str) -> phyla.Results:
    return phyla.load_study(name, storage=storage)
