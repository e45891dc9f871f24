"""Workers in a Ray cluster of two nodes: nodes, processes and resources that come and go."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from forked import Forked
from phyla.errors import ConfigurationError, LauncherFailed
from phyla.launchers import Launcher, Pool, launcher_named
from phyla.launchers.spec import VISIBLE
from phyla.records import StudyState
from phyla.study import load_study
from pools import Signs, until
from ray_nodes import node

pytestmark = pytest.mark.xdist_group("ray")

MEMBERS, TRIALS = 4, 5
STUDY = f"""
import json, os, time
from pathlib import Path
import phyla

HERE = Path(__file__).parent

def train(trial):
    chain = json.loads((trial.source.path / "chain.json").read_text()) if trial.source else []
    (HERE / f"{{os.getppid()}}.works").touch()
    for step in trial.steps():
        while not (HERE / "go").exists():
            time.sleep(0.01)
    (trial.checkpoint_dir / "chain.json").write_text(json.dumps([*chain, trial.params["lr"]]))
    trial.report(score=len(chain))

study = phyla.Study(
    "moved",
    phyla.Space(lr=phyla.Float(0.1, 1.0)),
    phyla.Maximize("score"),
    phyla.RandomSearch(members={MEMBERS}, steps_per_trial=1, total_steps={TRIALS}),
    train,
    home=HERE / "home",
)
"""


@pytest.fixture
def launcher(ray_cluster: Any) -> Launcher:
    return launcher_named("ray")


def alive(*pids: int) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_a_study_moves_to_ray_survives_a_node_and_moves_back(
    tmp_path: Path, launcher: Launcher, ray_cluster: Any
) -> None:
    file = tmp_path / "study.py"
    file.write_text(STUDY)

    def run() -> Forked:
        return Forked(("-m", "phyla.cli", "run", "study.py", "--workers", 1), cwd=tmp_path, session=True)

    local = run()
    until(lambda: list(tmp_path.glob("*.works")), "a local process trains")
    local.kill()
    local.wait()
    command = [sys.executable, "-m", "phyla.cli", "worker", str(file)]
    pool = Pool(name="moved", launcher="ray", command=command, workers=2, folder=tmp_path / "pool")
    pool.save()
    launcher.start(pool)

    def working() -> list[int]:
        return alive(*(int(sign.stem) for sign in tmp_path.glob("*.works")))

    until(lambda: len(working()) == 2, "both nodes train")
    lost = next(iter(ray_cluster.worker_nodes))
    ray_cluster.remove_node(lost, allow_graceful=False)
    until(lambda: len(working()) == 1, "what ran on the lost node is gone")
    assert launcher.alive(pool) == 2
    ray_cluster.add_node(**node())
    until(lambda: len(working()) == 2, "the new node trains")
    (tmp_path / "go").touch()
    results = load_study("moved", home=tmp_path / "home")
    rest = (MEMBERS - 2) * TRIALS
    until(lambda: results.counts().get("completed", 0) >= rest, "all is done but what was lost with its worker")
    launcher.stop(pool, 60)
    assert launcher.alive(pool) == 0
    # A run on this machine need not wait until the leases of lost trials end.
    assert run().wait() == 0
    assert results.study().state is StudyState.COMPLETED
    assert results.counts() == {"completed": MEMBERS * TRIALS}
    best = results.best
    assert best is not None
    assert len(json.loads((best.checkpoint.path / "chain.json").read_text())) == TRIALS


class Pools:
    """Pools of small programs, which are stopped at the end."""

    def __init__(self, folder: Path, launcher: Launcher) -> None:
        self.folder, self.launcher, self.signs = folder, launcher, Signs(folder / "signs")
        self.made: list[Pool] = []

    def start(self, *arguments: str, **more: Any) -> Pool:
        self.made.append(self.signs.pool("ray", self.folder / f"pool-{len(self.made)}", *arguments, **more))
        self.launcher.start(self.made[-1])
        return self.made[-1]


@pytest.fixture
def pools(tmp_path: Path, launcher: Launcher) -> Iterator[Pools]:
    pools = Pools(tmp_path, launcher)
    yield pools
    for pool in pools.made:
        launcher.stop(pool, 0)


def test_a_command_ends_with_its_actor_and_begins_again_with_the_next(pools: Pools) -> None:
    pool = pools.start(workers=1, gpus=0.5)
    (first,) = pools.signs.until_up(1)
    assert psutil.Process(first["pid"]).environ()[VISIBLE] == "0"
    os.kill(psutil.Process(first["pid"]).ppid(), signal.SIGKILL)
    until(lambda: not alive(first["pid"]), "the command has ended")
    pools.signs.until_up(2)
    assert pools.launcher.alive(pool) == 1


def test_workers_that_wait_for_resources_are_alive_and_are_stopped_first(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools.start(workers=3)
    assert {psutil.Process(told["pid"]).environ()[VISIBLE] for told in pools.signs.until_up(2)} == {""}
    assert pools.launcher.alive(pool) == 3
    monkeypatch.setattr("phyla.launchers.ray.ANSWER_S", 2.0)
    pools.launcher.stop(pool, 600)
    assert pools.signs.saved() == ["SIGTERM", "SIGTERM"]
    assert len(pools.signs.up()) == 2
    assert pools.launcher.alive(pool) == 0


def test_the_process_keeps_its_own_signal_handler(pools: Pools) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert pools.launcher.alive(pools.start(workers=0)) == 0
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"gpus": 1.5}, ConfigurationError, r"gpus=1\.5: Ray gives whole GPUs, or a fraction of one such as 0\.5"),
        (
            {"options": {"address": "nonsense"}},
            LauncherFailed,
            "Ray at 'nonsense' cannot be used: Invalid address",
        ),
        ({"options": {"address": "127.0.0.1:1"}}, LauncherFailed, "'127.0.0.1:1' cannot be used: .*refused"),
        ({"options": {"address": "ray://127.0.0.1:1"}}, LauncherFailed, "ray://HOST:10001 from outside"),
        ({"options": {"address": "local"}}, ConfigurationError, "address=local: .* would end at once"),
    ],
)
def test_what_cannot_be_is_said(pools: Pools, more: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pools.start(**more)
    pools.made.clear()
