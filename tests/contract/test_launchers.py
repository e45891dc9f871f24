"""What every launcher does, with real processes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facts import raises
from phyla.errors import ConfigurationError, LauncherFailed
from phyla.launchers import Pool, launcher_named, local
from phyla.launchers.local import Local
from phyla.testing import check_launcher
from phyla.testing.launchers import Programs

CLUSTERS = {"ray": "ray_cluster", "slurm": "slurm"}
LAUNCHERS = [
    "local",
    pytest.param("slurm", marks=pytest.mark.xdist_group("slurm")),
    # An actor of Ray takes a second to start. integration/test_ray.py holds the same with a fourth of them.
    pytest.param("ray", marks=[pytest.mark.xdist_group("ray"), pytest.mark.thorough]),
]
MakePool = Callable[..., Pool]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_it_keeps_the_contract_of_a_launcher(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if name in CLUSTERS:
        request.getfixturevalue(CLUSTERS[name])
    check_launcher(type(launcher_named(name)), tmp_path)


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path / "programs")


@pytest.fixture
def make_pool(tmp_path: Path, programs: Programs) -> Iterator[MakePool]:
    pools: list[Pool] = []

    def make(*arguments: str, **more: Any) -> Pool:
        pools.append(programs.pool("local", tmp_path / "pools" / "pool", *arguments, **more))
        return pools[-1]

    yield make
    for pool in pools:
        with contextlib.suppress(LauncherFailed):
            Local().stop(pool, 0)


# Processes of this machine


def test_a_number_that_another_process_has_now_is_not_signalled(make_pool: MakePool, programs: Programs) -> None:
    pool = make_pool(workers=1)
    with subprocess.Popen([sys.executable, "-I", str(programs.program), str(programs.folder), "soon"]) as stranger:
        programs.until_up(1)
        Local().start(pool)
        record = pool.folder / "worker-0.json"
        worker = next(told["pid"] for told in programs.until_up(2) if told["pid"] != stranger.pid)
        kept = record.read_text()
        record.write_text(kept.replace(str(worker), str(stranger.pid), 1))
        assert Local().alive(pool) == 0
        Local().stop(pool, 0)
        assert stranger.poll() is None
        assert programs.saved() == []
        record.write_text(kept)
        Local().stop(pool, 60)
        stranger.kill()


def test_processes_outlive_the_shell_that_started_them(make_pool: MakePool, programs: Programs) -> None:
    pool = make_pool(workers=1)
    program = (
        "import pathlib, sys; from phyla.launchers import Pool, launcher_named; "
        "launcher_named('local').start(Pool.load(pathlib.Path(sys.argv[1])))"
    )
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$@"; kill -HUP 0', "sh", sys.executable, "-c", program, str(pool.folder)],
        start_new_session=True,
    )
    assert shell.wait() == -signal.SIGHUP
    programs.until_up(1)
    assert Local().alive(pool) == 1


def test_a_worker_does_not_begin_before_it_is_on_record(
    make_pool: MakePool, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(workers=1)
    pids: list[int] = []

    def fail(pid: int) -> str:
        pids.append(pid)
        raise MemoryError

    monkeypatch.setattr("phyla.launchers.local._began", fail)
    with pytest.raises(MemoryError):
        Local().start(pool)
    _, status = os.waitpid(pids[0], 0)
    assert os.waitstatus_to_exitcode(status) != 0
    assert programs.up() == []


def test_a_worker_that_ends_before_it_is_on_record_is_not_alive(
    make_pool: MakePool, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = replace(make_pool(workers=1), directory=tmp_path / "gone")

    def began_once_it_has_ended(pid: int) -> str | None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return began(pid)

    began = local._began
    with monkeypatch.context() as patch:
        patch.setattr(local, "_began", began_once_it_has_ended)
        Local().start(pool)
    assert Local().alive(pool) == 0
    Local().stop(pool, 0)


def test_processes_of_another_machine_are_not_judged(make_pool: MakePool, programs: Programs) -> None:
    pool = make_pool(workers=1)
    Local().start(pool)
    record = pool.folder / "worker-0.json"
    kept = record.read_text()
    record.write_text(kept.replace('"host": "', '"host": "not-'))
    with raises(LauncherFailed, "pool"):
        Local().alive(pool)
    record.write_text(kept)


def test_whoever_looks_at_a_pool_gives_it_no_identity(make_pool: MakePool) -> None:
    pool = make_pool()
    before = sorted(pool.folder.iterdir())
    found = Pool.load(pool.folder)
    assert found is not None
    assert found.identity() == pool.identity()
    assert sorted(pool.folder.iterdir()) == before


def test_a_launcher_that_is_not_installed_is_named_with_those_that_are() -> None:
    with raises(ConfigurationError, "slrum", "slurm", "local"):
        launcher_named("slrum")
