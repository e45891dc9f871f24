"""What is asked of Kubernetes, and how its answers are read.

There is no cluster here. Manifests are compared with the schemas that Kubernetes publishes. Only `kubectl` itself
is replaced, by a program that notes its arguments and keeps objects in a file, as a cluster would.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from facts import check_facts, raises
from phyla.cli import options
from phyla.errors import ConfigurationError, LauncherFailed
from phyla.launchers import Launcher, Pool, launcher_named
from phyla.launchers.kubernetes import EXIT_USAGE, manifest, write_manifest
from phyla.system.fork_safe_signals import EXIT_PREEMPTED

EXAMPLES = Path(__file__).parents[3] / "examples"
HERE, SERVICE = Path("/home/me/project"), "http://phyla:8470"
COMMAND = ["-P", "-m", "phyla.cli", "worker", str(HERE / "digits.py"), "/else/where.py"]
KUBECTL = """
import json, os, sys
folder = os.path.dirname(__file__)
store, words = f"{folder}/objects.json", [word for word in sys.argv[1:] if not word.startswith("--")]
with open(f"{folder}/calls.jsonl", "a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
objects = {}
if os.path.exists(store):
    with open(store) as file:
        objects = json.load(file)
if words[0] == "apply":
    given = json.load(sys.stdin)
    objects["/".join((given["kind"].lower(), given["metadata"]["name"]))] = given
elif words[:2] == ["get", "pods"]:
    print(json.dumps({"items": objects.get("pods", [])}))
elif words[0] == "get" and "/".join(words[1:3]) in objects:
    print(json.dumps(objects["/".join(words[1:3])]))
elif words[0] == "delete":
    objects.pop("/".join(words[1:3]), None)
elif words[0] == "get" and "unreachable" in objects:
    for cause in ("no answer", "no route"):
        log = f'E1123 07:06:23.908690   16239 memcache.go:265] "Unhandled Error" err="{cause}"'
        print(log, file=sys.stderr)
    sys.exit(objects["unreachable"] or 1)
with open(store, "w") as file:
    json.dump(objects, file)
"""


class Cluster:
    """What `kubectl` was asked, and what it keeps."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.store, self.calls_file = folder / "objects.json", folder / "calls.jsonl"
        program = folder / "kubectl"
        program.write_text(f"#!{sys.executable} -IS\n{KUBECTL}")
        program.chmod(0o755)

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self.calls_file.read_text().splitlines()]

    def objects(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.store.read_text())
        return found

    def becomes(self, status: dict[str, Any], *pods: dict[str, Any]) -> None:
        """Give the only Job or Deployment a status, and make pods of these statuses."""
        (name, made), *_ = self.objects().items()
        objects = {name: {**made, "status": status}, "pods": [{"status": pod} for pod in pods]}
        self.store.write_text(json.dumps(objects))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return found


@pytest.fixture
def launcher() -> Launcher:
    return launcher_named("kubernetes")


def make(folder: Path, *, name: str = "digits", workers: int = 8, **more: Any) -> Pool:
    given = {"image": "registry.example/digits:1", **more.pop("options", {})}
    return Pool(
        name=name,
        launcher="kubernetes",
        command=[sys.executable, *COMMAND, "--home", str(HERE), "--storage", SERVICE],
        files=COMMAND[-2:],
        directory=HERE,
        workers=workers,
        options={key: value for key, value in given.items() if value},
        folder=folder / name,
        **more,
    )


def everything(folder: Path, kind: str) -> Pool:
    given = {
        "kind": kind,
        "namespace": "ml",
        "directory": "/work",
        "user": "1234",
        "grace": "600",
        "secret": "phyla-token",
        "volume": "data:/data",
        "context": "prod",
    }
    return make(
        folder, options=given, gpus=2, cpus=4.5, memory_mb=16384, time_limit_s=3600.0, environment={"LEVEL": "1"}
    )


def pod(found: Any) -> Any:
    return found["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", ["1.31", "1.34", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("kind", ["job", "deployment"])
def test_manifests_fit_the_published_schemas(tmp_path: Path, kind: str, version: str) -> None:
    for pool in (make(tmp_path, options={"kind": kind}), everything(tmp_path, kind)):
        found = manifest(pool)
        kubernetes_validate.validate(found, version, strict=True)
        pod(found)["containers"][0]["comand"] = []
        with pytest.raises(kubernetes_validate.ValidationError, match="comand"):
            kubernetes_validate.validate(found, version, strict=True)


def test_the_jobset_of_a_gang_fits_the_published_schemas() -> None:
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet as JobSet

    example = yaml.safe_load((EXAMPLES / "cluster/gang.yaml").read_text())
    understood = JobSet.from_dict(example)
    assert understood is not None
    assert understood.to_dict() == example, "an unknown key is left out"
    (ranks,) = example["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "gang"}, **ranks["template"]}
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    nodes = {word.partition("=")[2] for word in pod(job)["containers"][0]["command"] if "--nnodes" in word}
    assert nodes == {str(job["spec"]["completions"])} == {str(job["spec"]["parallelism"])}


def test_a_preempted_or_drained_worker_of_a_job_gets_a_successor(tmp_path: Path) -> None:
    found = manifest(make(tmp_path))
    assert pod(found)["restartPolicy"] == "Never"
    assert found["spec"]["podReplacementPolicy"] == "Failed"
    disrupted, drained, wrong = found["spec"]["podFailurePolicy"]["rules"]
    assert disrupted["action"] == drained["action"] == "Ignore"
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert (drained["onExitCodes"]["values"], wrong["onExitCodes"]["values"]) == ([EXIT_PREEMPTED], [EXIT_USAGE])
    assert wrong["action"] == "FailJob"
    # A Job that counts completions would start others after the work is done.
    assert "completions" not in found["spec"]
    assert found["spec"]["parallelism"] == 8


def test_the_statuses_are_those_of_the_command_line() -> None:
    assert (EXIT_PREEMPTED, EXIT_USAGE) == (75, options.EXIT_USAGE)


def test_a_worker_has_what_it_asks_for_and_may_do_no_more(tmp_path: Path) -> None:
    found = manifest(everything(tmp_path, "job"))
    (worker,) = pod(found)["containers"]
    assert worker["command"] == [
        *("python", "-P", "-m", "phyla.cli", "worker", "/work/digits.py", "/else/where.py"),
        *("--home", "/tmp/phyla", "--storage", SERVICE),
        *("--workers", "1", "--time-limit", "3600", "--gpus-per-worker", "0"),
    ]
    assert worker["workingDir"] == "/work"
    assert worker["resources"]["limits"] == {"memory": "16384Mi", "nvidia.com/gpu": "2"}
    assert worker["resources"]["requests"] == {"cpu": "4.5", "memory": "16384Mi"}
    assert worker["securityContext"]["readOnlyRootFilesystem"]
    assert pod(found)["securityContext"]["runAsUser"] == 1234
    assert pod(found)["securityContext"]["runAsNonRoot"]
    assert pod(found)["terminationGracePeriodSeconds"] == 600
    volumes, mounts = (
        {one["name"]: one for one in listed} for listed in (pod(found)["volumes"], worker["volumeMounts"])
    )
    assert volumes["memory"]["emptyDir"] == {"medium": "Memory"}
    paths = {name: mount["mountPath"] for name, mount in mounts.items()}
    assert paths == {"scratch": "/tmp", "memory": "/dev/shm", "shared": "/data"}
    assert volumes["shared"]["persistentVolumeClaim"] == {"claimName": "data"}


def test_the_token_is_named_and_never_written(
    tmp_path: Path, cluster: Cluster, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHYLA_TOKEN", "very-secret")
    pool = everything(tmp_path, "job")
    launcher.start(pool)
    (found,) = cluster.objects().values()
    (token,) = [one for one in pod(found)["containers"][0]["env"] if one["name"] == "PHYLA_TOKEN"]
    assert token["valueFrom"] == {"secretKeyRef": {"name": "phyla-token", "key": "token"}}
    written = [
        file.read_text() for folder in (tmp_path, pool.folder) for file in folder.rglob("*") if file.is_file()
    ]
    assert written
    assert not any("very-secret" in text for text in written)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"name": "My_Pool"}, "My_Pool 48"),
        ({"name": "a" * 49}, "which Kubernetes does not allow"),
        ({"options": {"image": ""}}, "needs an image with phyla and your study file"),
        ({"options": {"kind": "pod"}}, "kind=pod"),
        ({"options": {"grace": "5m"}}, "grace=5m 0"),
        ({"options": {"user": "0"}}, "user=0"),
        ({"options": {"volume": "data"}}, "volume=data CLAIM:/PATH"),
        ({"options": {"secret": "a token"}}, "a token"),
        ({"options": {"colour": "red"}}, "colour"),
        ({"gpus": 0.5}, "gpus=0.5"),
    ],
)
def test_what_kubernetes_cannot_do_is_refused_before_it_is_asked(
    tmp_path: Path, launcher: Launcher, cluster: Cluster, more: dict[str, Any], message: str
) -> None:
    with raises(ConfigurationError, *message.split()):
        launcher.start(make(tmp_path, **more))
    assert not cluster.calls_file.exists()


def test_start_may_be_repeated(tmp_path: Path, launcher: Launcher, cluster: Cluster) -> None:
    two, three = make(tmp_path, workers=2), make(tmp_path, workers=3)
    assert (launcher.alive(two), launcher.outcomes(two)) == (0, {})
    launcher.start(two)
    launcher.start(three)
    (found,) = cluster.objects().values()
    assert found["spec"]["parallelism"] == 3
    assert launcher.alive(three) == 3


def test_pools_of_the_same_name_are_apart(tmp_path: Path, launcher: Launcher, cluster: Cluster) -> None:
    one, other = make(tmp_path / "a"), make(tmp_path / "b")
    launcher.start(one)
    launcher.start(other)
    assert len(cluster.objects()) == 2
    launcher.stop(one, 60)
    assert (launcher.alive(one), launcher.alive(other)) == (0, 8)


@pytest.mark.parametrize(
    ("status", "alive", "outcomes"),
    [
        ({}, 8, {}),
        ({"active": 5, "failed": 3}, 8, {"failed": 3}),  # their successors are to come
        ({"active": 5, "ready": 4, "failed": 3}, 8, {"failed": 3, "queued": 4}),
        ({"active": 8, "ready": 8}, 8, {}),
        ({"active": 5, "succeeded": 3}, 5, {"completed": 3}),  # the work is done: there are no successors
        ({"active": 5, "ready": 5, "succeeded": 3}, 5, {"completed": 3}),
        (
            {"active": 0, "succeeded": 8, "conditions": [{"type": "Complete", "status": "True"}]},
            0,
            {"completed": 8},
        ),
        ({"failed": 25, "conditions": [{"type": "Failed", "status": "True"}]}, 0, {"failed": 25}),
        ({"active": 8, "conditions": [{"type": "Suspended", "status": "True"}]}, 8, {}),
    ],
)
def test_who_is_alive_and_how_others_ended(
    tmp_path: Path,
    launcher: Launcher,
    cluster: Cluster,
    status: dict[str, Any],
    alive: int,
    outcomes: dict[str, int],
) -> None:
    pool = make(tmp_path)
    launcher.start(pool)
    cluster.becomes(status)
    assert (launcher.alive(pool), launcher.outcomes(pool)) == (alive, outcomes)


def test_a_deployment_has_as_many_as_it_says(tmp_path: Path, launcher: Launcher, cluster: Cluster) -> None:
    pool = make(tmp_path, options={"kind": "deployment"})
    launcher.start(pool)
    assert (launcher.alive(pool), launcher.outcomes(pool)) == (8, {})
    cluster.becomes({"observedGeneration": 1})  # it leaves out what is 0
    assert (launcher.alive(pool), launcher.outcomes(pool)) == (8, {"queued": 8})
    cluster.becomes({"observedGeneration": 1, "readyReplicas": 3})
    assert (launcher.alive(pool), launcher.outcomes(pool)) == (8, {"queued": 5})


def test_why_pods_do_not_run_is_told(tmp_path: Path, launcher: Launcher, cluster: Cluster) -> None:
    pool = make(tmp_path, workers=5)
    launcher.start(pool)
    full = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": full}
    cluster.becomes(
        {"active": 5, "ready": 1},
        {"phase": "Pending", "conditions": [unplaced]},
        {"phase": "Pending", "conditions": [unplaced]},
        {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
        {"phase": "Pending"},
        {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]},
    )
    assert launcher.outcomes(pool) == {"queued": 4}
    assert launcher.reasons(pool) == {full: 2, "ImagePullBackOff": 1}


def test_a_job_that_has_ended_is_made_again(tmp_path: Path, launcher: Launcher, cluster: Cluster) -> None:
    pool = make(tmp_path)
    launcher.start(pool)
    cluster.becomes({"succeeded": 8, "conditions": [{"type": "Complete", "status": "True"}]})
    launcher.start(pool)
    assert [words[0] for words in cluster.calls()] == ["get", "apply", "get", *["delete"] * 3, "apply"]
    assert launcher.alive(pool) == 8


def test_pods_have_their_time_to_save_and_are_waited_for(
    tmp_path: Path, launcher: Launcher, cluster: Cluster
) -> None:
    pool = everything(tmp_path, "deployment")
    launcher.start(pool)
    (name,) = (found["metadata"]["name"] for found in cluster.objects().values())
    launcher.stop(pool, 30.5)
    where = ["--context=prod", "--namespace=ml"]
    first, pods, last = cluster.calls()[-3:]
    ends = [*where, "delete", "deployment", name, "--ignore-not-found", "--cascade=foreground"]
    assert (first, last) == ([*ends, "--wait=false"], [*ends, "--timeout=60s"])
    assert pods[:5] == [*where, "delete", "pods", f"--selector=app.kubernetes.io/instance={name}"]
    assert "--grace-period=31" in pods
    assert launcher.alive(pool) == 0
    shown = f"kubectl --context=prod --namespace=ml logs --prefix --tail=-1 {pods[4]}"
    assert launcher.logs(pool) == shown


def test_with_an_output_the_manifest_is_written_and_no_cluster_is_needed(
    tmp_path: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "pool.json"
    pool = make(tmp_path, options={"output": str(file), "context": "prod"})
    told = write_manifest(pool)
    check_facts(told, f"kubectl --context=prod apply -f {file}", f"delete -f {file}", launcher.logs(pool))
    assert json.loads(file.read_text()) == manifest(pool)
    assert shutil.which("kubectl") is None
    written = file.stat()
    for call in (launcher.start, launcher.alive, launcher.outcomes, lambda pool: launcher.stop(pool, 60)):
        with raises(ConfigurationError, f"output={file}", f"kubectl --context=prod get -f {file}"):
            call(pool)
    assert file.stat() == written
    with raises(LauncherFailed, "--launcher-option", "output=FILE"):
        launcher.start(make(tmp_path))


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with raises(ConfigurationError, "output=", "no/pool.json"):
        write_manifest(make(tmp_path, options={"output": str(tmp_path / "no/pool.json")}))


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        (
            "The connection to the server was refused\nis it right?",
            "The connection to the server was refused\nis it right?",
        ),
        ("", 'E1123 07:06:23.908690   16239 memcache.go:265] "Unhandled Error" err="no route"'),
    ],
)
def test_what_kubectl_says_is_passed_on_without_its_log(
    tmp_path: Path, launcher: Launcher, cluster: Cluster, why: str, shown: str
) -> None:
    cluster.store.write_text(json.dumps({"unreachable": why}))
    with pytest.raises(LauncherFailed, match=f"^{re.escape(f'kubectl get failed: {shown}')}$"):
        launcher.alive(make(tmp_path))
