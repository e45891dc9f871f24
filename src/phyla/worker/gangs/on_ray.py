"""Runs a command once on each of several nodes of a Ray cluster, as `srun` does on nodes of Slurm.

A program, run by its path beneath `gang.py`: `on_ray.py NODES BUNDLE ARGUMENT...`, where BUNDLE says in JSON what
Ray reserves on each node. It passes its standard input on to each command, and prints what they print.

Ray removes the placement group and ends the tasks when this process ends, however it does. The commands end with
their connections; see `rank.py`.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from phyla.settings import child_environment, ray_address
from phyla.system.listening import check_listening

CHUNK_BYTES = 1 << 16
NUMBER = "PHYLA_NODE_RANK"
"""The variable that has the number of a rank."""
OF_NODE = "RAY_"
"""Beginning of the names of variables that each node has its own values of."""
STATUS = 0
"""Marks an exit status in what a task yields; other numbers are those of streams."""


def run_rank(
    arguments: Sequence[str], place: bytes, environment: Mapping[str, str], directory: str
) -> Iterator[tuple[int, bytes]]:
    """Run a command in a task of Ray; yield what it prints, by stream, and its exit status unless that is 0."""
    with subprocess.Popen(
        arguments,
        env=child_environment(environment),
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(place)
        yield from _read((process.stdout, process.stderr))
    if process.returncode:
        yield STATUS, str(process.returncode).encode()


def _read(streams: Sequence[Any]) -> Iterator[tuple[int, bytes]]:
    """Yield what arrives in standard output and standard error, until both have ended."""
    with selectors.DefaultSelector() as selector:
        for number, stream in enumerate(streams, start=1):
            selector.register(stream, selectors.EVENT_READ, number)
        while selector.get_map():
            for key, _ in selector.select():
                if chunk := os.read(key.fd, CHUNK_BYTES):
                    yield key.data, chunk
                else:
                    selector.unregister(key.fileobj)


def start(ray: Any, nodes: int, bundle: Mapping[str, float], arguments: Sequence[str]) -> list[Any]:
    """Start a command on each of several nodes; return the generators of what they print."""
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    place, gpus = sys.stdin.buffer.readline(), bundle.get("GPU", 0)
    ours = {name: value for name, value in child_environment({}).items() if not name.startswith(OF_NODE)}
    # Ray hides no GPU from a task that requests none.
    hidden = {} if gpus else {"CUDA_VISIBLE_DEVICES": ""}
    group = placement_group([dict(bundle)] * nodes, strategy="STRICT_SPREAD")
    task = ray.remote(run_rank)
    outputs = []
    for rank in range(nodes):
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        how = {"num_cpus": bundle.get("CPU", 0), "num_gpus": gpus, "max_retries": 0, "num_returns": "streaming"}
        environment = {**ours, **hidden, NUMBER: str(rank)}
        outputs.append(
            task.options(**how, scheduling_strategy=where).remote(arguments, place, environment, str(Path.cwd()))
        )
    return outputs


def main(nodes: int, bundle: Mapping[str, float], arguments: Sequence[str]) -> None:
    """Run a command on each of several nodes; exit as the first that fails."""
    import ray

    address = ray_address() or ""
    try:
        check_listening(address.removeprefix("ray://"))  # Ray would try for minutes
    except OSError as error:
        sys.exit(f"phyla: Ray at {address!r}, from RAY_ADDRESS, cannot be used: {error}")
    ray.init(address="auto", configure_logging=False, log_to_driver=False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray set a handler of its own
    outputs = start(ray, nodes, bundle, arguments)
    while outputs:
        output: Any = ray.wait(outputs)[0][0]
        outputs.remove(output)
        try:
            number, chunk = ray.get(next(output))
        except StopIteration:
            continue
        except ray.exceptions.RayError as error:
            sys.exit(f"phyla: Ray lost a rank: {str(error).splitlines()[-1]}")
        if number == STATUS:
            sys.exit(int(chunk))
        os.write(number, chunk)
        outputs.append(output)


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
