"""What starts the ranks of a gang: `srun` in a job of Slurm, or `on_ray.py` on a Ray cluster.

An engine is a command line that runs what follows it once on each of several machines, as `srun` does: it passes
its standard input on to each, streams their output, and exits once all have ended. Nothing else is asked of it:
how ranks meet, stop and end is done by `gang.py` and `rank.py`, so another engine is another command line.
"""

import importlib.util
import json
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from phyla import settings
from phyla.errors import ConfigurationError
from phyla.formatting import size
from phyla.system.listening import check_listening
from phyla.worker.containment import keeper
from phyla.worker.gangs import gang, on_ray, rank

PER_RANK = {"node_rank": rank.NODE_RANK, "master_addr": rank.MASTER_ADDR, "master_port": rank.MASTER_PORT}
"""Placeholders that are filled in on each machine."""
RESOURCES = ("nodes", "gpus")
_JOIN = """
unset PHYLA_WORKER
trap "" HUP INT TERM USR1 USR2
python=$1 rank=$2 keeper=$3
shift 3
exec "$python" -I -S "$rank" "$keeper" "${NUMBER}" "$@"
"""


@final
@dataclass(frozen=True)
class Engine:
    """How one engine runs ranks.

    Attributes:
        words: its command line, without that of the ranks.
        number: the variable that has the number of a rank, from 0.
        removed: variables of the worker that ranks should not have.
        name: of what runs them, for messages.
        needed: the machines that it waits for, for messages.
    """

    words: Sequence[str]
    number: str
    removed: Sequence[str]
    name: str
    needed: str = "nodes that are free"

    def wrap(self, arguments: Sequence[str], nodes: int, waits: Path) -> list[str]:
        """Return the command line that runs a command on several machines.

        Args:
            arguments: the command, with the values of `PER_RANK` in it.
            nodes: how many machines.
            waits: a file that has a line while the engine waits for machines.
        """
        join = ["/bin/sh", "-c", _JOIN.replace("NUMBER", self.number), "phyla", sys.executable]
        host = [sys.executable, "-I", "-S", gang.__file__, str(nodes), str(waits), self.name, self.needed]
        return [*host, *self.words, *join, rank.__file__, keeper.__file__, *arguments]


def check_resources(resources: object, where: str) -> dict[str, int]:
    """Return the machines of a trial, and the GPUs on each.

    Raises:
        ConfigurationError: it is something else.
    """
    if not isinstance(resources, Mapping) or not set(resources) <= set(RESOURCES):
        raise ConfigurationError(f"{where}: give the machines of a trial, as in {{'nodes': 4, 'gpus': 8}}")
    for name, least in zip(RESOURCES, (1, 0), strict=True):
        number = resources.get(name, least)
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ConfigurationError(f"{where}: {name} must be an integer of at least {least}")
    return {name: int(resources[name]) for name in RESOURCES if name in resources}


def engine_for(resources: Mapping[str, int]) -> Engine:
    """Return the engine that this process can use: the Ray cluster that is named, or the allocation of Slurm.

    Raises:
        ConfigurationError: there is none, or it never has as many machines.
    """
    nodes, gpus = resources.get("nodes", 1), resources.get("gpus", 0)
    if settings.ray_address() is not None:
        return _make_ray(nodes, gpus)
    allocated = settings.slurm_nodes()
    if allocated is None or shutil.which("srun") is None:
        raise ConfigurationError(
            f"resources={dict(resources)}: a trial on {nodes} nodes needs an engine that starts its ranks, and "
            "there is none here. Run this inside an allocation of Slurm (sbatch, salloc), with the RAY_ADDRESS of "
            "a Ray cluster, or with --launcher slurm or ray; for one machine, set nodes to 1"
        )
    if allocated < nodes:
        raise ConfigurationError(
            f"resources={dict(resources)}: a trial needs {nodes} nodes, and this allocation of Slurm has "
            f"{allocated}; allocate at least --nodes={nodes}"
        )
    return Engine(
        words=[
            *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"),
            *("--wait=0", "--export=ALL", "--mem=0", "--job-name=phyla"),
            *([f"--gres=gpu:{gpus}"] if gpus else []),
        ],
        number="SLURM_PROCID",
        # Ranks see the GPUs that the engine gives them.
        removed=[*settings.slurm_step(), "CUDA_VISIBLE_DEVICES"],
        name="srun",
    )


def check_engine(resources: Mapping[str, int]) -> None:
    """Reject resources that no engine here can give, or a Ray cluster that does not answer."""
    engine_for(resources)
    address = settings.ray_address()
    if address is not None:
        try:
            check_listening(address.removeprefix("ray://"))
        except OSError as error:
            raise ConfigurationError(
                f"RAY_ADDRESS={address}: that Ray cannot be used: {error}. Start one with `ray start --head`, "
                "correct the address, or unset RAY_ADDRESS to use Slurm"
            ) from error


def _make_ray(nodes: int, gpus: int) -> Engine:
    if importlib.util.find_spec("ray") is None:
        raise ConfigurationError(
            f"a trial on {nodes} nodes of the Ray cluster at RAY_ADDRESS needs Ray: pip install 'phyla[ray]'"
        )
    bundle = {**settings.ray_bundle(), **({"GPU": gpus} if gpus else {})}
    amounts = [size(int(amount)) if name == "memory" else f"{amount:g}" for name, amount in bundle.items()]
    needed = ", ".join(f"{amount} {name}" for amount, name in zip(amounts, bundle, strict=True))
    return Engine(
        words=[sys.executable, "-P", on_ray.__file__, str(nodes), json.dumps(bundle)],
        number=on_ray.NUMBER,
        removed=["CUDA_VISIBLE_DEVICES"],
        name="Ray",
        needed=f"nodes that have {needed} free",
    )


def values_here(resources: Mapping[str, int]) -> dict[str, str | None]:
    """Return the placeholders of a trial on several machines; on one machine also those of its only rank."""
    gpus = resources.get("gpus")
    values = {"nodes": str(resources.get("nodes", 1)), "gpus_per_node": None if gpus is None else str(gpus)}
    if resources.get("nodes", 1) > 1:
        return {**values, **PER_RANK}
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    return {**values, "node_rank": "0", "master_addr": "127.0.0.1", "master_port": str(port)}
