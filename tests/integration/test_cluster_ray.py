"""The example of a Ray cluster: the digits study, and what KubeRay reads."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from digits_small import small
from phyla.settings import child_environment
from phyla.study import load_study

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples/cluster"


@pytest.mark.xdist_group("ray")
def test_the_digits_study_runs_on_ray(tmp_path: Path, ray_cluster: Any) -> None:
    (tmp_path / "examples/cluster").mkdir(parents=True)
    (tmp_path / "examples/digits").mkdir()
    (tmp_path / "examples/digits/digits.py").write_text(small(members=2, trials=2))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/phyla").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m phyla.cli "$@"\n')
    (tmp_path / "bin/phyla").chmod(0o755)
    script = tmp_path / "examples/cluster/ray.sh"
    script.write_text((CLUSTER / "ray.sh").read_text())
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    environment = child_environment({"PATH": path, "PHYLA_HOME": str(tmp_path / "home")})
    done = subprocess.run(
        ["sh", script], env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = load_study("digits", home=tmp_path / "home")
    assert results.counts() == {"completed": 4}
    assert (tmp_path / "home/pools/digits/worker-0.log").exists()


def test_the_pods_of_the_ray_job_fit_the_published_schemas() -> None:
    job = yaml.safe_load((CLUSTER / "ray/rayjob.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
        for variable in group["template"]["spec"]["containers"][0]["env"]:
            assert ("value" in variable) == (variable["name"] == "PHYLA_HOME")
    words = job["spec"]["entrypoint"].split()
    assert words[:2] == ["phyla", "run"]
