"""Faults of storage, injected at random into a study that runs, and what must hold of the study then.

A *case* is one study with faults of one kind, chosen by a seed: when, where, and how often. Whenever the study
stops, its last words must name the fault; then the fault is healed and the study is run again, until it finishes.
Nothing outside phyla's own directories may have changed by a byte.

Disks that are full or read-only are real: small file systems in memory, in a mount namespace of their own (see
`isolated`). Quotas, stale handles and failing disks are not to be had everywhere, so there the system calls of
the study's processes fail (`failing_calls.c`).
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import faulty_study
import phyla
from durability import miscounted
from failing_calls import FailingCalls
from phyla.checkpoints import LocalCheckpoints
from phyla.checkpoints.ownership import OWNER_NAME
from phyla.errors import CheckpointError
from phyla.records import AttemptState, CheckpointState, GroupState, JobState, StudyState
from phyla.store import open_store
from phyla.study import Results, load_study

PROGRAM = Path(__file__).with_name("faulty_study.py")
PATIENCE_S = 130.0
"""A study that runs for longer than this hangs."""
MEMBERS, TRIALS = 4, 9
ATTEMPTS = 6
"""Runs after which a case does without further faults."""


# --- what a case leaves


@dataclass
class Fault:
    """One thing that was done to a study's storage."""

    what: str
    at: float
    checkpoint: str | None = None
    silent: bool = False
    """Whether a look at names, sizes and times shows nothing."""
    struck: int = 1
    """How many system calls of the study it met; those that met none do not count."""


@dataclass
class Outcome:
    """What became of one case."""

    kind: str
    seed: int
    options: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    finished_at_once: bool = False
    raced: int = 0
    unseen: int = 0
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def injected(self) -> int:
        """How many faults the study met."""
        return sum(fault.struck > 0 for fault in self.faults)


# --- what is done to a study


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        inject: does it.
        says: what the last words of a study that it stops must match; empty if it may stop none.
        hurts: whether it changes checkpoints.
        prepare: called before the study begins.
    """

    inject: "Callable[[Case], None]"
    says: str = ""
    hurts: bool = False
    prepare: "Callable[[Case], None]" = lambda case: None


# --- a study, its surroundings, and what is done to it


ISOLATED = "PHYLA_FAULTS_ISOLATED"
"""Set in the environment of a program that has mounts of its own."""


def isolated() -> list[str]:
    """Return the words that run a program with mounts of its own."""
    return ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]


def tree(folder: Path, *, without: Sequence[Path] = ()) -> dict[str, Any]:
    """Return what is below a folder, byte by byte, with permissions and times."""
    found: dict[str, Any] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        if any(path.is_relative_to(other) for other in without):
            continue
        status = path.lstat()
        content: Any = None
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        # What is put beside it changes the times of a directory.
        times = None if path.is_dir() and not path.is_symlink() else status.st_mtime_ns
        found[str(path.relative_to(folder))] = (oct(status.st_mode), times, content)
    return found


class Case:
    """One study, with everything around it.

    Args:
        name: of the kind.
        kind: of the faults.
        seed: decides all that is left to chance.
        folder: a new directory for it.
        library: what `FailingCalls.build` made.
    """

    def __init__(self, name: str, kind: Kind, seed: int, folder: Path, library: Path) -> None:
        self.kind = kind
        self.rng = np.random.default_rng([seed, *name.encode()])
        self.base = folder.resolve()
        self.home, self.weights = self.base / "home", self.base / "weights"
        self.root = self.weights / faulty_study.NAME
        self.away, self.private = self.base / "away", self.base / "private"
        for made in (self.home, self.weights, self.away, self.private):
            made.mkdir(parents=True)
        self.calls = FailingCalls(self.private / "calls", library)
        rng = self.rng
        self.storage = f"sqlite:///{self.home}/phyla.db"
        self.options: dict[str, Any] = {
            "members": MEMBERS,
            "trials": TRIALS,
            "trial_s": float(rng.choice([0.004, 0.02])),
            "workers": int(rng.choice([0, 2])),
            "quorum": float(rng.choice([0.0, 0.8, 1.0])),
            "saves_progress": bool(rng.random() < 0.4),
            "scratch": bool(rng.random() < 0.5),
            "evaluated": bool(rng.random() < 0.3),
            "seed": int(rng.integers(1000)),
            "lease_s": 10.0,
            "home": str(self.home),
            "storage": self.storage,
            "checkpoints": str(self.weights),
            "witness": str(self.private / "witness"),
        }
        self.outcome = Outcome(name, seed, {name: self.options[name] for name in list(self.options)[2:8]})
        self.mounted: list[Path] = []
        self.foreign: dict[Path, dict[str, Any]] = {}
        self.healing: list[Callable[[], None]] = []
        self.gone_for_good = False

    # Surroundings

    def surround(self) -> None:
        """Put files that are not phyla's beside and among its own."""
        strange = (
            self.base / "precious",
            self.base / "home-too",
            self.home / "notes",
            self.home / "checkpoints" / faulty_study.NAME,
            self.weights / "data set",
            self.weights / "faulty-too",
        )
        for number, folder in enumerate(strange):
            (folder / "4.1").mkdir(parents=True)
            (folder / "4.1" / "images.bin").write_bytes(bytes([number]) * 300)
            (folder / "read me.txt").write_text("precious")
            (folder / "link").symlink_to("read me.txt")
        self.foreign.update({folder: tree(folder) for folder in strange})

    def surround_root(self) -> None:
        """Put files that are not phyla's into the study's own checkpoint directory."""
        if self.root / "backup" in self.foreign or not (self.root / OWNER_NAME).exists():
            return
        for folder in (self.root / "backup", self.root / "1.1.0123456789ab"):
            folder.mkdir()
            (folder / "weights").write_bytes(b"mine")
            self.foreign[folder] = tree(folder)

    def mount(self, where: Path, options: str) -> None:
        """Mount a file system in memory."""
        command = ["mount", "-t", "tmpfs", "-o", f"mode=755,{options}", "tmpfs", str(where)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        self.mounted.append(where)

    def close(self) -> None:
        """Take down what was mounted."""
        self.calls.end()
        for where in self.mounted:
            subprocess.run(["umount", "--lazy", str(where)], check=False)

    # Running

    def start(self) -> "subprocess.Popen[str]":
        """Start the study."""
        environment = {
            **os.environ,
            **self.calls.environment,
            "FAULTY_STUDY": json.dumps(self.options),
            "PYTHONPATH": str(Path(phyla.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
        }
        # Its output goes to a file: nobody reads a pipe while faults are injected.
        with (self.private / "output").open("w") as output:
            return subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self.private,
                start_new_session=True,
            )

    @property
    def begun(self) -> int:
        """Trials that began so far."""
        witness = self.private / "witness"
        return witness.read_bytes().count(b"\n") if witness.exists() else 0

    def wait(self, process: "subprocess.Popen[str]", until: Callable[[], bool]) -> bool:
        """Wait for a condition; return False when the process ended first."""
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None:
            if until():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return False

    def run(self, faults: int) -> Outcome:
        """Inject about this many faults, and run the study to its end."""
        began = time.monotonic()
        try:
            self.kind.prepare(self)
            self.surround()
            while not self._run_once(faults):
                if self.outcome.violations:
                    return self.outcome
            self.heal()
            self.check()
        finally:
            self.close()
            self.outcome.seconds = round(time.monotonic() - began, 2)
        return self.outcome

    def _run_once(self, faults: int) -> bool:
        """Run the study until it ends, with faults if some are left; return whether it finished."""
        outcome = self.outcome
        injecting = self._wants(faults) and len(outcome.stops) < ATTEMPTS
        if injecting and self.begun and self.rng.random() < 0.3:
            self.inject()
        process = self.start()
        try:
            while injecting and self._wants(faults):
                wanted = self.begun + int(self.rng.integers(1, 14))
                if not self.wait(process, lambda wanted=wanted: self.begun >= wanted):  # type: ignore[misc]
                    break
                self.surround_root()
                time.sleep(self.rng.random() * 0.02)
                self.inject()
                if self.healing and self.rng.random() < 0.4:
                    time.sleep(self.rng.random() * 0.3)
                    self.heal()
                elif self.healing:
                    # It lasts: nothing else happens until the study ends, or shows that it does not care.
                    wanted = self.begun + 8
                    self.wait(process, lambda wanted=wanted: self.begun >= wanted)  # type: ignore[misc]
                    self.heal() if process.poll() is None else None
            self.wait(process, lambda: False)
            if process.poll() is None:
                outcome.violations.append(f"it hangs: {(self.private / 'output').read_text()[-2000:]}")
                return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()
        output = (self.private / "output").read_text(errors="replace")
        if process.returncode == 0 and output.rstrip().endswith("FINISHED"):
            outcome.finished_at_once = not outcome.stops
            return True
        self.heal()
        self._check_stop(process.returncode, output)
        return False

    def _wants(self, faults: int) -> bool:
        """Return whether more faults are to be injected; some find nothing to strike."""
        return self.outcome.injected < faults and len(self.outcome.faults) < 4 * faults

    def _check_stop(self, status: int, output: str) -> None:
        outcome = self.outcome
        said = output[output.rfind("STOPPED ") :].strip() if "STOPPED " in output else ""
        outcome.stops.append(said or output[-1500:])
        if not self.kind.says:
            outcome.violations.append(f"it stopped, with status {status}: {output[-3000:]}")
        elif len(outcome.stops) > outcome.injected:
            full = ", ".join(map(_used, self.mounted))
            outcome.violations.append(f"it stopped without a fault{full and f' ({full})'}: {output[-3000:]}")
        elif status != 1 or not said:
            outcome.violations.append(f"it ended with status {status} and no sentence: {output[-3000:]}")
        elif "Traceback" in output:
            outcome.violations.append(f"its sentence is a traceback: {output[-3000:]}")
        elif not re.search(self.kind.says, said):
            outcome.violations.append(f"its sentence does not name the fault ({self.kind.says}): {said}")
        elif str(self.base) not in said:
            outcome.violations.append(f"its sentence names no path: {said}")
        elif not ADVICE.search(said):
            outcome.violations.append(f"its sentence does not say what to do: {said}")

    # Faults

    def inject(self) -> None:
        """Do one thing to the study's storage."""
        self.kind.inject(self)

    def note(self, what: str, *, checkpoint: str | None = None, silent: bool = False, struck: int = 1) -> None:
        """Remember what was done."""
        self.outcome.faults.append(Fault(what, time.time(), checkpoint, silent, struck))

    def heal(self) -> None:
        """Undo what lasts."""
        while self.healing:
            self.healing.pop()()

    def pick(self, options: Sequence[Any]) -> Any:
        """Return one of some things."""
        return options[int(self.rng.integers(len(options)))]

    # What must hold

    def check(self) -> None:
        """The study is whole, and nothing else was changed."""
        say = self.outcome.violations.append
        for folder, before in self.foreign.items():
            if tree(folder) != before:
                say(f"{folder}, which is not phyla's, was changed")
        results = load_study(faulty_study.NAME, home=self.home, storage=self.storage, checkpoints=self.weights)
        for problem in (*self._check_records(results), *self._check_bytes(results), *self._check_witness(results)):
            say(problem)

    def _hurt(self) -> set[str]:
        return {fault.checkpoint for fault in self.outcome.faults if fault.checkpoint is not None}

    def _check_records(self, results: Results) -> Iterator[str]:
        rows = results.trials()
        done = [row for row in rows if row.state is JobState.COMPLETED]
        if results.state is not StudyState.COMPLETED:
            yield f"it finished in state {results.state}"
        yield from miscounted(results, TRIALS * faulty_study.STEPS)
        generations = [(row.member, row.generation) for row in done]
        if len(set(generations)) < len(generations) or len({row.member for row in done}) < MEMBERS:
            yield f"generations are missing or there twice: {sorted(generations)}"
        for row in rows:
            if row.state in (JobState.RUNNING, JobState.PENDING):
                yield f"trial {row.id} is {row.state}"
            elif row.state is JobState.FAILED:
                yield f"trial {row.id} was given up, which the faults are no reason for: {row.error}"
        for attempt in results.attempts():
            if attempt.state is AttemptState.RUNNING:
                yield f"attempt {attempt.job}.{attempt.token} is running"
        for row in done:
            if row.fitness != faulty_study.score(row.seed, float(row.params["lr"])):  # type: ignore[arg-type]
                yield f"the fitness of trial {row.id} belongs to something else"
        hurt = self._hurt()
        for checkpoint in results.checkpoints():
            wrong = checkpoint.state in (CheckpointState.LOST, CheckpointState.DAMAGED)
            if wrong and checkpoint.name not in hurt and not self.gone_for_good:
                yield f"checkpoint {checkpoint.name} is {checkpoint.state} and nobody did anything to it"
        if self.options["evaluated"]:
            yield from self._check_evaluated(results, hurt)

    def _check_evaluated(self, results: Results, hurt: set[str]) -> Iterator[str]:
        store = open_store(self.storage)
        run = store.find_study(results.name)
        if run is None:
            yield "its run is gone"
            return
        with store.reader(run.id) as reader:
            seen = reader.all_seen()
            trained = {row.checkpoint for row in results.trials() if row.state is JobState.COMPLETED}
            if {one.name for one in seen} != trained:
                yield "checkpoints were not seen by the suite"
            for group in reader.groups():
                name = reader.seen(group.seen).name
                fine = group.state in (GroupState.COMPLETE, GroupState.GONE) or name in hurt or self.gone_for_good
                if not fine:
                    yield f"the group of checkpoint {name} is {group.state}: {group.why}"
        store.close()

    def _check_bytes(self, results: Results) -> Iterator[str]:
        repository = LocalCheckpoints(self.root)
        trials = {row.id: row for row in results.trials()}
        rows = {row.name: row for row in results.checkpoints()}
        hurt = self._hurt()
        for name, row in rows.items():
            if row.state is not CheckpointState.LIVE:
                continue
            try:
                if repository.verify(name).digest != row.digest:
                    raise CheckpointError("it has another digest than the study recorded")
            except CheckpointError as error:
                if name not in hurt:
                    yield f"live checkpoint {name} is unsound: {error}"
                continue
            chain = [] if row.kind == "progress" else faulty_study.load(repository.path(name))
            path = []
            current: int | None = row.trial if chain else None
            while current is not None:
                path.append([current, trials[current].seed, trials[current].params["lr"]])
                current = trials[current].parent
            if chain != path[::-1]:
                yield f"the weights in {name} were made by {chain}, its lineage says {path[::-1]}"
        mine = {folder.name for folder in self.foreign}
        kept = {name for name, row in rows.items() if row.state is not CheckpointState.DELETED}
        # What was collected while it was away, and came back, is nobody's any more, and stays.
        leaked = {*repository.names(), *repository.staged(), *repository.deleting()} - mine - kept - hurt
        if leaked:
            yield f"left over: {sorted(leaked)}"
        best = results.best
        if best is None:
            yield "there is no best checkpoint"
        else:
            try:
                repository.verify(best.checkpoint.name)
            except CheckpointError as error:
                yield f"the best checkpoint is unsound: {error}"

    def _check_witness(self, results: Results) -> Iterator[str]:
        lines = [json.loads(line) for line in (self.private / "witness").read_text().splitlines()]
        claims = {(attempt.job, attempt.token): attempt.claimed_at for attempt in results.attempts()}
        for number, line in enumerate(lines):
            if line["wrong"] is None:
                continue
            claimed = claims[line["trial"], line["token"]]
            faults = [fault for fault in self.outcome.faults if fault.checkpoint == line["source"]]
            lasting = [fault for fault in faults if fault.at < claimed]
            known = [
                earlier["at"]
                for earlier in lines[:number]
                if (earlier["pid"], earlier["source"], earlier["wrong"]) == (line["pid"], line["source"], None)
            ]
            if not lasting and (faults or not self.kind.hurts):
                # It happened between the look at the files and their use.
                self.outcome.raced += 1
            elif lasting and all(fault.silent for fault in lasting) and known and min(known) < lasting[0].at:
                # Digests are verified at a process's first use.
                self.outcome.unseen += 1
            else:
                yield f"trial {line['trial']} was given {line['source']}, whose bytes are wrong: {line['wrong']}"


def _used(where: Path) -> str:
    found = os.statvfs(where)
    used, files = found.f_blocks - found.f_bfree, found.f_files - found.f_ffree
    return f"{where.name}: {used} of {found.f_blocks} blocks and {files} of {found.f_files} inodes are used"


ADVICE = re.compile(r"\b(run|mount|make|free|look|check|choose|give|ask|resume|say|put)\b", re.IGNORECASE)
