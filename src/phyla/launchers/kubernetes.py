"""Workers of a pool as pods: writes a plain manifest, and lets `kubectl` apply it, read it and delete it.

A Job, the default, ends when its workers do: they exit with 0 when the work is done. A worker that was preempted,
or drained with exit status 75, is replaced and does not count as a failure. Workers of a Deployment are always
restarted.
"""

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, final

from phyla.errors import ConfigurationError
from phyla.formatting import quote_command
from phyla.launchers.contract import Launcher, Pool, refuse_nodes, refuse_options, refuse_store, run_program
from phyla.system.fork_safe_signals import EXIT_PREEMPTED

OPTIONS = ("image", "kind", "namespace", "context", "directory", "secret", "volume", "user", "grace", "output")
GRACE_S = 300  # that training has to save after SIGTERM
CALL_S = 60.0  # that the cluster has to answer kubectl
FAILURES = 3  # of each worker before a Job gives up; preemptions are none
EXIT_USAGE = 2
KLOG = r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+:\d+\] "
"""Beginning of the lines that the libraries of kubectl log among its errors."""
DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
NAME_LETTERS = 48
"""Names of Jobs have at most 63 letters, of which the pool's identity takes some."""
INSTANCE = "app.kubernetes.io/instance"
DIRECTORY, SCRATCH, HOME, MEMORY = "/app", "/tmp", "/tmp/phyla", "/dev/shm"
RIGHTS = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}


def manifest(pool: Pool) -> dict[str, Any]:
    """Return the Job or Deployment of a pool, for Kubernetes 1.31 or newer.

    Raises:
        ConfigurationError: an option is missing or invalid.
    """
    refuse_nodes(pool)
    refuse_options(pool, OPTIONS)
    refuse_store(pool)
    name, job, where = _name(pool), _kind(pool) == "job", pool.options.get("namespace")
    labels = {"app.kubernetes.io/name": "phyla", INSTANCE: name, "app.kubernetes.io/component": "worker"}
    spec: dict[str, Any] = {"replicas": pool.workers, "selector": {"matchLabels": {INSTANCE: name}}}
    if job:
        ended = {"containerName": "worker", "operator": "In"}
        rules = [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "Ignore", "onExitCodes": {**ended, "values": [EXIT_PREEMPTED]}},
            {"action": "FailJob", "onExitCodes": {**ended, "values": [EXIT_USAGE]}},
        ]
        spec = {
            "parallelism": pool.workers,
            "backoffLimit": FAILURES * pool.workers,
            "podFailurePolicy": {"rules": rules},
            "podReplacementPolicy": "Failed",
        }
    return {
        "apiVersion": "batch/v1" if job else "apps/v1",
        "kind": "Job" if job else "Deployment",
        "metadata": {"name": name, "labels": labels, **({"namespace": where} if where else {})},
        "spec": {**spec, "template": {"metadata": {"labels": labels}, "spec": _pod(pool)}},
    }


def _pod(pool: Pool) -> dict[str, Any]:
    options, (program, *words) = pool.options, pool.worker("--gpus-per-worker", "0")
    directory = options.get("directory", DIRECTORY)
    if "image" not in options:
        raise ConfigurationError(
            "launcher 'kubernetes' needs an image with phyla and your study file: --launcher-option image=NAME"
        )
    user = _number(pool, "user", 1000)
    # The default shared memory of a container, 64 MiB, is too little for the data loaders of PyTorch.
    kinds: dict[str, Any] = {"scratch": {"emptyDir": {}}, "memory": {"emptyDir": {"medium": "Memory"}}}
    mounts = [{"name": "scratch", "mountPath": SCRATCH}, {"name": "memory", "mountPath": MEMORY}]
    if "volume" in options:
        claim, _, path = options["volume"].partition(":")
        if not path.startswith("/"):
            raise ConfigurationError(f"volume={claim}: give the name of a claim and a path, CLAIM:/PATH")
        kinds["shared"] = {"persistentVolumeClaim": {"claimName": _check_name("volume", claim)}}
        mounts.append({"name": "shared", "mountPath": path})
    worker = {
        "name": "worker",
        "image": options["image"],
        "command": ["python" if program == sys.executable else program, *_words_there(pool, words, directory)],
        "workingDir": directory,
        "env": _environment(pool),
        "resources": _resources(pool),
        "volumeMounts": mounts,
        "securityContext": {**RIGHTS, "capabilities": {"drop": ["ALL"]}},
    }
    ids = {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return {
        "restartPolicy": "Never" if _kind(pool) == "job" else "Always",
        "terminationGracePeriodSeconds": _number(pool, "grace", GRACE_S),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**ids, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [worker],
        "volumes": [{"name": name, **kind} for name, kind in kinds.items()],
    }


def _words_there(pool: Pool, words: Sequence[str], directory: str) -> list[str]:
    """Translate paths of this machine: study files, and the home, of which each pod has its own."""
    here = {file: Path(file) for file in pool.files if Path(file).is_relative_to(pool.directory)}
    there = {word: f"{directory}/{path.relative_to(pool.directory)}" for word, path in here.items()}
    pairs = pairwise(["", *words])
    return [HOME if before == "--home" else there.get(word, word) for before, word in pairs]


def _environment(pool: Pool) -> list[dict[str, Any]]:
    """Return the variables; only the scratch directory can be written to."""
    threads = {} if pool.cpus is None else {"OMP_NUM_THREADS": str(max(1, math.floor(pool.cpus)))}
    usual = {"HOME": SCRATCH, "PHYLA_HOME": HOME, "PYTHONUNBUFFERED": "1", **threads}
    plain = [{"name": name, "value": value} for name, value in {**pool.environment, **usual}.items()]
    if "secret" not in pool.options:
        return plain
    key = {"name": _check_name("secret", pool.options["secret"]), "key": "token"}
    return [*plain, {"name": "PHYLA_TOKEN", "valueFrom": {"secretKeyRef": key}}]


def _resources(pool: Pool) -> dict[str, Any]:
    if not float(pool.gpus).is_integer():
        raise ConfigurationError(f"gpus={pool.gpus:g}: Kubernetes gives containers whole GPUs only")
    memory = {} if pool.memory_mb is None else {"memory": f"{pool.memory_mb}Mi"}
    cpus = {} if pool.cpus is None else {"cpu": f"{pool.cpus:g}"}
    gpus = {"nvidia.com/gpu": f"{pool.gpus:g}"} if pool.gpus else {}
    return {"requests": {**cpus, **memory}, "limits": {**memory, **gpus}}


def _name(pool: Pool) -> str:
    return f"phyla-{_check_name('the name of the pool', pool.name)}-{pool.identity()}"


def _selector(pool: Pool) -> str:
    return f"--selector={INSTANCE}={_name(pool)}"


def _kind(pool: Pool) -> str:
    kind = pool.options.get("kind", "job")
    if kind not in ("job", "deployment"):
        raise ConfigurationError(f"kind={kind}: choose one of: job, deployment")
    return kind


def _check_name(label: str, name: str) -> str:
    if len(name) > NAME_LETTERS or not DNS.fullmatch(name):
        raise ConfigurationError(
            f"{label} is {name!r}, which Kubernetes does not allow: use at most {NAME_LETTERS} lower-case "
            "letters, digits and hyphens, with a letter or digit at both ends"
        )
    return name


def _number(pool: Pool, option: str, default: int) -> int:
    text = pool.options.get(option, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"{option}={text}: must be an integer above 0")
    return int(text)


def write_manifest(pool: Pool) -> str:
    """Write the manifest to the file that the option `output` names; return how to start workers and stop them."""
    file = pool.options["output"]
    text = json.dumps(manifest(pool), indent=2)
    try:
        Path(file).write_text(f"{text}\n")
    except OSError as error:
        raise ConfigurationError(f"output={file}: {error.strerror}") from error
    return (
        f"{file} describes the workers of pool {pool.name}; nothing was started. Start them with: "
        f"{_command(pool, 'apply', '-f', file)}\nstop them with: {_command(pool, 'delete', '-f', file)}\n"
        f"their output: {Kubernetes().logs(pool)}"
    )


@final
class Kubernetes(Launcher):
    """Places workers in a Kubernetes cluster, by `kubectl`."""

    def check(self, pool: Pool) -> None:
        _refuse_output(pool)
        manifest(pool)
        self.alive(pool)

    def start(self, pool: Pool) -> None:
        text = json.dumps(manifest(pool), indent=2)
        if _has_ended(_get(pool)):
            self.stop(pool, 0)  # a Job that has ended starts no pod any more
        _kubectl(pool, "apply", "--filename=-", stdin=text)

    def alive(self, pool: Pool) -> int:
        return _count(_get(pool))

    def stop(self, pool: Pool, grace_s: float) -> None:
        """Delete the Job or Deployment and wait for its pods, which get at most the time of the option `grace`."""
        ends = ("delete", _kind(pool), _name(pool), "--ignore-not-found", "--cascade=foreground")
        pods = ("delete", "pods", _selector(pool), "--ignore-not-found")
        _kubectl(pool, *ends, "--wait=false")
        wait_s = math.ceil(grace_s + CALL_S)
        _kubectl(
            pool, *pods, f"--grace-period={max(1, math.ceil(grace_s))}", f"--timeout={wait_s}s", wait_s=wait_s
        )
        _kubectl(pool, *ends, f"--timeout={CALL_S:g}s", wait_s=CALL_S)

    def outcomes(self, pool: Pool) -> Mapping[str, int]:
        """Return the cluster's status of a Job or Deployment; the latter always restarts its workers."""
        resource = _get(pool) or {}
        status = resource.get("status", {})
        known = {"completed": status.get("succeeded"), "failed": status.get("failed")}
        # Kubernetes leaves out the counts of a Deployment that are 0.
        ready = status.get("ready", status.get("readyReplicas", 0 if "observedGeneration" in status else None))
        if ready is not None:
            known["queued"] = max(0, _count(resource) - ready)
        return {how: count for how, count in known.items() if count}

    def reasons(self, pool: Pool) -> Mapping[str, int]:
        """Return why containers do not start, such as `ImagePullBackOff`, or what the scheduler says."""
        pods = json.loads(_kubectl(pool, "get", "pods", _selector(pool), "--output=json"))["items"]
        return Counter(filter(None, (_reason(pod.get("status", {})) for pod in pods)))

    def logs(self, pool: Pool) -> str:
        return _command(pool, "logs", "--prefix", "--tail=-1", _selector(pool))


def _get(pool: Pool) -> Any:
    """Return the pool's Job or Deployment as the cluster has it; None if there is none."""
    text = _kubectl(pool, "get", _kind(pool), _name(pool), "--ignore-not-found", "--output=json")
    return json.loads(text) if text.strip() else None


def _count(resource: Any) -> int:
    """Return how many workers a Job or Deployment has, or will have once it has started them."""
    if not resource or _has_ended(resource):
        return 0
    spec, status = resource["spec"], resource.get("status", {})
    # Once a worker of a Job has exited with its work done, the Job starts no more workers.
    last = status.get("active", 0) if status.get("succeeded") else None
    return int(spec.get("replicas", spec.get("parallelism")) if last is None else last)


def _reason(status: Any) -> str | None:
    """Return why a pod does not run, if the cluster has told."""
    for container in status.get("containerStatuses", ()):
        if waiting := container.get("state", {}).get("waiting"):
            return str(waiting.get("reason"))
    for condition in status.get("conditions", ()):
        if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
            return str(condition.get("message", condition.get("reason")))
    return None


def _has_ended(resource: Any) -> bool:
    conditions = resource.get("status", {}).get("conditions", ()) if resource else ()
    return any(
        condition["type"] in ("Complete", "Failed") and condition["status"] == "True" for condition in conditions
    )


def _where(pool: Pool) -> list[str]:
    return [f"--{option}={pool.options[option]}" for option in ("context", "namespace") if option in pool.options]


def _command(pool: Pool, *words: str) -> str:
    return quote_command(["kubectl", *_where(pool), *words])


def _refuse_output(pool: Pool) -> None:
    """Reject the option `output`, with which only a manifest is written."""
    if file := pool.options.get("output"):
        raise ConfigurationError(
            f"output={file} writes a manifest and starts nothing, so only `up` accepts it. Leave it out, or see "
            f"what you started from that file with: {_command(pool, 'get', '-f', file)}"
        )


def _kubectl(pool: Pool, *words: str, stdin: str = "", wait_s: float = 0.0) -> str:
    """Call `kubectl` and return its output; with the option `output`, the user does that."""
    _refuse_output(pool)
    missing = "install it, or write the manifest with --launcher-option output=FILE, for `kubectl apply -f FILE`"
    command = ["kubectl", *_where(pool), *words]
    return run_program(
        command, action=f"kubectl {words[0]}", missing=missing, limit_s=wait_s + CALL_S, stdin=stdin, noise=KLOG
    )
