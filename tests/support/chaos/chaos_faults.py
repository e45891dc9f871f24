"""What is done to machines, programs and the network of a `World`, at random."""

import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chaos_world import Machine, Unit, World


@dataclass
class Fault:
    """One thing that was done.

    Attributes:
        kind: name.
        what: to whom.
        heal: undoes what lasts.
        lasts_s: seconds after which to heal it.
        holds: what no other fault touches meanwhile.
        at: when it was done, in seconds since chaos began.
    """

    kind: str
    what: str
    heal: Callable[[], None] = lambda: None
    lasts_s: float = 0.0
    holds: tuple[str, ...] = ()
    at: float = 0.0


NEW = 3
"""How many times as likely a kind of fault is while it has not been done."""


class Chaos:
    """Does one thing after the other.

    Args:
        world: to what.
        seed: decides what is done, and how long it lasts.
        lease_s: how long leases are.
    """

    def __init__(self, world: World, seed: int, lease_s: float) -> None:
        self.world, self.lease_s = world, lease_s
        self.random = random.Random(seed)
        self.done: list[Fault] = []
        self._lasting: list[tuple[float, Fault]] = []
        self._began = time.monotonic()

    def inject(self) -> None:
        """Do something, if what was drawn can be done now; prefer new kinds, for variety in short runs."""
        done = {fault.kind for fault in self.done}
        weights = [weight if kind in done else NEW * weight for kind, (weight, _) in KINDS.items()]
        kind = self.random.choices(list(KINDS), weights)[0]
        _, do = KINDS[kind]
        fault = do(self)
        if fault is not None:
            fault.kind, fault.at = kind, round(time.monotonic() - self._began, 2)
            self.done.append(fault)
            self._lasting.append((time.monotonic() + fault.lasts_s, fault))

    def heal(self, *, everything: bool = False) -> None:
        """Undo what has lasted long enough."""
        now = time.monotonic()
        for entry in [entry for entry in self._lasting if everything or entry[0] <= now]:
            self._lasting.remove(entry)
            entry[1].heal()

    # Choosing

    def span(self, least: float, most: float) -> float:
        """Return some seconds, given in leases."""
        return self.random.uniform(least, most) * self.lease_s

    def free(self, *names: str) -> bool:
        """Return whether nothing that lasts is done to any of these."""
        held = {name for _, fault in self._lasting for name in fault.holds}
        return held.isdisjoint(names)

    def unit(self, machines: list[Machine]) -> Unit | None:
        """Return a program that runs on one of these machines, if nothing is done to it."""
        machine = self.random.choice(machines)
        unit = self.world.units.get(machine.name)
        return unit if unit is not None and unit.pid is not None and self.free(machine.name) else None

    # Programs

    def signal(self, machines: list[Machine], number: int, whose: str = "program") -> Fault | None:
        """Send a signal to a program, a process that it started to train, or all of its machine.

        One that stops them lasts, perhaps for longer than a lease.
        """
        unit = self.unit(machines)
        if unit is None or unit.pid is None:
            return None
        machine = unit.machine
        if whose == "worker" and not machine.workers():
            return None
        pids = {"program": [unit.pid], "machine": [*machine.pids()], "worker": machine.workers()}[whose]
        pids = [self.random.choice(pids)] if whose == "worker" else pids
        machine.send(number, pids)
        what = f"{machine.name} {pids[0]}" if whose == "worker" else machine.name
        if number != signal.SIGSTOP:
            return Fault("", what)
        return Fault("", what, lambda: machine.send(signal.SIGCONT, pids), self.span(0.3, 2.8), (machine.name,))

    def cut_power(self, machines: list[Machine]) -> Fault | None:
        """End a machine without a word; it is started again."""
        unit = self.unit(machines)
        if unit is None:
            return None
        unit.machine.cut_power()
        return Fault("", unit.machine.name)

    # Clocks, and the way to the service

    def skew(self, machines: list[Machine], most_s: float) -> Fault | None:
        """Set a clock wrong for a while."""
        machine = self.random.choice(machines)
        name, ahead_s = f"clock {machine.name}", float(round(self.random.uniform(-most_s, most_s)))
        if not self.free(name):
            return None
        machine.set_clock(ahead_s)
        return Fault(
            "", f"{machine.name} {ahead_s:+g} s", lambda: machine.set_clock(0.0), self.span(0.5, 4.0), (name,)
        )

    def choose(self) -> Fault:
        """Send a machine to the other replica."""
        machine, service = self.random.choice(self.world.machines), self.random.choice(self.world.services)
        self.world.choose(machine, service)
        return Fault("", f"{machine.name} to {service.name}")

    # The network

    def cut(self, ones: list[Machine], others: list[Machine], *, there: bool, back: bool) -> Fault | None:
        """Drop what machines send to others, or what these answer."""
        one = self.random.choice(ones)
        far = others if self.random.random() < 0.5 else [self.random.choice(others)]
        names = tuple(f"cut {one.name} {other.name}" for other in far)
        if not self.free(*names):
            return None
        pairs = [pair for other in far for pair in ([(one, other)] * there + [(other, one)] * back)]
        for pair in pairs:
            self.world.cut(*pair)

        def heal() -> None:
            for pair in pairs:
                self.world.mend(*pair)

        return Fault("", f"{one.name} {', '.join(other.name for other in far)}", heal, self.span(0.3, 3.0), names)


def groups(world: World) -> dict[str, list[Machine]]:
    """Return the machines by what they are for."""
    return {"workers": world.machines, "services": world.services, "database": [world.database]}


def _signal(group: str, number: int, whose: str = "program") -> Callable[[Chaos], Fault | None]:
    return lambda chaos: chaos.signal(groups(chaos.world)[group], number, whose)


def _power(group: str) -> Callable[[Chaos], Fault | None]:
    return lambda chaos: chaos.cut_power(groups(chaos.world)[group])


def _skew(group: str, most_s: float) -> Callable[[Chaos], Fault | None]:
    return lambda chaos: chaos.skew(groups(chaos.world)[group], most_s)


def _cut(ones: str, others: str, *, there: bool = True, back: bool = True) -> Callable[[Chaos], Fault | None]:
    return lambda chaos: chaos.cut(groups(chaos.world)[ones], groups(chaos.world)[others], there=there, back=back)


KINDS: Mapping[str, tuple[float, Callable[[Chaos], Fault | None]]] = {
    "kill -9 a worker process": (4, _signal("workers", signal.SIGKILL, "worker")),
    "pause a worker process": (4, _signal("workers", signal.SIGSTOP, "worker")),
    "kill -9 a supervisor or lone worker": (3, _signal("workers", signal.SIGKILL)),
    "pause a supervisor or lone worker": (3, _signal("workers", signal.SIGSTOP)),
    "pause a machine with workers": (3, _signal("workers", signal.SIGSTOP, "machine")),
    "SIGTERM to a supervisor or lone worker": (2, _signal("workers", signal.SIGTERM)),
    "cut the power of a machine with workers": (2, _power("workers")),
    "kill -9 a service": (4, _signal("services", signal.SIGKILL)),
    "SIGTERM to a service": (1, _signal("services", signal.SIGTERM)),
    "pause a service": (3, _signal("services", signal.SIGSTOP)),
    "cut the power of a service": (1, _power("services")),
    "kill -9 PostgreSQL": (1, _signal("database", signal.SIGKILL)),
    "restart PostgreSQL (fast)": (1, _signal("database", signal.SIGINT)),
    "restart PostgreSQL (immediate)": (1, _signal("database", signal.SIGQUIT)),
    "pause PostgreSQL": (1, _signal("database", signal.SIGSTOP, "machine")),
    "cut the power of PostgreSQL": (1, _power("database")),
    "cut a machine from services": (4, _cut("workers", "services")),
    "lose requests to services": (4, _cut("workers", "services", back=False)),
    "lose answers of services": (4, _cut("workers", "services", there=False)),
    "cut a service from PostgreSQL": (2, _cut("services", "database")),
    "lose queries to PostgreSQL": (1, _cut("services", "database", back=False)),
    "lose answers of PostgreSQL": (1, _cut("services", "database", there=False)),
    "skew the clock of workers": (4, _skew("workers", 3600.0)),
    "skew the clock of a service": (2, _skew("services", 3600.0)),
    "skew the clock of PostgreSQL": (1, _skew("database", 60.0)),
    "send workers to the other service": (3, lambda chaos: chaos.choose()),
}
"""How often each kind of fault is drawn, in parts of all, and what does it."""
