"""A real Slurm cluster on this machine: munge, slurmctld, and a slurmd for each node, in a folder of its own."""

import contextlib
import getpass
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from waiting import until

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
MailProg=/bin/true
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=8
MinJobAge=2
InactiveLimit=0
ReturnToService=2
"""
PARTITIONS = """
PartitionName=requeue Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 MaxTime=60 State=UP
PartitionName=cancel Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=20 MaxTime=60 State=UP
PartitionName=abrupt Nodes=ALL PriorityTier=1 PreemptMode=CANCEL MaxTime=60 State=UP
PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF MaxTime=60 State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN\n"


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs; `environment` makes Slurm's commands speak to it."""

    folder: Path
    environment: Mapping[str, str]

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run one of Slurm's commands."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    def call(self, *words: str) -> str:
        """Run one of Slurm's commands, which has to succeed, and return what it prints."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def is_idle(self, node: str) -> bool:
        """Return whether a node can take jobs."""
        return "idle" in self.run("sinfo", "-h", "-n", node, "-o", "%T").stdout

    def empty(self) -> None:
        """Cancel everything, and wait until the node is free; have it take jobs again."""
        self.run("scancel", "--me", "--quiet")  # A job may end meanwhile, which it calls an error.
        until(lambda: not self.call("squeue", "-h"), "no job is left")
        for node in {*self.call("sinfo", "-h", "-N", "--states=drain", "-o", "%N").split()}:
            # Slurm sometimes does not see the end of a job that it killed, and then gives its node no other one.
            self.call("scontrol", "update", f"NodeName={node}", "State=RESUME")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@contextlib.contextmanager
def cluster(nodes: int = 1) -> Iterator[Cluster]:
    """Run a cluster, and end it with all its jobs; its nodes are `node1`, `node2`, ..."""
    # The path of a socket may be 107 bytes long.
    with tempfile.TemporaryDirectory(prefix="slurm") as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        host, (port, *ports) = socket.gethostname(), _free_ports(1 + nodes)
        names = {f"node{number}": port for number, port in enumerate(ports, start=1)}
        told = CONFIGURATION.format(folder=folder, port=port, host=host, user=getpass.getuser())
        told += "".join(NODE.format(name=name, host=host, port=port) for name, port in names.items()) + PARTITIONS
        (folder / "slurm.conf").write_text(told)
        environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        daemons = {
            "munged": [
                *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"),
                *(f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log"),
                *(f"--seed-file={folder}/munged.seed", "--num-threads=2"),
            ],
            "slurmctld": ["slurmctld", "-D", "-i"],
            **{name: ["slurmd", "-D", "-N", name] for name in names},
        }
        found = Cluster(folder, environment)
        ready: dict[str, Callable[[], bool]] = {
            "munged": (folder / "munge.socket").exists,
            "slurmctld": lambda: not found.run("scontrol", "ping").returncode,
            **{name: partial(found.is_idle, name) for name in names},
        }
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
        for name, words in daemons.items():
            with open(folder / f"{name}.out", "w") as output:
                daemon = subprocess.Popen(
                    words,
                    env={**os.environ, **environment, "PATH": path},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            stack.callback(daemon.wait)
            stack.callback(daemon.kill if name != "munged" else daemon.terminate)
            try:
                until(ready[name], f"{name} is ready")
            except AssertionError as error:
                logs = [file.read_text()[-3000:] for file in folder.glob("*.out")]
                raise AssertionError("\n".join([str(error), *logs])) from error
        stack.callback(found.empty)
        yield found


def speak_to(found: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Let Slurm's commands speak to a cluster during a test, which leaves no jobs."""
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    yield found
    found.empty()
