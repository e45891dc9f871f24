"""The digits study with each launcher, by the scripts that the guide names, with a small budget."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from digits_small import small
from phyla.records import StudyState
from phyla.settings import child_environment
from phyla.study import Places, Results
from phyla.study.results.load import open_any
from slurm_cluster import Cluster
from waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVICE = EXAMPLES / "cluster/slurm/service.sbatch"


def run(name: str, folder: Path, *more: str) -> Results:
    """Run a script of a copy of the examples, whose digits study is small."""
    for part in ("cluster", "digits"):
        shutil.copytree(EXAMPLES / part, folder / "examples" / part)
    digits = folder / "examples/digits/digits.py"
    digits.write_text(small(members=2, trials=2))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    home = folder / "home"
    done = subprocess.run(
        [folder / "examples/cluster" / name, *more],
        env=child_environment({"PHYLA_HOME": str(home), "PATH": path}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = open_any("digits", Places.of(home))
    assert isinstance(found, Results)
    assert found.state is StudyState.COMPLETED
    assert found.counts() == {"completed": 4}
    assert {group.state for group in found.evaluations().groups()} == {"complete"}
    return found


@pytest.mark.thorough
def test_the_digits_with_workers_of_this_machine(tmp_path: Path) -> None:
    run("local.sh", tmp_path, "--workers", "1")


@pytest.mark.thorough  # test_slurm.py: workers that Slurm places
@pytest.mark.xdist_group("slurm")
@pytest.mark.usefixtures("slurm")
def test_the_digits_with_workers_that_slurm_places(tmp_path: Path) -> None:
    run("slurm.sh", tmp_path, "--workers", "1", "--launcher-option", "partition=requeue")


@pytest.mark.thorough
@pytest.mark.xdist_group("ray")
@pytest.mark.usefixtures("ray_cluster")
def test_the_digits_with_workers_that_ray_places(tmp_path: Path) -> None:
    run("ray.sh", tmp_path, "--workers", "1")
    assert (tmp_path / "home/pools/digits/worker-0.log").exists()


def test_the_pods_of_the_ray_job_fit_the_published_schemas() -> None:
    job = yaml.safe_load((EXAMPLES / "cluster/ray/rayjob.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
        for variable in spec["containers"][0]["env"]:
            # Secrets are named, and never written.
            assert ("value" in variable) == (variable["name"] == "PHYLA_HOME")
    assert job["spec"]["entrypoint"].startswith("phyla run ")


def test_every_script_is_one_that_a_shell_can_read() -> None:
    scripts = [*EXAMPLES.rglob("cluster/**/*.sh"), *EXAMPLES.rglob("cluster/**/*.sbatch")]
    assert len(scripts) >= 5
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.thorough  # test_workers_over_http.py: workers of a service
def test_the_digits_through_a_service(tmp_path: Path) -> None:
    run("service.sh", tmp_path, "--workers", "1")


@pytest.mark.thorough
@pytest.mark.xdist_group("slurm")
def test_the_digits_through_a_service_that_slurm_runs(tmp_path: Path, slurm: Cluster) -> None:
    home = tmp_path / "home"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PHYLA_HOME": str(home), "PATH": path}
    out = f"--output={tmp_path}/service.log"
    subprocess.run(["sbatch", "--partition=requeue", "--time=10", out, SERVICE], env=environment, check=True)
    until(lambda: (home / "service.json").exists(), "the service says where it is")
    run(
        "slurm.sh",
        tmp_path,
        *("--server", str(home / "service.json"), "--launcher-option", "partition=requeue", "--workers", "1"),
    )


@pytest.mark.xdist_group("slurm")
@pytest.mark.parametrize(
    ("program", "starts"), [("exec sleep 600", 2), ("exit 2", 1)], ids=["it runs", "it cannot start"]
)
def test_only_a_service_that_was_told_to_end_waits_in_the_queue_again(
    slurm: Cluster, tmp_path: Path, program: str, starts: int
) -> None:
    (tmp_path / "phyla").write_text(f"#!/bin/sh\nmktemp {tmp_path}/up.XXXXXX\n{program}\n")
    (tmp_path / "phyla").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    # Defaults of the user, which no command of the job may take.
    defaults = {"SQUEUE_PARTITION": "abrupt", "SQUEUE_STATES": "PENDING"}
    subprocess.run(
        ["sbatch", "--partition=requeue", "--time=10", f"--output={tmp_path}/log", SERVICE],
        env={**os.environ, **defaults, "PHYLA_HOME": str(tmp_path), "PATH": path},
        check=True,
    )
    until(lambda: len([*tmp_path.glob("up.*")]) == 1, "it starts")
    slurm.call("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true")
    until(
        lambda: len([*tmp_path.glob("up.*")]) == 2 if starts == 2 else not slurm.call("squeue", "-h"),
        "it starts again, or its job is gone",
    )
    assert len([*tmp_path.glob("up.*")]) == starts
