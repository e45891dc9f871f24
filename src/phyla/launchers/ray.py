"""Workers of a pool as actors of Ray: each only runs the pool's command, with the resources that it asks for.

A worker whose trials run on several nodes reserves nothing; each of its trials requests what it needs there.

Ray chooses their nodes, restarts those of a dead node elsewhere, and adds nodes if it autoscales. They
continue when the process that started them ends.
"""

import contextlib
import json
import math
import platform
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from phyla.errors import ConfigurationError, LauncherFailed
from phyla.formatting import size
from phyla.launchers.contract import Launcher, Pool, refuse_options, refuse_store
from phyla.launchers.ray_calls import ray_calls, with_parent
from phyla.settings import RAY_ADDRESS, RAY_BUNDLE, child_environment, ray_address
from phyla.supervision.gpus import VISIBLE
from phyla.system.listening import check_listening

CALL_S = 60.0  # that Ray has to answer
ANSWER_S = 10.0  # after which an actor that does not answer waits for resources, or has lost its node
LOOK_S = 2.0  # that an actor has to answer, or is queued
GONE_S = 30.0  # that Ray has to end actors, besides the grace of their commands
LOGS = "worker-*.log"


@final
class RayCommand:
    """An actor that runs one command, and ends when it ends.

    Args:
        arguments: the program and its arguments; an empty program is the interpreter of the node.
        environment: variables besides those of the node.
        directory: where it runs, if the node has that directory.
        log: where its output goes, if the node has that directory; else Ray keeps it.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], directory: str, log: str) -> None:
        self._arguments = [arguments[0] or sys.executable, *arguments[1:]]
        self._environment, self._directory, self._log = environment, directory, Path(log)
        self._started = threading.Event()
        # The kernel watches the thread that starts a command, so that thread stays.
        threading.Thread(target=self._run, name="phyla-command").start()
        self._started.wait()

    def running(self) -> bool:
        """Do nothing; an answer shows that the actor is alive."""
        return True

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM to the command, and kill it if it is still running after the grace time."""
        self._process.terminate()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _run(self) -> None:
        import ray

        try:
            with self._log.open("ab") if self._log.parent.is_dir() else contextlib.nullcontext() as output:
                self._process = subprocess.Popen(
                    with_parent(*self._arguments),
                    env=child_environment(self._environment),
                    cwd=self._directory if Path(self._directory).is_dir() else None,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=None if output is None else subprocess.STDOUT,
                    start_new_session=True,
                )
                self._started.set()
                self._process.wait()
        finally:
            ray.kill(ray.get_runtime_context().current_actor)


@final
class Ray(Launcher):
    """Places workers on the nodes of a Ray cluster."""

    def check(self, pool: Pool) -> None:
        _check_settings(pool)
        self.alive(pool)

    def start(self, pool: Pool) -> None:
        _check_settings(pool)
        _call(CALL_S, _start, pool, platform.node())

    def alive(self, pool: Pool) -> int:
        return int(_call(CALL_S, _count, pool))

    def stop(self, pool: Pool, grace_s: float) -> None:
        """Ask the commands to exit, kill the remaining ones after the grace time, and wait for the actors."""
        if self.alive(pool):  # else it takes longer to notice that Ray does not answer
            _call(CALL_S + ANSWER_S + grace_s + 2 * GONE_S, _stop, pool, grace_s, ANSWER_S)

    def outcomes(self, pool: Pool) -> Mapping[str, int]:
        """Return how many actors start, or wait for resources."""
        return {"queued": len(waiting)} if (waiting := _call(CALL_S + LOOK_S, _waiting, pool, LOOK_S)) else {}

    def reasons(self, pool: Pool) -> Mapping[str, int]:
        """Return what actors wait for, if no node has that."""
        return Counter(filter(None, _call(CALL_S + LOOK_S, _waiting, pool, LOOK_S)))

    def logs(self, pool: Pool) -> str:
        """Return the pattern of their logs, or where Ray shows what nodes print that do not see the folder."""
        if any(pool.folder.glob(LOGS)):
            return str(pool.folder / LOGS)
        return f"Ray's dashboard, at the actors {pool.name}-0 ... in the namespace {_namespace(pool)}"


def _check_settings(pool: Pool) -> None:
    refuse_options(pool, ("address",))
    if pool.gpus > 1 and not float(pool.gpus).is_integer():
        raise ConfigurationError(f"gpus={pool.gpus:g}: Ray gives whole GPUs, or a fraction of one such as 0.5")


def _call(limit_s: float, function: Callable[..., Any], pool: Pool, *arguments: Any) -> Any:
    """Call one of the functions below in another process, with the address of the cluster."""
    address = pool.options.get("address", "auto")
    if address == "auto":
        address = ray_address() or "auto"  # Ray would take it too, but only here is it known whether it answers
    if address == "local":
        raise ConfigurationError("address=local: that Ray would end with this command; start `ray start --head`")
    return ray_calls().call(f"Ray at {address!r}", limit_s, function, address, pool, *arguments)


def _count(address: str, pool: Pool) -> int:
    with _connect(address, pool) as (_, actors):
        return len(actors)


def _waiting(address: str, pool: Pool, answer_s: float) -> list[str]:
    """Return for each actor that does not answer what no node has of what it reserves; "" if a node has it all."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    reserved = {names.get(name, name): amount for name, amount in _reserve(pool).items()}
    with _connect(address, pool) as (ray, actors):
        answers = []
        for name in actors:
            with contextlib.suppress(ValueError):  # it ended meanwhile
                answers.append(ray.get_actor(name, namespace=_namespace(pool)).running.remote())
        waiting = ray.wait(answers, num_returns=len(answers), timeout=answer_s)[1] if answers else []
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fits = any(all(node.get(name, 0) >= amount for name, amount in reserved.items()) for node in nodes)
        wanted = ", ".join(
            f"{name} {size(int(amount)) if name == 'memory' else f'{amount:g}'}"
            for name, amount in reserved.items()
            if amount
        )
        return ["" if fits else f"without a node that has {wanted}"] * len(waiting)


def _start(address: str, pool: Pool, host: str) -> None:
    program, *words = pool.worker("--gpus-per-worker", "0")  # all those that Ray lets it see
    arguments = ["" if program == sys.executable else program, *words]
    # Ray hides no GPU from an actor that requests none.
    reserved = _reserve(pool)
    environment = {"PYTHONUNBUFFERED": "1", **({} if reserved.get("num_gpus") else {VISIBLE: ""})}
    with _connect(address, pool) as (ray, actors):
        if any(node["NodeManagerHostname"] != host for node in ray.nodes() if node["Alive"]):
            refuse_store(pool)
        if pool.nodes > 1:
            environment[RAY_ADDRESS] = ray.get_runtime_context().gcs_address
            environment[RAY_BUNDLE] = json.dumps(bundle := _bundle(pool))
            # Ray would set 1, since the actor reserves no core.
            environment["OMP_NUM_THREADS"] = str(max(1, math.floor(bundle["CPU"])))
        environment |= pool.environment
        kind = ray.remote(RayCommand)
        for index in range(pool.workers):
            name = f"{pool.name}-{index}"
            if name not in actors:
                kind.options(
                    name=name,
                    namespace=_namespace(pool),
                    get_if_exists=True,
                    lifetime="detached",
                    max_restarts=-1,
                    max_concurrency=8,  # so that `stop` need not wait for another one
                    **reserved,
                ).remote(arguments, environment, str(pool.directory), str(pool.folder / f"worker-{index}.log"))


def _stop(address: str, pool: Pool, grace_s: float, answer_s: float) -> None:
    with _connect(address, pool) as (ray, names):
        actors = []
        for name in names:
            with contextlib.suppress(ValueError):  # it ended meanwhile
                actors.append(ray.get_actor(name, namespace=_namespace(pool)))
        stopped = [actor.stop.remote(grace_s) for actor in actors]
        answers = {actor.running.remote(): actor for actor in actors}
        for silent in ray.wait(list(answers), num_returns=len(actors), timeout=answer_s)[1]:
            ray.kill(answers[silent])
        ray.wait(stopped, num_returns=len(actors), timeout=grace_s + GONE_S)
        for actor in actors:
            ray.kill(actor)
        ends_at = time.monotonic() + GONE_S
        while remaining := _actors(ray, pool):
            if time.monotonic() > ends_at:
                raise LauncherFailed(f"Ray has not ended these actors within {GONE_S:g} s: {', '.join(remaining)}")
            time.sleep(0.1)


def _bundle(pool: Pool) -> dict[str, float]:
    """Return what each machine of a worker reserves besides GPUs, by Ray's names."""
    memory = {} if pool.memory_mb is None else {"memory": pool.memory_mb * 2**20}
    return {"CPU": 1 if pool.cpus is None else pool.cpus, **memory}


def _reserve(pool: Pool) -> dict[str, float]:
    """Return what the actor of a worker reserves, as its options."""
    if pool.nodes > 1:
        return {"num_cpus": 0}
    bundle = _bundle(pool)
    return {"num_cpus": bundle.pop("CPU"), "num_gpus": pool.gpus, **bundle}


def _namespace(pool: Pool) -> str:
    return f"phyla-{pool.identity()}"


def _actors(ray: Any, pool: Pool) -> list[str]:
    """Return the names of the pool's actors that run, start, or wait for resources."""
    actors, namespace = ray.util.list_named_actors(all_namespaces=True), _namespace(pool)
    return [actor["name"] for actor in actors if actor["namespace"] == namespace]


@contextlib.contextmanager
def _connect(address: str, pool: Pool) -> Iterator[tuple[Any, list[str]]]:
    """Connect to Ray; yield it and the names of the pool's actors."""
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError(f"launcher 'ray' needs Ray: pip install 'phyla[ray]' ({error})") from error
    try:
        check_listening(address.removeprefix("ray://"))  # Ray would try for minutes
        ray.init(address=address, configure_logging=False, log_to_driver=False)
        yield ray, _actors(ray, pool)
    except (OSError, ImportError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        why = str(error).rstrip(".")
        raise LauncherFailed(
            f"Ray at {address!r} cannot be used: {why}. Start one with `ray start --head`, or give its address: "
            "--launcher-option address=HOST:6379, or address=ray://HOST:10001 from outside its network"
        ) from error
    finally:
        ray.shutdown()
