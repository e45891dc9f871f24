"""Trials on both nodes of a Ray cluster: whatever is killed, nothing is left, and the result is the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effort import thorough
from gang_runs import Family, Gangs, family_of, kill
from ray_nodes import node, until_free
from waiting import until

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(900)]


@pytest.fixture
def cluster(ray_cluster: Any) -> Iterator[Any]:
    """A cluster of two nodes, all of whose resources are free in the end."""
    yield ray_cluster
    until_free()


@pytest.mark.thorough  # The tests below hold that actors ask for what trials need, and that trials end well.
def test_workers_in_actors_find_what_one_machine_does(cluster: Any, tmp_path: Path) -> None:
    # They reserve all cores and GPUs of both nodes, so their worker cannot have any.
    gangs = Gangs(tmp_path / "it's a $HOME", gpus=1)
    gangs.stop_and_finish("--launcher", "ray", "--workers", 1)
    assert [(gangs.folder / f"gpus-{rank}").read_text() for rank in (0, 1)] == ["0\n", "0\n"]


KILLED: dict[str, tuple[str, ...]] = {"saving": ("node",)}
if thorough():
    KILLED = {"training": ("worker", "command", "node"), "saving": ("rank_keeper", "node")}


def test_whatever_is_killed_nothing_is_left_and_the_result_is_the_same(cluster: Any, tmp_path: Path) -> None:
    gangs = Gangs(tmp_path / "gangs")
    starting = iter(("worker", "engine"))

    def end(family: Family, victim: str) -> None:
        """Kill a part of a gang; after a node, also a part of the next one, which waits for another node."""
        if victim != "node":
            kill(family, victim)
            return
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        family.until_gone()
        gangs.until_told("Ray waits for 2 nodes that have 1 CPU free; started so far: none")
        kill(
            until(lambda: waiting if (waiting := family_of(gangs.folder)).engine else None, "waits"),
            next(starting),
        )
        cluster.add_node(**node())

    gangs.hold(next(iter(KILLED)))
    run = gangs.run("--workers", 1)
    gangs.kill_in_phases(KILLED, end)
    gangs.finish(run)


@pytest.mark.thorough  # test_slurm_gangs.py stops one; above, one waits
def test_a_gang_that_never_gets_its_nodes_tells_it_and_can_be_stopped(cluster: Any, tmp_path: Path) -> None:
    gangs = Gangs(tmp_path / "gangs", nodes=3)
    gangs.run("--launcher", "ray", "--workers", 1)
    gangs.until_told("Ray waits for 3 nodes that have 1 CPU free; started so far: none")
    gangs.stop()
    run = gangs.run("--launcher", "ray", "--workers", 1)
    family = until(lambda: waiting if (waiting := family_of(gangs.folder)).engine else None, "it waits")
    gangs.end(gangs.start("down", "gangs"))
    gangs.end(run, 75)
    family.until_gone()
