"""A real Slurm cluster of one node on this machine: munge, slurmctld and slurmd, in a folder of its own."""

import contextlib
import getpass
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from waiting import until

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
MailProg=/bin/true
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
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
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=requeue Nodes=node Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 MaxTime=60 State=UP
PartitionName=cancel Nodes=node PriorityTier=1 PreemptMode=CANCEL GraceTime=20 MaxTime=60 State=UP
PartitionName=abrupt Nodes=node PriorityTier=1 PreemptMode=CANCEL MaxTime=60 State=UP
PartitionName=urgent Nodes=node PriorityTier=9 PreemptMode=OFF MaxTime=60 State=UP
"""


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

    def empty(self) -> None:
        """Cancel everything, and wait until the node is free; have it take jobs again."""
        self.run("scancel", "--me", "--quiet")  # A job may end meanwhile, which it calls an error.
        until(lambda: not self.call("squeue", "-h"), "no job is left")
        if "drain" in self.call("sinfo", "-h", "-o", "%T"):
            # Slurm sometimes does not see the end of a job that it killed, and then gives its node no other one.
            self.call("scontrol", "update", "NodeName=node", "State=RESUME")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Run a cluster, and end it with all its jobs."""
    # The path of a socket may be 107 bytes long.
    with tempfile.TemporaryDirectory(prefix="slurm") as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        told = CONFIGURATION.format(
            folder=folder, ports=_free_ports(2), host=socket.gethostname(), user=getpass.getuser()
        )
        (folder / "slurm.conf").write_text(told)
        environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        daemons = {
            "munged": [
                *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"),
                *(f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log"),
                *(f"--seed-file={folder}/munged.seed", "--num-threads=2"),
            ],
            "slurmctld": ["slurmctld", "-D", "-i"],
            "slurmd": ["slurmd", "-D", "-N", "node"],
        }
        found = Cluster(folder, environment)
        ready = {
            "munged": (folder / "munge.socket").exists,
            "slurmctld": lambda: not found.run("scontrol", "ping").returncode,
            "slurmd": lambda: "idle" in found.run("sinfo", "-h", "-o", "%T").stdout.split(),
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
