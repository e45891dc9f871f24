"""Workers in a Ray cluster of two nodes: nodes, processes and resources that come and go."""

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from facts import raises
from phyla.errors import ConfigurationError, LauncherFailed
from phyla.launchers import Launcher, Pool, launcher_named
from phyla.supervision.gpus import VISIBLE
from phyla.testing.launchers import AWKWARD, LIMIT_S, Programs
from pooled import TRIALS, Pooled
from ray_nodes import node
from waiting import until

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def launcher(ray_cluster: Any) -> Launcher:
    return launcher_named("ray")


def alive(*pids: int) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_a_run_survives_a_node_that_dies(tmp_path: Path, launcher: Launcher, ray_cluster: Any) -> None:
    toy = Pooled(tmp_path / "it's a $HOME")
    run = toy.run("--launcher", "ray", "--workers", 2)
    toy.until_waiting()
    for sign in toy.folder.glob("waits-*"):
        sign.unlink()
    lost = next(iter(ray_cluster.worker_nodes))
    ray_cluster.remove_node(lost, allow_graceful=False)
    assert launcher.alive(toy.pool) == 2  # one waits for a node
    ray_cluster.add_node(**node())
    (row,) = toy.workers
    assert (row["launcher"], row["alive"], row["error"]) == ("ray", 2, None)
    _let_leases_end(toy.home / "phyla.db")
    until(lambda: list(toy.folder.glob("waits-*")), "the lost trial goes on")
    toy.go_on()
    printed, _ = run.communicate(180)
    assert run.returncode == 0, printed
    assert f"{TRIALS} trials completed" in printed
    assert toy.completed()
    assert toy.workers == []


def _let_leases_end(database: Path) -> None:
    """Let the leases of processes that are gone end now, instead of in a minute."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as store:
        workers = [row[0] for row in store.execute("SELECT worker FROM attempts WHERE state = 'running'")]
        lost = [worker for worker in workers if not alive(int(worker.split(":")[-2]))]
        assert lost
        for worker in lost:
            store.execute("UPDATE attempts SET expires_at = claimed_at WHERE worker = ?", [worker])


class Pools:
    """Pools of small programs, which are stopped at the end."""

    def __init__(self, folder: Path, launcher: Launcher) -> None:
        self.folder, self.launcher, self.programs = folder, launcher, Programs(folder / "programs")
        self.made: list[Pool] = []

    def start(self, *arguments: str, **more: Any) -> Pool:
        self.made.append(self.programs.pool("ray", self.folder / f"pool-{len(self.made)}", *arguments, **more))
        self.launcher.start(self.made[-1])
        return self.made[-1]


@pytest.fixture
def pools(tmp_path: Path, launcher: Launcher) -> Iterator[Pools]:
    pools = Pools(tmp_path, launcher)
    yield pools
    for pool in pools.made:
        launcher.stop(pool, 0)


def test_it_keeps_the_contract_of_a_launcher_with_few_actors(
    pools: Pools, launcher: Launcher, tmp_path: Path
) -> None:
    programs, directory = pools.programs, tmp_path / AWKWARD
    directory.mkdir()
    # Text arrives as it is, and workers know their time.
    given = {"environment": {"VALUE": AWKWARD}, "directory": directory, "time_limit_s": LIMIT_S}
    pool = programs.pool("ray", tmp_path / "pools" / AWKWARD, AWKWARD, workers=2, cpus=0.5, **given)
    pools.made.append(pool)
    assert launcher.alive(pool) == 0
    launcher.start(pool)
    first, second = programs.until_up(2)
    for told in (first, second):
        assert told["arguments"][:3] == [AWKWARD, "--workers", "1"]
        assert (told["value"], told["directory"]) == (AWKWARD, str(directory))
        words = told["arguments"]
        assert 0.9 * LIMIT_S < float(words[words.index("--time-limit") + 1].removesuffix("s")) <= LIMIT_S
    logs = Path(launcher.logs(pool))
    printed = "".join(log.read_text() for log in logs.parent.glob(logs.name))
    assert {f"worker {told['pid']}" for told in (first, second)} <= {*printed.splitlines()}
    # What is missing is started, and no more; another process sees it.
    stubborn = pools.start(workers=1, cpus=0.5, ending="stubborn")
    programs.kill(first)
    until(lambda: launcher.alive(pool) == 1, "a worker that has ended is not alive")
    launcher.start(pool)
    launcher.start(pool)
    (deaf,) = (told for told in programs.until_up(4) if "--time-limit" not in told["arguments"])
    found, other = Pool.load(pool.folder), launcher_named("ray")
    assert found is not None
    assert (other.alive(found), other.alive(stubborn)) == (2, 1)
    # Those that do not save are killed, others have time to; pools are apart.
    other.stop(stubborn, 0.5)
    assert (alive(deaf["pid"]), other.alive(stubborn), other.alive(found)) == ([], 0, 2)
    other.stop(found, 60)
    assert programs.saved() == ["SIGTERM"] * 3
    assert launcher.alive(pool) == 0


def test_a_command_ends_with_its_actor_and_begins_again_with_the_next(pools: Pools) -> None:
    pool = pools.start(workers=1, gpus=0.5)
    (first,) = pools.programs.until_up(1)
    assert psutil.Process(first["pid"]).environ()[VISIBLE] == "0"
    os.kill(psutil.Process(first["pid"]).ppid(), signal.SIGKILL)
    until(lambda: not alive(first["pid"]), "the command has ended")
    pools.programs.until_up(2)
    assert pools.launcher.alive(pool) == 1


def test_a_store_of_this_machine_alone_is_refused_where_a_node_is_another(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools.start(workers=0, only_here="/home/me/.phyla/phyla.db")
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    with raises(ConfigurationError, "/home/me/.phyla/phyla.db", "--server"):
        pools.start(workers=0, only_here="/home/me/.phyla/phyla.db")
    pools.start(workers=0)


def test_workers_that_wait_for_resources_are_alive_and_are_stopped_first(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools.start(workers=3)
    assert {psutil.Process(told["pid"]).environ()[VISIBLE] for told in pools.programs.until_up(2)} == {""}
    assert pools.launcher.alive(pool) == 3
    assert (pools.launcher.outcomes(pool), pools.launcher.reasons(pool)) == ({"queued": 1}, {})
    monkeypatch.setattr("phyla.launchers.ray.ANSWER_S", 2.0)
    pools.launcher.stop(pool, 600)
    assert pools.programs.saved() == ["SIGTERM", "SIGTERM"]
    assert len(pools.programs.up()) == 2
    assert pools.launcher.alive(pool) == 0


def test_a_worker_that_asks_for_more_than_any_node_has_says_for_what_it_waits(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phyla.launchers.ray.ANSWER_S", 2.0)
    pool = pools.start(workers=1, gpus=64, memory_mb=2048)
    assert pools.launcher.outcomes(pool) == {"queued": 1}
    assert pools.launcher.reasons(pool) == {"without a node that has CPU 1, GPU 64, memory 2.0 GiB": 1}


def test_a_cluster_that_is_frozen_is_named(
    pools: Pools, ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools.start(workers=0)
    monkeypatch.setattr("phyla.launchers.ray.CALL_S", 1.0)
    (head,) = ray_cluster.head_node.all_processes["gcs_server"]
    os.kill(head.process.pid, signal.SIGSTOP)
    try:
        for call in (launcher_named("ray").alive, lambda pool: launcher_named("ray").stop(pool, 600)):
            with raises(LauncherFailed, repr(ray_cluster.address), "1 s"):
                call(pool)
    finally:
        os.kill(head.process.pid, signal.SIGCONT)
        monkeypatch.undo()
    assert pools.launcher.alive(pool) == 0


def test_the_process_keeps_its_own_signal_handler(pools: Pools) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert pools.launcher.alive(pools.start(workers=0)) == 0
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"gpus": 1.5}, ConfigurationError, "gpus=1.5 0.5"),
        ({"options": {"colour of": "red"}}, ConfigurationError, "colour"),
        ({"options": {"address": "nonsense"}}, LauncherFailed, "nonsense"),
        ({"options": {"address": "127.0.0.1:1"}}, LauncherFailed, "127.0.0.1:1"),
        ({"options": {"address": "ray://127.0.0.1:1"}}, LauncherFailed, "ray://HOST:10001"),
        ({"options": {"address": "local"}}, ConfigurationError, "address=local"),
    ],
)
def test_what_cannot_be_is_said(pools: Pools, more: dict[str, Any], error: type[Exception], message: str) -> None:
    with raises(error, *message.split()):
        pools.start(**more)
    pools.made.clear()
