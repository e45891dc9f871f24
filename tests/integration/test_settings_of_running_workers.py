"""Settings of a study are changed while workers train: these hand in and end, and the changed file goes on."""

import ast
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import forked
import phyla
from effort import rarely
from facts import check_facts
from forked import Forked
from phyla.records import Attempt, AttemptState, JobState, StudyState, TrialRecord
from phyla.settings import child_environment
from phyla.study import ConfigChange
from waiting import until

STUDY = """
import time
from pathlib import Path

import phyla

HERE = Path(__file__).parent


def train(trial):
    for _ in trial.steps():
        while (HERE / "hold").exists() and not trial.should_stop:
            time.sleep(0.005)
    (trial.checkpoint_dir / "weights").write_text("w")
    trial.report(score=trial.params["lr"] + trial.end_step)


{functions}

study = phyla.Study(
    "live",
    phyla.Space(lr=phyla.Float(0.01, 1.0, log=True){parameters}),
    phyla.Maximize("score"),
    phyla.PBT(population_size=6, total_steps=40, {settings}),
    train,
    home=HERE / "home",
    storage={storage!r},
)
"""
OLD = "steps_per_trial=5, exploit=phyla.Truncation(0.5)"
GROW = """
def grow(params, rng):
    return {"lr": 1.0}
"""
GROWING = "steps_per_trial=5, exploit=None, explore=phyla.strategies.ExploreWith(grow, after=None)"


@pytest.fixture(params=["sqlite", rarely("postgres")])
def storage(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


def write(folder: Path, settings: str, storage: str | None, *, functions: str = "", parameters: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "study.py"
    file.write_text(
        STUDY.format(settings=settings, storage=storage, functions=functions, parameters=parameters).replace(
            "HERE = Path(__file__).parent", f"HERE = Path({str(folder)!r})"
        )
    )
    return file


def words(*given: object) -> list[object]:
    return ["-m", "phyla.cli", *given]


def change(file: Path, **environment: str) -> str:
    done = forked.run(words("change", file), env=child_environment(environment))
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running(file: Path, workers: int = 1, hosts: int = 1) -> Iterator[list[Forked]]:
    """Run a study as several hosts would, until all workers hold a trial; end whatever is left."""
    (file.parent / "hold").touch()
    started = []
    for host in range(hosts):
        with log_of(file, host).open("w") as log:
            started.append(Forked(words("run", file, "--workers", workers), stdout=log, spares=4 * workers))
    try:
        try:
            until(lambda: held(file) == max(1, workers) * hosts, "workers are held")
        except AssertionError as error:
            raise AssertionError("\n".join(log_of(file, host).read_text() for host in range(hosts))) from error
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def log_of(file: Path, host: int) -> Path:
    return file.parent / f"host-{host}.log"


@contextmanager
def opened(file: Path) -> Iterator[phyla.Results]:
    storage = file.read_text().partition("storage=")[2].partition(",")[0]
    found = phyla.load_study("live", home=file.parent / "home", storage=ast.literal_eval(storage))
    try:
        yield found
    finally:
        found._store.close()


@dataclass(frozen=True)
class Found:
    """What the store has of a study in the end."""

    state: StudyState
    trials: list[TrialRecord]
    attempts: list[Attempt]
    changes: list[ConfigChange]

    def later(self) -> list[TrialRecord]:
        """Return the trials that were decided after the last change."""
        at = self.changes[-1].at
        assert all(row.created_at != at for row in self.trials)
        return [row for row in self.trials if row.created_at > at]


def results(file: Path) -> Found:
    with opened(file) as found:
        return Found(found.state, found.trials(), found.attempts(), found.changes())


def held(file: Path) -> int:
    try:
        with opened(file) as found:
            return len(found.progress().running)
    except phyla.PhylaError:
        return 0


def release(file: Path, processes: list[Forked]) -> list[tuple[int, str]]:
    """Let training go on; return how the runs ended and what they printed."""
    (file.parent / "hold").unlink()
    codes = [process.wait(180) for process in processes]
    return [(code, log_of(file, host).read_text()) for host, code in enumerate(codes)]


def run_again(file: Path, workers: int = 1) -> str:
    """Let training go on until all work is handed in, then run the changed file; return what it said."""
    (file.parent / "hold").unlink()
    until(lambda: held(file) == 0, "nobody is held")
    done = forked.run(words("run", file, "--workers", workers), spares=workers)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended(file: Path, processes: list[Forked]) -> list[str]:
    """Return what the runs of the old file printed; they end by themselves when the study is complete."""
    assert [process.wait(180) for process in processes] == [0] * len(processes)
    return [log_of(file, host).read_text() for host in range(len(processes))]


@pytest.mark.thorough  # below: those of one host
def test_workers_of_several_hosts_hand_in_and_the_changed_file_goes_on(
    tmp_path: Path, storage: str | None
) -> None:
    file = write(tmp_path / "study", OLD, storage)
    with running(file, hosts=2) as processes:
        write(
            tmp_path / "study",
            "steps_per_trial=10, exploit=phyla.strategies.Backtrack(quantile=0.5, pool=0.5), "
            "explore=phyla.strategies.Resample()",
            storage,
            parameters=", decay=phyla.Float(0.0, 1.0, default=0.25)",
        )
        told = change(file)
        check_facts(told, "strategy.steps_per_trial", "5", "10")
        check_facts(told, file)
        check_facts(change(file), file)
        run_again(file)
        for text in ended(file, processes):
            assert "strategy.steps_per_trial" in text
            assert "Traceback" not in text
    found = results(file)
    assert found.state is StudyState.COMPLETED
    rows, later = found.trials, found.later()
    before = [row for row in rows if row not in later]
    assert len(before) == 2
    assert all(row.end_step == 5 and "decay" not in row.params for row in before), (
        "they go on as they were decided"
    )
    assert all(row.state is JobState.COMPLETED for row in rows)
    # Those that had 5 steps train 35 more; the others 40.
    assert len(later) == 2 * 4 + 4 * 4
    assert all("decay" in row.params for row in later)
    assert {row.end_step - row.start_step for row in later} == {10, 5}
    compared: list[Any] = [row.reason.get("compared") for row in later]
    rules = {told["rule"] for told in compared if told and "rule" in told}
    assert rules == {"backtrack"}
    assert all(row.reason["decision"] != "recover" for row in rows), "old supervisors collect nothing"
    assert all(attempt.state is AttemptState.COMPLETED for attempt in found.attempts), "no work was lost"
    assert len({attempt.worker for attempt in found.attempts}) == 2 + 1, "workers with old settings got nothing"


def test_a_new_function_comes_from_the_changed_file(tmp_path: Path, storage: str | None) -> None:
    file = write(tmp_path / "study", OLD, storage)
    with running(file) as processes:
        write(tmp_path / "study", GROWING, storage, functions=GROW)
        change(file)
        run_again(file)
        (text,) = ended(file, processes)
    assert "strategy.explore.function" in text
    assert "Traceback" not in text
    found = results(file)
    assert found.state is StudyState.COMPLETED
    assert len(found.trials) == 6 * 8
    assert all(attempt.state is AttemptState.COMPLETED for attempt in found.attempts), "no work was lost"
    assert all(row.params["lr"] == 1.0 for row in found.later() if row.generation)


def test_workers_go_on_when_their_settings_come_back(tmp_path: Path) -> None:
    file = write(tmp_path / "study", OLD, None)
    with running(file) as processes:
        write(tmp_path / "study", "steps_per_trial=10, exploit=None", None)
        change(file)
        (file.parent / "hold").unlink()
        until(lambda: "the settings of the study were changed" in log_of(file, 0).read_text(), "it is said")
        write(tmp_path / "study", OLD, None)
        change(file)
        ended(file, processes)
    found = results(file)
    assert found.state is StudyState.COMPLETED
    assert {row.end_step - row.start_step for row in found.trials} == {5}


def test_a_module_that_only_the_database_names_is_never_imported(tmp_path: Path) -> None:
    file = write(tmp_path / "study", OLD, None)
    with running(file) as processes:
        elsewhere = tmp_path / "elsewhere"
        other = write(elsewhere, GROWING, None, functions="from growing import grow")
        other.write_text(other.read_text().replace(str(elsewhere), str(tmp_path / "study")))
        (elsewhere / "growing.py").write_text(GROW)
        change(other, PYTHONPATH=str(elsewhere))
        # Were it imported, it could be.
        (file.parent / "growing.py").write_text(
            "import pathlib\npathlib.Path(__file__).with_name('pwned').touch()"
        )
        (file.parent / "hold").unlink()
        until(lambda: "the settings of the study were changed" in log_of(file, 0).read_text(), "it is said")
        processes[0].send_signal(signal.SIGINT)
        assert processes[0].wait(180) == 130
    assert "Traceback" not in log_of(file, 0).read_text()
    assert not (file.parent / "pwned").exists()
    found = results(file)
    assert [attempt.state for attempt in found.attempts] == [AttemptState.COMPLETED], "it was handed in"
    assert found.later() == [], "nothing was decided by the old settings"


def test_without_worker_processes_the_run_ends_and_says_what_changed(tmp_path: Path) -> None:
    file = write(tmp_path / "study", OLD, None)
    with running(file, workers=0) as processes:
        write(tmp_path / "study", GROWING, None, functions=GROW)
        change(file)
        ((code, text),) = release(file, processes)
    assert code == 2
    assert "strategy.explore" in text
    assert "Traceback" not in text
    found = results(file)
    assert [attempt.state for attempt in found.attempts] == [AttemptState.COMPLETED]
    again = forked.run(words("run", file, "--workers", 0))
    assert again.returncode == 0
    assert results(file).state is StudyState.COMPLETED


@pytest.mark.parametrize(
    ("settings", "match"),
    [("steps_per_trial=5, quorum=1.5", "quorum"), ("steps_per_trial=0", "steps_per_trial")],
)
def test_what_cannot_be_changed_is_refused_and_changes_nothing(tmp_path: Path, settings: str, match: str) -> None:
    file = write(tmp_path / "study", OLD, None)
    found = forked.run(words("change", file))
    assert (found.returncode, "start it first, with phyla run" in found.stderr) == (2, True), found.stderr
    with running(file) as processes:
        write(tmp_path / "study", settings, None)
        refused = forked.run(words("change", file))
        assert refused.returncode == 2
        assert match in refused.stderr
        assert "Traceback" not in refused.stderr
        ((code, text),) = release(file, processes)
    assert code == 0, text
    assert results(file).changes == []
