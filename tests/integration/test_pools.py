"""Pools of workers on this machine: `phyla run --launcher local`, `phyla up`, `down` and `workers`."""

import json
import os
import re
import signal
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

import forked
from command_line import Phyla
from effort import rarely
from facts import check_facts
from failing_disk import without_rights
from phyla.launchers import Pool
from phyla.launchers.local import Local
from phyla.records import JobState, Role, StudyState
from phyla.service.tokens import create
from phyla.settings import child_environment
from phyla.store import open_store
from pooled import TRIALS, Pooled, pids
from serving import served
from waiting import until

ONE = ("--launcher", "local", "--workers", 1)

CLOSED = "127.0.0.1:1"
"""An address at which nothing listens."""

IMPORT = "from phyla.study_modules import command_line\n"
"""What a study file does not see otherwise: the command line of the process that reads it."""


@pytest.fixture
def toy(tmp_path: Path) -> Pooled:
    return Pooled(tmp_path / "it's a $HOME")


def test_a_run_starts_a_pool_replaces_what_is_lost_and_stops_it(toy: Pooled) -> None:
    run = toy.run(*ONE)
    toy.until_waiting(1)
    (row,) = toy.workers
    assert (row["pool"], row["launcher"], row["alive"], row["workers"]) == ("toy", "local", 1, 1)
    assert row["files"] == [str(toy.file)]
    before = pids(toy.pool)
    os.kill(before[0], signal.SIGKILL)
    until(lambda: len({*pids(toy.pool)} - {*before}) == 1, "the lost worker is replaced")
    (toy.home / "pools/toy/pool.json").write_text("")
    run.read_until("phyla down toy --forget")
    toy.go_on()
    printed, _ = run.communicate(180)
    assert run.returncode == 0, printed
    assert f"{TRIALS} trials completed" in printed
    assert toy.completed()
    assert toy.workers == []
    # Its log stays. The run may have stopped it before it could print that the study is completed.
    assert f"of {TRIALS} trials" in (toy.home / "pools/toy/worker-0.log").read_text()


@pytest.mark.parametrize("number", [rarely(signal.SIGKILL), signal.SIGHUP])
def test_a_run_that_is_killed_or_loses_its_terminal_leaves_the_pool_at_work(toy: Pooled, number: int) -> None:
    run = toy.run(*ONE)
    toy.until_waiting(1)
    run.send_signal(number)
    printed, _ = run.communicate(180)
    assert run.returncode == (75 if number == signal.SIGHUP else -number), printed
    assert toy.results.state is StudyState.RUNNING
    assert Local().alive(toy.pool) == 1
    before = pids(toy.pool)
    again = toy.run(*ONE)
    again.read_until("2 of 6 trials")
    assert pids(toy.pool) == before
    toy.go_on()
    printed, _ = again.communicate(180)
    assert again.returncode == 0, printed
    assert toy.completed()


@pytest.mark.thorough  # the test above loses it later
def test_a_run_that_loses_its_terminal_before_its_workers_begin_leaves_the_study_to_them(toy: Pooled) -> None:
    begins = "while 'worker' in command_line() and not (HERE / 'begin').exists():\n    time.sleep(0.01)\n"
    toy.file.write_text(toy.file.read_text().replace("def train", f"{IMPORT}{begins}\ndef train", 1))
    toy.go_on()
    run = toy.run(*ONE)
    folder = toy.home / "pools" / "toy"
    until(lambda: (pool := Pool.load(folder)) is not None and Local().alive(pool) == 1, "the worker is started")
    run.send_signal(signal.SIGHUP)
    printed, _ = run.communicate(180)
    assert run.returncode == 75, printed
    assert toy.results.state is StudyState.RUNNING
    (toy.folder / "begin").touch()
    until(toy.completed, "the pool completes the study")
    toy.call("down", "toy")


def test_an_interrupted_run_stops_its_pool(toy: Pooled) -> None:
    run = toy.run(*ONE)
    toy.until_waiting(1)
    pool = toy.pool
    run.send_signal(signal.SIGINT)
    printed, _ = run.communicate(180)
    assert run.returncode == 130, printed
    check_facts(printed, "1 trial", "1 will continue")
    assert Local().alive(pool) == 0
    assert toy.results.state is StudyState.STOPPED
    assert [trial.state for trial in toy.results.trials()].count(JobState.PENDING) == 1
    toy.go_on()
    toy.call("run", toy.file, "--workers", 0)
    assert toy.completed()


@pytest.mark.thorough  # test_supervision.py: the same without a pool
def test_workers_that_die_again_and_again_end_the_run_with_their_log(
    toy: Pooled, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phyla.launchers.pools.LOST", 2)
    monkeypatch.setenv("PHYLA_HOME", str(toy.home))
    text = toy.file.read_text()
    toy.file.write_text(
        f'{text}{IMPORT}if "worker" in command_line():\n    print("no such GPU", flush=True)\n    exit(7)\n'
    )
    printed = cli("run", toy.file, "--launcher", "local", "--workers", 1, code=1)
    check_facts(printed, "3 workers", "'toy'")
    assert "no such GPU" in printed
    assert toy.results.state is StudyState.FAILED
    assert toy.workers == []


def test_down_ends_the_run_that_attends_to_the_pool(toy: Pooled) -> None:
    run = toy.run(*ONE)
    toy.until_waiting(1)
    assert "pool toy is stopped" in toy.call("down", "toy")
    printed, _ = run.communicate(180)
    assert run.returncode == 75, printed
    check_facts(printed, "toy", "phyla down")


def test_a_pool_serves_several_studies_in_turn_and_waits_for_them(
    tmp_path: Path, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Pooled(tmp_path, "one"), Pooled(tmp_path, "other")
    one.go_on()
    # Modules of one study are not seen by the other.
    for study in (one, other):
        folder = tmp_path / f"of {study.name}"
        folder.mkdir()
        study.file = study.file.rename(folder / study.file.name)
        (folder / "mine.py").write_text(f"name = {study.name!r}\n")
        text = study.file.read_text().replace("import phyla", "import mine\nimport phyla", 1)
        text = text.replace("Path(__file__).parent", "Path(__file__).parents[1]")
        study.file.write_text(
            text.replace("    trained = ", f"    assert mine.name == {study.name!r}\n    trained = ")
        )
    up = ("up", one.file, other.file, "--name", "both", "--workers", 1)
    monkeypatch.setenv("PHYLA_HOME", str(one.home))
    assert "pool both: 1 of 1 worker alive" in cli(*up)
    told = cli(*up)
    assert "pool both: 1 of 1 worker alive" in told
    check_facts(told, "phyla run", "phyla watch")
    log = one.home / "pools/both/worker-0.log"
    pool = Pool.load(log.parent)
    assert pool is not None
    until(lambda: "there is no study" in log.read_text(), "it waits")
    for study in (other, one):
        # The run trains all trials, since the worker looks for studies from time to time.
        study.call("run", study.file, "--workers", 0)
        assert study.completed()
    until(lambda: Local().alive(pool) == 0, "all studies are completed")
    (row,) = json.loads(cli("workers", "--json"))
    assert "is completed: 6 of 6 trials" in row["last_lines"]["worker-0.log"]
    cli("down", "both")


def test_a_pool_whose_service_is_gone_or_refuses_it_says_so(
    toy: Pooled, cli: Phyla, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("phyla.store.remote.LOOK_S", 0.2)
    monkeypatch.setenv("PHYLA_HOME", str(toy.home))
    with closing(open_store("memory://")) as store, served(store) as url:
        create(store, "somebody", Role.WORKER)
        monkeypatch.setenv("PHYLA_TOKEN", "wrong")
        check_facts(cli("up", toy.file, "--server", url, code=1), "PHYLA_TOKEN")
        assert json.loads(cli("workers", "--json")) == []
    assert "pool toy: 1 of 1 worker alive" in cli("up", toy.file, "--server", url, "--workers", 1)
    check_facts(caplog.text, "warning", url)
    with monkeypatch.context() as patched:
        # As Ray prints what happens to its nodes.
        patched.setattr(Local, "alive", lambda *_: print("a node died") or 1)
        assert json.loads(cli("workers", "--json"))[0]["alive"] == 1
    until(
        lambda: "cannot be reached: [Errno 111] Connection refused; trying again" in cli("workers"), "it says why"
    )
    cli("down", "toy", "--grace", "1s")


def test_a_pool_of_that_name_that_runs_something_else_is_left_alone(toy: Pooled) -> None:
    toy.call("up", toy.file, "--workers", 2)
    assert toy.pool.environment == {"PHYLA_HOME": str(toy.home)}, "workers elsewhere do not inherit it"
    printed = toy.call("up", toy.file, "--workers", 2, "--kinds", "train", code=1)
    check_facts(printed, "toy", "2 workers")
    printed = toy.call("up", toy.file, "--workers", 1, code=1)
    check_facts(printed, "2 workers", "1", "phyla down toy")
    assert (Local().alive(toy.pool), toy.pool.workers) == (2, 2)
    assert "alive" in toy.call("workers", "toy")
    toy.call("down", "toy", "--grace", "1s")


@pytest.mark.parametrize(
    ("launcher", "variable", "value"),
    [
        ("ray", "RAY_ADDRESS", CLOSED),
        rarely("slurm", "SLURM_CONF", "/none"),  # Slurm seeks its controllers for a minute
    ],
)
def test_an_engine_that_does_not_answer_is_told_and_leaves_no_pool(
    toy: Pooled, monkeypatch: pytest.MonkeyPatch, launcher: str, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    for command in ("run", "up"):
        printed = toy.call(command, toy.file, "--launcher", launcher, code=1)
        check_facts(printed, {"ray": CLOSED, "slurm": "squeue"}[launcher])
        assert toy.workers == []
    toy.go_on()
    toy.call("run", toy.file, "--workers", 0)
    assert toy.completed()


def test_a_pool_whose_engine_is_gone_can_be_forgotten(
    toy: Pooled, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHYLA_HOME", str(toy.home))
    cli("up", toy.file, "--workers", 1)
    up = toy.pool
    cli("down", "toy", "--grace", "1s")
    monkeypatch.setenv("KUBECONFIG", "/none")
    replace(up, launcher="kubernetes", options={"image": "x"}).save()
    for command in (("run", toy.file, *ONE), ("down", "toy")):
        check_facts(cli(*command, code=1), "kubectl", "'kubernetes'", "phyla down toy --forget")
    check_facts(cli("down", "toy", "--forget"), toy.home / "pools/toy")
    # A worker of this pool ran on a machine that is gone, or its record was damaged.
    gone = {"host": "gone", "pid": 1, "boot": "", "began": 0}
    for record, fact in ((json.dumps(gone), "'gone'"), ("", "worker-0.json"), ("{}", "worker-0.json")):
        up.save()
        (toy.home / "pools/toy/worker-0.json").write_text(record)
        for words in (("up", toy.file), ("down", "toy")):
            check_facts(cli(*words, code=1), fact, "phyla down toy --forget")
        cli("down", "toy", "--forget")
    assert "pool toy: 1 of 1 worker alive" in cli("up", toy.file, "--workers", 1)
    cli("down", "toy", "--grace", "1s")


def test_a_damaged_pool_is_shown_and_forgotten_and_others_are_not_affected(tmp_path: Path, cli: Phyla) -> None:
    def stored(name: str, fields: Mapping[str, object] = MappingProxyType({})) -> Path:
        pool = Pool(name=name, launcher="local", command=["true"], workers=1, folder=tmp_path / "pools" / name)
        pool.save()
        file = pool.folder / "pool.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
        return file

    home = ("--home", tmp_path)
    stored("good")
    damage = {"empty": "", "truncated": stored("truncated").read_text()[:40], "list": "[]", "binary": "\0\xff"}
    for name, text in damage.items():
        stored(name).write_text(text, encoding="latin-1")
    stored("count", {"workers": "two"})
    stored("options", {"options": 3})
    stored("newer", {"colour": 1})
    stored("copied", {"name": "good"})
    stored("unnamed").with_name("id").write_text("")
    stored("directory").unlink()
    (tmp_path / "pools/directory/pool.json").mkdir()
    stored("plugin", {"launcher": "slrum"})
    names = {*damage, "count", "options", "newer", "copied", "unnamed", "directory", "plugin"}
    rows = {row["pool"]: row for row in json.loads(cli("workers", "--json", *home))}
    assert rows.keys() == {"good", *names}
    assert (rows["good"]["alive"], rows["good"]["error"]) == (0, None)
    table = cli("workers", *home)
    for name in sorted(names):
        assert rows[name]["alive"] is None
        fact = "slrum" if name == "plugin" else tmp_path / "pools" / name
        check_facts(rows[name]["error"], fact)
        check_facts(table, fact)
        check_facts(cli("down", name, *home, code=2), fact, f"down {name} --forget")
        cli("down", name, "--forget", *home)
    cli("down", "good", *home)
    assert json.loads(cli("workers", "--json", *home)) == []
    # A new pool of that name has a new identity.
    stored("unnamed")
    assert Pool.load(tmp_path / "pools/unnamed") is not None


def test_a_place_that_cannot_be_used_is_named(toy: Pooled, cli: Phyla, tmp_path: Path) -> None:
    file, home = tmp_path / "file", tmp_path / "home"
    file.write_text("")
    up, serve = ("up", toy.file), ("serve", "--publish", "--port", 0)
    for words in (up, ("workers",), ("down", "toy"), serve, ("token", "create", "x")):
        check_facts(cli(*words, "--home", file, code=2), file, "a file, not a directory")
    (home / "service.token").mkdir(parents=True)
    check_facts(cli(*serve, "--home", home, code=1), home / "service.token")
    (home / "pools/toy/worker-0.log").mkdir(parents=True)
    check_facts(cli(*up, "--home", home, code=1), home / "pools/toy/worker-0.log")
    assert json.loads(cli("workers", "--json", "--home", home)) == []


def test_a_folder_without_permission_is_named(toy: Pooled) -> None:
    pools = toy.home / "pools"
    pools.mkdir(parents=True)
    pools.chmod(0o500)
    up = ["-m", "phyla.cli", "--home", toy.home, "up", toy.file]
    done = forked.run(up, cwd=toy.folder, env=child_environment({}), first=without_rights)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    check_facts(done.stderr, pools / "toy", "lacks the permission")


def test_mistakes_are_explained(toy: Pooled, cli: Phyla) -> None:
    home = ("--home", toy.home)
    check_facts(cli("run", toy.file, "--launcher", "slrum", *home, code=2), "slrum")
    assert "give --launcher" in cli("run", toy.file, "--launcher-option", "a=b", *home, code=2)
    assert "write NAME=VALUE" in cli("run", toy.file, *ONE, "--launcher-option", "gpu", *home, code=2)
    for wrong in ("memory=16X", "nodes=1.5", "nodes=two", "nodes=0"):
        check_facts(cli("run", toy.file, *ONE, "--launcher-option", wrong, *home, code=2), wrong)
    assert "no option 'partition'" in cli("run", toy.file, *ONE, "--launcher-option", "partition=a", *home, code=2)
    assert "--evaluators is for" in cli("run", toy.file, *ONE, "--evaluators", 1, *home, code=2)
    assert "at least 1" in cli("run", toy.file, "--launcher", "local", "--workers", 0, *home, code=2)
    secret = ("--storage", "postgresql://me:hunter2@host/db")
    told = cli("run", toy.file, *ONE, *secret, code=2)
    check_facts(told, "***")
    assert "hunter2" not in told
    check_facts(cli("down", "x", *home, code=2), "pool 'x'")
    check_facts(cli("workers", *home), "phyla up")


def test_pods_get_the_store_that_the_environment_names_and_the_labels(
    toy: Pooled, tmp_path: Path, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("up", toy.file, "--launcher", "kubernetes", "--launcher-option", "image=x", "--launcher-option")
    for place in ((), ("--home", tmp_path), ("--storage", f"sqlite:///{tmp_path}/other.db")):
        printed = cli(*words, "output=pool.json", *place, code=2)
        check_facts(printed, "kubernetes", "--server URL")
        assert not (tmp_path / "pool.json").exists()
    run = ("run", toy.file, *words[2:], "output=pool.json", "--home", tmp_path / "home")
    check_facts(cli(*run, code=2), "output=pool.json", "`up`")
    monkeypatch.setenv("PHYLA_STORAGE", "postgresql://me:hunter2@host/db")
    check_facts(cli(*words, "output=pool.json", code=2), "postgresql://me:***@host/db")
    monkeypatch.setenv("PHYLA_STORAGE", "http://host:8470")
    for _ in range(2):
        printed = cli(*words, "output=pool.json", "--labels", "a100,nvlink")
        check_facts(printed, "pool.json", "kubectl apply -f", "kubectl delete -f")
        assert "alive" not in printed
        assert json.loads(cli("workers", "--json")) == []
    check_facts(cli("down", "toy", code=2), "'toy'")
    written = (tmp_path / "pool.json").read_text()
    assert '"http://host:8470"' in written
    assert re.search(r'"--labels",\s*"a100,nvlink"', written)


def test_a_second_interrupt_ends_workers_that_do_not_save(toy: Pooled) -> None:
    text = toy.file.read_text()
    # Training that never looks whether it should stop.
    toy.file.write_text(text.replace(" or trial.should_save", ""))
    run = toy.run(*ONE)
    toy.until_waiting(1)
    run.send_signal(signal.SIGINT)
    run.read_until("Ctrl-C stops at once")
    until(lambda: toy.pool.workers == 0, "the pool is being stopped")
    run.send_signal(signal.SIGINT)
    printed, _ = run.communicate(180)
    assert run.returncode == 130, printed
    assert "stopping at once" in printed
    assert toy.workers == []
    toy.go_on()
    # Nothing is left to do, so no pool is started.
    toy.call("run", toy.file, "--workers", 0)
    assert toy.completed()
    before = [log.read_text() for log in sorted((toy.home / "pools/toy").glob("*.log"))]
    toy.call("run", toy.file, *ONE)
    assert [log.read_text() for log in sorted((toy.home / "pools/toy").glob("*.log"))] == before
