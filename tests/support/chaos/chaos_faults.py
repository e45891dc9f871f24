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
        """Do something, if what was drawn can be done now."""
        kind = self.random.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
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

    def signal_program(self, machines: list[Machine], number: int) -> Fault | None:
        """Send a signal to a program."""
        unit = self.unit(machines)
        if unit is None or unit.pid is None:
            return None
        unit.machine.send(number, [unit.pid])
        return Fault("", unit.machine.name)

    def pause_program(self, machines: list[Machine], *, whole: bool = False) -> Fault | None:
        """Let a program, or its whole machine, stand still for longer than a lease."""
        unit = self.unit(machines)
        if unit is None or unit.pid is None:
            return None
        machine, pids = unit.machine, list(unit.machine.pids()) if whole else [unit.pid]
        machine.send(signal.SIGSTOP, pids)
        return Fault(
            "", machine.name, lambda: machine.send(signal.SIGCONT, pids), self.span(0.3, 2.5), (machine.name,)
        )

    def signal_worker(self, number: int) -> Fault | None:
        """Send a signal to a process that a supervisor started."""
        unit = self.unit(self.world.machines)
        workers = [] if unit is None else unit.machine.workers()
        if unit is None or not workers:
            return None
        pid = self.random.choice(workers)
        unit.machine.send(number, [pid])
        name = unit.machine.name
        if number == signal.SIGSTOP:
            machine = unit.machine
            return Fault(
                "", f"{name} {pid}", lambda: machine.send(signal.SIGCONT, [pid]), self.span(0.5, 3.0), (name,)
            )
        return Fault("", f"{name} {pid}")

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


def _cut(ones: str, others: str, there: bool, back: bool) -> Callable[[Chaos], Fault | None]:
    def do(chaos: Chaos) -> Fault | None:
        world = chaos.world
        groups = {"machines": world.machines, "services": world.services, "database": [world.database]}
        return chaos.cut(groups[ones], groups[others], there=there, back=back)

    return do


KINDS: Mapping[str, tuple[float, Callable[[Chaos], Fault | None]]] = {
    "kill -9 a worker process": (4, lambda chaos: chaos.signal_worker(signal.SIGKILL)),
    "pause a worker process": (4, lambda chaos: chaos.signal_worker(signal.SIGSTOP)),
    "kill -9 a supervisor or lone worker": (
        3,
        lambda chaos: chaos.signal_program(chaos.world.machines, signal.SIGKILL),
    ),
    "pause a supervisor or lone worker": (3, lambda chaos: chaos.pause_program(chaos.world.machines)),
    "pause a machine with workers": (3, lambda chaos: chaos.pause_program(chaos.world.machines, whole=True)),
    "SIGTERM to a supervisor or lone worker": (
        2,
        lambda chaos: chaos.signal_program(chaos.world.machines, signal.SIGTERM),
    ),
    "cut the power of a machine with workers": (2, lambda chaos: chaos.cut_power(chaos.world.machines)),
    "kill -9 a service": (4, lambda chaos: chaos.signal_program(chaos.world.services, signal.SIGKILL)),
    "SIGTERM to a service": (1, lambda chaos: chaos.signal_program(chaos.world.services, signal.SIGTERM)),
    "pause a service": (3, lambda chaos: chaos.pause_program(chaos.world.services)),
    "cut the power of a service": (1, lambda chaos: chaos.cut_power(chaos.world.services)),
    "kill -9 PostgreSQL": (1, lambda chaos: chaos.signal_program([chaos.world.database], signal.SIGKILL)),
    "restart PostgreSQL (fast)": (1, lambda chaos: chaos.signal_program([chaos.world.database], signal.SIGINT)),
    "restart PostgreSQL (immediate)": (
        1,
        lambda chaos: chaos.signal_program([chaos.world.database], signal.SIGQUIT),
    ),
    "pause PostgreSQL": (1, lambda chaos: chaos.pause_program([chaos.world.database], whole=True)),
    "cut the power of PostgreSQL": (1, lambda chaos: chaos.cut_power([chaos.world.database])),
    "cut a machine from services": (4, _cut("machines", "services", there=True, back=True)),
    "lose requests to services": (4, _cut("machines", "services", there=True, back=False)),
    "lose answers of services": (4, _cut("machines", "services", there=False, back=True)),
    "cut a service from PostgreSQL": (2, _cut("services", "database", there=True, back=True)),
    "lose queries to PostgreSQL": (1, _cut("services", "database", there=True, back=False)),
    "lose answers of PostgreSQL": (1, _cut("services", "database", there=False, back=True)),
    "skew the clock of workers": (4, lambda chaos: chaos.skew(chaos.world.machines, 3600.0)),
    "skew the clock of a service": (2, lambda chaos: chaos.skew(chaos.world.services, 3600.0)),
    "skew the clock of PostgreSQL": (1, lambda chaos: chaos.skew([chaos.world.database], 60.0)),
    "send workers to the other service": (3, lambda chaos: chaos.choose()),
}
"""How often each kind of fault is drawn, in parts of all, and what does it."""
