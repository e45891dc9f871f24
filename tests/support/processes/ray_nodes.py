"""A Ray cluster of two nodes on this machine."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waiting import until

ADDRESS = "127.0.0.2"
"""Ray takes 127.0.0.1 for the address of this machine in its network."""
PATIENT = {"health_check_period_ms": 2000, "health_check_timeout_ms": 30000}
"""A busy machine answers late. That a node was ended is noticed by its connection."""
ON_DEMAND = {"prestart_worker_first_driver": False}
"""Start no process for actors that may come."""
ONLY_NODES = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
"""What the head node need not start: its dashboard, what collects logs, and what adds nodes."""
STORE_BYTES = 80 * 2**20
"""The least that Ray allows."""


def node(**more: Any) -> dict[str, Any]:
    """Return what a small node has."""
    return {"node_ip_address": ADDRESS, "object_store_memory": STORE_BYTES, "num_cpus": 1, "num_gpus": 1, **more}


def last_logs() -> str:
    """Return the ends of what the nodes that run have logged."""
    folder = Path(os.environ["RAY_TMPDIR"]) / "ray" / "session_latest" / "logs"
    files = sorted(file for file in folder.glob("*") if file.is_file() and file.stat().st_size)
    return "\n".join(f"{file.name}:\n{file.read_text(errors='replace')[-3000:]}" for file in files)


def until_free() -> None:
    """Wait until nothing on the nodes is reserved."""
    import ray

    state: Any = ray
    ray.init(address="auto", configure_logging=False, log_to_driver=False)
    try:
        until(lambda: state.available_resources() == state.cluster_resources(), "all resources are free")
    finally:
        ray.shutdown()


@contextmanager
def ray_nodes() -> Iterator[Any]:
    """Start two nodes; their address is in RAY_ADDRESS meanwhile."""
    folder = tempfile.mkdtemp(prefix="ray")  # pytest's own are too long for the names of sockets
    settings = {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    before = {name: os.environ.get(name) for name in (*settings, "RAY_ADDRESS")}
    os.environ.update(settings)
    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.ERROR)
    head = node(**ONLY_NODES, _system_config={**PATIENT, **ON_DEMAND})
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**node())
        os.environ["RAY_ADDRESS"] = cluster.address
        yield cluster
    finally:
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder, ignore_errors=True)
