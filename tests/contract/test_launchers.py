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
from phyla.launchers import Launcher, Pool, launcher_named, local
from phyla.launchers.local import Local
from pools import Signs
from waiting import until

AWKWARD = "a b'c\"d\n$HOME `e` \\ %j é;#"
"""What no shell may read as anything but text."""

LAUNCHERS = ["local", *(pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("ray", "slurm"))]
MakePool = Callable[..., Pool]


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> Launcher:
    for name, fixture in (("ray", "ray_cluster"), ("slurm", "slurm")):
        if request.param == name:
            request.getfixturevalue(fixture)
    return launcher_named(request.param)


@pytest.fixture
def signs(tmp_path: Path) -> Signs:
    return Signs(tmp_path / "signs")


@pytest.fixture
def make_pool(request: pytest.FixtureRequest, tmp_path: Path, signs: Signs) -> Iterator[MakePool]:
    name = request.node.callspec.params["launcher"] if hasattr(request.node, "callspec") else "local"
    made: list[Pool] = []

    def make(*arguments: str, called: str = "pool", **more: Any) -> Pool:
        made.append(signs.pool(name, tmp_path / "pools" / called, *arguments, **more))
        return made[-1]

    yield make
    for pool in made:
        with contextlib.suppress(LauncherFailed):
            launcher_named(name).stop(pool, 0)


def test_it_starts_as_many_as_are_missing(launcher: Launcher, make_pool: MakePool, signs: Signs) -> None:
    pool = make_pool()
    assert launcher.alive(pool) == 0
    launcher.start(pool)
    assert launcher.alive(pool) == 2
    launcher.start(pool)
    first, _ = signs.until_up(2)
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: launcher.alive(pool) == 1, "one is lost")
    launcher.start(pool)
    signs.until_up(3)
    assert launcher.alive(pool) == 2


def test_another_process_finds_them_by_the_folder(launcher: Launcher, make_pool: MakePool, signs: Signs) -> None:
    launcher.start(make_pool())
    found = Pool.load(make_pool().folder)
    assert found is not None
    other = type(launcher)()
    assert other.alive(found) == 2
    signs.until_up(2)
    other.stop(found, 60)
    assert launcher.alive(found) == 0


def test_workers_have_time_to_save(launcher: Launcher, make_pool: MakePool, signs: Signs) -> None:
    pool = make_pool()
    launcher.start(pool)
    signs.until_up(2)
    launcher.stop(pool, 60)
    assert signs.saved() == ["SIGTERM", "SIGTERM"]
    assert launcher.alive(pool) == 0


def test_workers_that_do_not_end_are_ended(launcher: Launcher, make_pool: MakePool, signs: Signs) -> None:
    pool = make_pool(ending="stubborn", workers=1)
    launcher.start(pool)
    (told,) = signs.until_up(1)
    launcher.stop(pool, 0.5)
    assert launcher.alive(pool) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(told["pid"], 0)


def test_a_pool_without_workers_is_stopped_already(launcher: Launcher, make_pool: MakePool) -> None:
    launcher.stop(make_pool(), 0)


def test_workers_that_end_by_themselves_are_not_alive(
    launcher: Launcher, make_pool: MakePool, signs: Signs
) -> None:
    pool = make_pool(workers=1)
    launcher.start(pool)
    signs.until_up(1)
    signs.end()
    until(lambda: launcher.alive(pool) == 0, "the worker has ended")
    assert launcher.outcomes(pool) == ({"completed": 1} if pool.launcher == "slurm" else {})


def test_pools_are_apart(launcher: Launcher, make_pool: MakePool, signs: Signs) -> None:
    one, other = make_pool(called="one", workers=1), make_pool(called="other", workers=1)
    launcher.start(one)
    launcher.start(other)
    signs.until_up(2)
    launcher.stop(one, 60)
    assert (launcher.alive(one), launcher.alive(other)) == (0, 1)


def test_text_arrives_as_it_is(launcher: Launcher, make_pool: MakePool, signs: Signs, tmp_path: Path) -> None:
    directory = tmp_path / AWKWARD
    directory.mkdir()
    more = {"environment": {"VALUE": AWKWARD}, "directory": directory}
    pool = make_pool(AWKWARD, called=AWKWARD.replace("\\", ""), workers=1, **more)
    launcher.start(pool)
    (told,) = signs.until_up(1)
    assert told["arguments"][:3] == [AWKWARD, "--workers", "1"]
    assert (told["value"], told["directory"]) == (AWKWARD, str(directory))


def test_workers_know_how_long_they_may_last(launcher: Launcher, make_pool: MakePool, signs: Signs) -> None:
    launcher.start(make_pool(workers=1, time_limit_s=3600.0))
    (told,) = signs.until_up(1)
    words = told["arguments"]
    limit = words[words.index("--time-limit") + 1]
    assert 3300 < float(limit.removesuffix("s")) <= 3600


def test_it_says_where_the_output_is(launcher: Launcher, make_pool: MakePool, signs: Signs) -> None:
    pool = make_pool(workers=1)
    launcher.start(pool)
    (told,) = signs.until_up(1)
    where = Path(launcher.logs(pool))
    until(
        lambda: any(f"worker {told['pid']}\n" in log.read_text() for log in where.parent.glob(where.name)),
        "the log has what the worker printed",
    )


def test_options_of_another_launcher_are_refused(launcher: Launcher, make_pool: MakePool) -> None:
    with raises(ConfigurationError, "colour of"):
        launcher.start(make_pool(options={"colour of": "red"}))
    assert launcher.alive(make_pool()) == 0


# Processes of this machine


def test_a_number_that_another_process_has_now_is_not_signalled(make_pool: MakePool, signs: Signs) -> None:
    pool = make_pool(workers=1)
    with subprocess.Popen([sys.executable, "-I", str(signs.program), str(signs.folder), "soon"]) as stranger:
        signs.until_up(1)
        Local().start(pool)
        record = pool.folder / "worker-0.json"
        worker = next(told["pid"] for told in signs.until_up(2) if told["pid"] != stranger.pid)
        kept = record.read_text()
        record.write_text(kept.replace(str(worker), str(stranger.pid), 1))
        assert Local().alive(pool) == 0
        Local().stop(pool, 0)
        assert stranger.poll() is None
        assert signs.saved() == []
        record.write_text(kept)
        Local().stop(pool, 60)
        stranger.kill()


def test_processes_outlive_the_shell_that_started_them(make_pool: MakePool, signs: Signs) -> None:
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
    signs.until_up(1)
    assert Local().alive(pool) == 1


def test_a_worker_does_not_begin_before_it_is_on_record(
    make_pool: MakePool, signs: Signs, monkeypatch: pytest.MonkeyPatch
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
    assert signs.up() == []


def test_a_worker_that_ends_before_it_is_on_record_is_not_alive(
    make_pool: MakePool, signs: Signs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_processes_of_another_machine_are_not_judged(make_pool: MakePool, signs: Signs) -> None:
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


def test_a_file_that_describes_no_pool_is_named(make_pool: MakePool) -> None:
    folder = make_pool().folder
    (folder / "pool.json").write_text('{"name": "pool"}')
    with raises(ConfigurationError, "pool.json"):
        Pool.load(folder)


def test_a_launcher_that_is_not_installed_is_named_with_those_that_are() -> None:
    with raises(ConfigurationError, "slrum", "slurm", "local"):
        launcher_named("slrum")
