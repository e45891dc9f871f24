"""A study on several machines to which faults happen at random, and what is left of it. See `bench/chaos.py`."""

import json
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import chaos_blackbox
from chaos_checker import Evidence, check, collect, collect_black_box, operations, tree
from chaos_faults import KINDS, Chaos, Fault
from chaos_study import HOLD, NAME, OPTIONS, STEPS, study
from chaos_study import now as clock
from chaos_world import World
from phyla.controller import StudyRecords
from phyla.errors import StoreError
from phyla.records import StudyState
from phyla.store import Store, open_store
from stories import JOBS, jobs_in, tell

CREWS = (1, 2, 0, 0, 0)
"""Worker processes on each machine; 0 for a worker without a supervisor."""
CLIENTS = 2
"""Of the black-box form, on a study of their own, on a machine each."""
MEMBERS = 8
TRIALS_A_MINUTE = 30
"""Trials of each member."""
SLOWEST_S = 4.0
PATIENCE_S = 240.0
"""How long the study may take to its end once everything is healed."""


@dataclass
class Outcome:
    """What was done to a study, and what was wrong then."""

    seed: int
    options: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    requests: dict[str, int] = field(default_factory=dict)
    trials: int = 0
    attempts: int = 0
    exits: dict[str, int] = field(default_factory=dict)
    stories: list[str] = field(default_factory=list)
    began: int = field(default_factory=clock)
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        faults = [[fault.at, fault.kind, fault.what, round(fault.lasts_s, 1)] for fault in self.faults]
        return {**vars(self), "faults": faults}


class Watch:
    """Knows how far the studies are, and sets the pace of training, in a thread of its own.

    Args:
        world: where it runs.
        total: how many trials the first study will have.
        ends_at: when chaos ends.
        names: of the studies.
    """

    def __init__(self, world: World, total: int, ends_at: float, names: Sequence[str] = (NAME,)) -> None:
        self.world, self.total, self.ends_at, self.names = world, total, ends_at, names
        self.completed = 0
        self.over = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pace_s = 0.2
        began = time.monotonic()
        with StoreOf(self.world) as store:
            while not self._stop.wait(1.0):
                with suppress(StoreError):
                    studies = [store.find_study(name) for name in self.names]
                    if studies[0] is None:
                        continue
                    with store.reader(studies[0].id) as reader:
                        self.completed = reader.counts().get("completed", 0)
                    self.over = all(one and one.state is StudyState.COMPLETED for one in studies)
                left_s = self.ends_at - time.monotonic()
                share = self.completed / self.total
                due = (time.monotonic() - began) / max(self.ends_at - began, 1e-9)
                # As fast as it takes to be done when chaos is; after that as fast as it can.
                pace_s = (
                    0.0 if left_s <= 0 else min(SLOWEST_S, max(0.02, pace_s * (1.15 if share > due else 0.85)))
                )
                self.world.set_pace(f"{pace_s:g}")

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(30.0)


class StoreOf:
    """The store of a world, reached past the service; it notices a dead server within seconds."""

    def __init__(self, world: World) -> None:
        alive = (
            "keepalives_idle=2&keepalives_interval=1&keepalives_count=3&connect_timeout=5&tcp_user_timeout=5000"
        )
        self._store = open_store(f"{world.storage}?{alive}")

    def __enter__(self) -> Store:
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def run(folder: Path, *, minutes: float, seed: int, every_s: float, lease_s: float) -> Outcome:
    """Let a study run, and faults happen; then heal everything, wait for its end, and judge it.

    Args:
        folder: new, for everything; kept.
        minutes: how long faults happen.
        seed: decides what is done.
        every_s: seconds between two faults, on average.
        lease_s: how long leases are.
    """
    trials = max(4, round(TRIALS_A_MINUTE * minutes))
    options = {
        "members": MEMBERS,
        "trials": trials,
        "quorum": 0.8,
        "seed": seed,
        "lease_s": lease_s,
        "repeats": 0.08,
    }
    outcome = Outcome(seed, {**options, "minutes": minutes, "every_s": every_s})
    began = time.monotonic()
    world = World(folder, options, CREWS, CLIENTS)
    world.begin()
    world.add(0)
    with StoreOf(world) as store:
        world.until(lambda: store.find_study(NAME) is not None, "the study")
        _begin_black_box(world, store, lease_s)
    for number in range(1, len(world.machines)):
        world.add(number)
    ends_at = time.monotonic() + 60.0 * minutes
    outcome.seconds["start"] = round(time.monotonic() - began, 1)
    watch = Watch(world, MEMBERS * trials, ends_at, (NAME, chaos_blackbox.NAME))
    chaos, outcome.began = Chaos(world, seed, lease_s), clock()
    next_at = time.monotonic()
    while (now := time.monotonic()) < ends_at and not watch.over:
        if now >= next_at:
            chaos.inject()
            next_at = now + chaos.random.expovariate(1.0 / every_s)
        chaos.heal()
        world.look(chaos.random.random())
        time.sleep(0.02)
    outcome.seconds["chaos"] = round(time.monotonic() - now + 60.0 * minutes - (ends_at - now), 1)
    chaos.heal(everything=True)
    outcome.faults = chaos.done
    healed = time.monotonic()
    _finish(world, watch, outcome)
    outcome.seconds["end"] = round(time.monotonic() - healed, 1)
    judge(world, outcome, trials)
    with StoreOf(world) as store:
        at = (world.black_box_history, world.black_box)
        evidence = collect_black_box(store, chaos_blackbox.NAME, *at, trials * STEPS)
    _judged(outcome, "black box ", evidence)
    return outcome


def _begin_black_box(world: World, store: Store, lease_s: float) -> None:
    """Create the study of the black-box clients, with short leases, before any service has looked at it."""
    table = chaos_blackbox.table(world.options["seed"], world.options["trials"])
    chaos_blackbox.send(world.url(world.services[0]), world.secret.read_text().strip(), "", table, 30.0)
    study = store.find_study(chaos_blackbox.NAME)
    assert study is not None
    options: Any = study.config["options"]
    config = {**study.config, "options": {**options, "lease_s": lease_s}}
    StudyRecords(store, study.id).store_config(config, study.config)


def elastic(folder: Path, *, seed: int, lease_s: float, trials: int) -> Outcome:
    """Run a study with 1 worker, then 16, of which 12 end without a word, then 4 more.

    Its trials must be those of the same study on one machine, where nothing happens, up to their order.

    Args:
        folder: new, for everything; kept.
        seed: of the study, and of who is lost.
        lease_s: how long leases are.
        trials: of each member.
    """
    options = {"members": 20, "trials": trials, "quorum": 1.0, "seed": seed, "lease_s": lease_s, "repeats": 0.05}
    outcome = Outcome(seed, options)
    began = time.monotonic()
    alone = _alone(folder / "alone", options)
    world = World(folder / "world", options, (0,) * 20)
    total = 20 * trials
    world.begin()
    with StoreOf(world) as store:

        def completed() -> int:
            study = store.find_study(NAME)
            if study is None:
                return 0
            with store.reader(study.id) as reader:
                return reader.counts().get("completed", 0)

        def add(numbers: range) -> None:
            """Add workers, and wait until all have asked for work; meanwhile, nobody goes on."""
            world.set_pace(HOLD)
            for number in numbers:
                world.add(number)
            world.until(lambda: len(_workers(world)) == numbers.stop, f"{numbers.stop} workers")
            world.set_pace("0.1")

        add(range(1))
        world.until(lambda: completed() >= 2, "the first worker")
        add(range(1, 16))
        world.until(lambda: completed() >= total // 4, "16 workers")
        world.set_pace(HOLD)
        for number in random.Random(seed).sample(range(16), 12):
            machine = world.machines[number]
            del world.units[machine.name]
            machine.cut_power()
            outcome.faults.append(Fault("lost", machine.name, at=round(time.monotonic() - began, 2)))
        add(range(16, 20))
    _finish(world, Watch(world, total, time.monotonic()), outcome)
    evidence = judge(world, outcome, trials)
    if tree(evidence.trials) != alone:
        outcome.violations.append("the trials are not those of the study that ran alone")
    outcome.seconds["all"] = round(time.monotonic() - began, 1)
    return outcome


def _workers(world: World) -> set[str]:
    """Return the workers that have asked for work."""
    lines = world.history.read_text().splitlines() if world.history.exists() else []
    asked = (json.loads(line) for line in lines if '"do": "complete"' in line)
    return {line["asked"]["worker"] for line in asked}


def _alone(folder: Path, options: Mapping[str, Any]) -> list[Any]:
    """Return the trials of a study on one machine, where nothing happens."""
    folder.mkdir(parents=True)
    (folder / "pace").write_text("0")
    here = study({**options, "home": folder, "storage": None, "checkpoints": None})
    OPTIONS["pace"] = str(folder / "pace")
    return tree([asdict(row) for row in here.run().trials()])


def _finish(world: World, watch: Watch, outcome: Outcome) -> None:
    """Wait until the study has ended, and its workers have; clean up as the next run would; stop the rest."""
    ends_at = time.monotonic() + PATIENCE_S
    try:
        while not watch.over and time.monotonic() < ends_at:
            world.look(0.5)
            time.sleep(0.05)
    finally:
        watch.stop()
    if not watch.over:
        outcome.violations.append(f"it hangs: {watch.completed} of {watch.total} trials are completed")
    workers = {name: unit for name, unit in world.units.items() if unit.machine in world.machines}
    while any(unit.pid for unit in workers.values()) and time.monotonic() < ends_at:
        for name in ("db", *(service.name for service in world.services)):
            world.units[name].look()
        time.sleep(0.05)
    for name, unit in workers.items():
        if unit.pid is not None:
            outcome.violations.append(f"{name} goes on though the study has ended")
            unit.machine.send(signal.SIGKILL)
        elif unit.process is not None:
            unit.ended.append(unit.process.wait())
        for code, count in sorted(Counter(unit.ended).items()):
            outcome.exits[f"{name}: status {code}"] = count
    # What killed workers left half-written, or did not delete, goes when the study is run again.
    for number in (0, *range(len(world.crews), len(world.machines))[:1]):
        status = world.add(number).start().wait(120.0)
        if status:
            outcome.violations.append(f"running the completed study again ended with status {status}")
    for service in world.services:
        service.send(signal.SIGTERM)


def judge(world: World, outcome: Outcome, trials: int) -> Evidence:
    """Read everything, and say what is wrong."""
    with StoreOf(world) as store:
        evidence = collect(store, NAME, world.history, world.checkpoints / NAME, trials * STEPS)
    _judged(outcome, "", evidence)
    for name, text in world.logs().items():
        if not name.startswith("db/"):
            for trace in re.findall(r"Traceback \(most recent call last\):\n(?: .*\n)*.*\n", text):
                outcome.violations.append(f"a traceback in {name}: {trace}")
    return evidence


def _judged(outcome: Outcome, what: str, evidence: Evidence) -> None:
    """Add what the checker says of one study, and what was asked; `what` is what its lines begin with."""
    violations = check(evidence)
    outcome.violations += [what + violation for violation in violations]
    outcome.stories += stories(violations, evidence.history, outcome)
    outcome.trials += len(evidence.trials)
    outcome.attempts += len(evidence.attempts)
    found = Counter(f"{what}{op.do}: {op.outcome}" for op in operations(evidence.history))
    copies = Counter(f"sent twice ({what}{line['copy']})" for line in evidence.history if line.get("copy"))
    outcome.requests |= {**found, **dict(sorted(copies.items()))}


def stories(violations: Sequence[str], history: Sequence[Mapping[str, Any]], outcome: Outcome) -> list[str]:
    """Return what was asked, answered and done to machines around the jobs that violations speak of."""
    faults = [(fault.at, f"fault: {fault.kind}: {fault.what}") for fault in outcome.faults]
    asked = {line["op"]: line for line in history if line["type"] == "invoke"}

    def speaks(line: Mapping[str, Any], job: int) -> bool:
        more = [*line.get("asked", {}).get("done", ()), *(line.get("answer") or {}).get("work", ())]
        return any(part.get("job") == job for part in (line.get("asked", {}), *more))

    def told(job: int) -> Iterator[tuple[float, object]]:
        for line in history:
            request = asked[line["op"]]
            if speaks(line, job) or speaks(request, job):
                what = {name: line[name] for name in ("asked", "answer", "error") if name in line}
                yield (line["at"] - outcome.began) / 1e9, f"{request['do']} {line['type']} {what}"

    return [tell(job, told(job), faults) for job in jobs_in(violations)[:JOBS]]


def table(outcome: Outcome) -> str:
    """Return how often what was done."""
    done = Counter(fault.kind for fault in outcome.faults)
    rows = [f"| {kind} | {done[kind]} |" for kind in KINDS]
    sent = sum(count for name, count in outcome.requests.items() if name.startswith("sent twice"))
    return "\n".join(
        [
            "| fault | times |",
            "|---|---|",
            *rows,
            f"| **all** | **{len(outcome.faults)}** |",
            f"| a request sent twice | {sent} |",
        ]
    )


__all__ = ["Outcome", "run", "table", "tree"]
