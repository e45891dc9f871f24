"""Faults of storage, injected at random into a study that runs, and what must hold of the study then.

A *case* is one study with faults of one kind, chosen by a seed: when, where, and how often. Whenever the study
stops, its last words must name the fault; then the fault is healed and the study is run again, until it finishes.
Nothing outside phyla's own directories may have changed by a byte.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from damage import HARM
from durability import TOY, defects, unfinished
from failing_disk import FAILURES, Calls, FailingDisk, Failure
from forked import Forked
from phyla.checkpoints import MANIFEST_NAME
from phyla.checkpoints.ownership import FORMAT, OWNER_NAME
from phyla.records import GroupState, JobState, StudyState
from phyla.settings import child_environment
from phyla.store import open_store
from phyla.study import Results, load_study
from stories import recorded_stories

PATIENCE_S = 130.0
"""A study that runs for longer than this hangs."""
MEMBERS, TRIALS, LEASE_S = 4, 9, 10.0
ATTEMPTS = 6
"""Runs after which a case does without further faults."""
ADVICE = re.compile(r"\b(run|mount|make|free|look|check|choose|give|ask|resume|say|put)\b", re.IGNORECASE)


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
    stories: str = ""
    seconds: float = 0.0

    @property
    def injected(self) -> int:
        """How many faults the study met."""
        return sum(fault.struck > 0 for fault in self.faults)

    def __str__(self) -> str:
        """What was done, what was violated, and the stories of the trials concerned."""
        faults = [f"  fault: {fault.what}" for fault in self.faults]
        violations = [f"  VIOLATED: {violation}" for violation in self.violations]
        title = f"{self.kind}, seed {self.seed}, {self.options}:"
        return "\n".join([title, *faults, *violations, self.stories])


def tree(folder: Path, *, without: Sequence[Path] = ()) -> dict[str, Any]:
    """Return what is below a folder, byte by byte, with permissions and times."""
    whole: dict[str, Any] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        if any(path.is_relative_to(other) for other in without):
            continue
        content: Any = None
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        # What is put beside it changes the times of a directory.
        times = None if path.is_dir() and not path.is_symlink() else path.lstat().st_mtime_ns
        whole[str(path.relative_to(folder))] = (oct(path.lstat().st_mode), times, content)
    return whole


def remove(path: Path) -> None:
    """Remove whatever is there, if anything is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


class Case:
    """One study, with everything around it.

    Args:
        kind: of the faults.
        seed: decides all that is left to chance.
        folder: a new directory for it.
    """

    def __init__(self, kind: str, seed: int, folder: Path) -> None:
        self.inject, self.says = KINDS[kind]
        self.hurts = kind in HURTING
        self.rng = rng = np.random.default_rng([seed, *kind.encode()])
        self.base = folder.resolve()
        self.home, self.weights = self.base / "home", self.base / "weights"
        self.root = self.weights / "toy"
        self.away, self.private = self.base / "away", self.base / "private"
        for made in (self.home, self.weights, self.away, self.private):
            made.mkdir()
        self.witness, self.output = self.private / "witness", self.private / "output"
        self.witness.touch()
        self.disk = FailingDisk(self.private / "disk")
        self.chosen: dict[str, Any] = {
            "sleep_s": float(rng.choice([0.004, 0.02])),
            "workers": int(rng.choice([0, 0, 0, 2])),
            "quorum": float(rng.choice([0.0, 0.8, 1.0])),
            "saves_progress": bool(rng.random() < 0.4),
            "scratch": bool(rng.random() < 0.5),
            "evaluated": "beside" if rng.random() < 0.3 else False,
            "seed": int(rng.integers(1000)),
        }
        self.storage = f"sqlite:///{self.home}/phyla.db"
        places = {"home": self.home, "storage": self.storage, "checkpoints": self.weights, "witness": self.witness}
        self.options = {
            **self.chosen,
            **{name: str(place) for name, place in places.items()},
            "members": MEMBERS,
            "trials": TRIALS,
            "lease_s": LEASE_S,
            "retries": {},
        }
        self.outcome = Outcome(kind, seed, self.chosen)
        self.foreign: dict[Path, dict[str, Any]] = {}
        self.healing: list[Callable[[], None]] = []

    # Surroundings

    def surround(self) -> None:
        """Put files that are not phyla's beside and among its own."""
        beside = (self.home / "notes", self.home / "checkpoints" / "toy")
        among = (self.weights / "data set", self.weights / "toy-too")
        for number, folder in enumerate((self.base / "precious", self.base / "home-too", *beside, *among)):
            (folder / "4.1").mkdir(parents=True)
            (folder / "4.1" / "images.bin").write_bytes(bytes([number]) * 300)
            (folder / "read me.txt").write_text("precious")
            (folder / "link").symlink_to("read me.txt")
            self.foreign[folder] = tree(folder)

    def surround_root(self) -> None:
        """Put files that are not phyla's into the study's own checkpoint directory."""
        if self.root / "backup" in self.foreign or not (self.root / OWNER_NAME).exists():
            return
        for folder in (self.root / "backup", self.root / "1.1.0123456789ab"):
            folder.mkdir()
            (folder / "weights").write_bytes(b"mine")
            self.foreign[folder] = tree(folder)

    # Running

    @property
    def begun(self) -> int:
        """Trials that began so far."""
        return self.witness.read_bytes().count(b"\n")

    def wait(self, process: Forked, until: Callable[[], bool]) -> bool:
        """Wait for a condition; return False when the process ended first."""
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < deadline:
            if until():
                return True
            time.sleep(0.002)
        return False

    def wait_for_trials(self, process: Forked, more: int) -> bool:
        """Wait until this number of further trials has begun; return False when the process ended first."""
        wanted = self.begun + more
        return self.wait(process, lambda: self.begun >= wanted)

    def run(self, faults: int) -> Outcome:
        """Inject about this many faults, and run the study to its end."""
        began = time.monotonic()
        self.surround()
        while not self._run_once(faults) and not self.outcome.violations:
            pass
        self.heal()
        if not self.outcome.violations:
            self.check()
        self.outcome.seconds = round(time.monotonic() - began, 2)
        return self.outcome

    def _run_once(self, faults: int) -> bool:
        """Run the study until it ends, with faults if some are left; return whether it finished."""
        injecting = self._wants(faults) and len(self.outcome.stops) < ATTEMPTS
        if injecting and self.begun and self.rng.random() < 0.3:
            self.inject(self)
        with self.output.open("w") as output:
            process = self.disk.start(
                [TOY, json.dumps(self.options)],
                env=child_environment({"PYTHONPATH": str(TOY.parent), "OMP_NUM_THREADS": "1"}),
                stdout=output,
                cwd=self.private,
                session=True,
                spares=2 * self.options["workers"],
            )
        try:
            if injecting:
                self._disturb(process, faults)
            self.wait(process, lambda: False)
            if process.poll() is None:
                self.outcome.violations.append(f"it hangs: {self.output.read_text()[-2000:]}")
                return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()
        if process.returncode == 0:
            self.outcome.finished_at_once = not self.outcome.stops
            return True
        self.heal()
        self._check_stop(process.returncode, self.output.read_text(errors="replace"))
        return False

    def _disturb(self, process: Forked, faults: int) -> None:
        """Inject faults until there were enough, or the study has ended."""
        while self._wants(faults) and self.wait_for_trials(process, int(self.rng.integers(1, 14))):
            self.surround_root()
            time.sleep(self.rng.random() * 0.02)
            self.inject(self)
            if self.healing and self.rng.random() < 0.4:
                time.sleep(self.rng.random() * 0.3)
                self.heal()
            elif self.healing and self.wait_for_trials(process, 8):
                # It lasted, and the study went on all the same.
                self.heal()

    def _wants(self, faults: int) -> bool:
        """Return whether more faults are to be injected; some find nothing to strike."""
        return self.outcome.injected < faults and len(self.outcome.faults) < 4 * faults

    def _check_stop(self, status: int | None, output: str) -> None:
        outcome = self.outcome
        words = "".join(re.findall(r"(?ms)^error: .*", output))
        outcome.stops.append(words or output[-1500:])
        for wrong, what in {
            "it stopped": not self.says,
            "it stopped without a fault": len(outcome.stops) > outcome.injected,
            "it ended without an error for users": status != 1 or not words,
            "its error is a traceback": "Traceback" in output,
            f"its error does not name the fault ({self.says})": not re.search(self.says, words),
            "its error names no path": str(self.base) not in words,
            "its error does not tell what to do": not ADVICE.search(words),
        }.items():
            if what:
                outcome.violations.append(f"{wrong}, with status {status}: {output[-3000:]}")

    # Faults

    def note(self, what: str, *, checkpoint: str | None = None, silent: bool = False, struck: int = 1) -> Fault:
        """Remember what was done."""
        self.outcome.faults.append(Fault(what, time.time(), checkpoint, silent, struck))
        return self.outcome.faults[-1]

    def heal(self) -> None:
        """Undo what lasts."""
        while self.healing:
            self.healing.pop()()

    def pick(self, options: Sequence[Any]) -> Any:
        """Return one of some things."""
        return options[int(self.rng.integers(len(options)))]

    def committed(self, patience_s: float = 0.0) -> Path | None:
        """Return some committed checkpoint, most likely a new one; wait for one if there is none."""
        deadline = time.monotonic() + patience_s
        while True:
            paths: list[Path] = []
            with contextlib.suppress(FileNotFoundError):  # one may be collected meanwhile
                paths = [
                    path for path in self.root.iterdir() if path.name[0].isdecimal() and path not in self.foreign
                ]
                paths.sort(key=lambda path: path.stat().st_mtime_ns)
            if paths or time.monotonic() > deadline:
                return paths[-1 - int(len(paths) * self.rng.random() ** 2)] if paths else None
            time.sleep(0.005)

    # What must hold

    def check(self) -> None:
        """The study is whole, and nothing else was changed."""
        results = load_study("toy", home=self.home, storage=self.storage, checkpoints=self.weights)
        self.outcome.violations += [*self._changed(), *self._wrong(results), *self._misled(results)]
        if self.outcome.violations:
            events = [(fault.at, asdict(fault)) for fault in self.outcome.faults]
            self.outcome.stories = recorded_stories(results, self.outcome.violations, events)

    def _changed(self) -> Iterator[str]:
        for folder, before in self.foreign.items():
            if tree(folder) != before:
                yield f"{folder}, which is not phyla's, was changed"

    def _wrong(self, results: Results) -> Iterator[str]:
        hurt = {fault.checkpoint for fault in self.outcome.faults if fault.checkpoint is not None}
        mine = {folder.name for folder in self.foreign}
        if results.state is not StudyState.COMPLETED:
            yield f"it finished in state {results.state}"
        yield from defects(results, hurt)
        yield from unfinished(results, MEMBERS, TRIALS, hurt | mine)
        for row in results.trials():
            if row.state is JobState.FAILED:
                yield f"trial {row.id} was given up, which the faults are no reason for: {row.error}"
            elif row.failures and not self.hurts:
                yield f"trial {row.id} failed {row.failures} times, though its training is sound: {row.error}"
        if self.options["evaluated"]:
            yield from self._wrong_evaluations(results, hurt)

    def _wrong_evaluations(self, results: Results, hurt: set[str]) -> Iterator[str]:
        trained = {row.checkpoint for row in results.trials() if row.state is JobState.COMPLETED}
        with contextlib.closing(open_store(self.storage)) as store:
            run = store.find_study(results.name)
            assert run is not None
            with store.reader(run.id) as reader:
                if {seen.name for seen in reader.all_seen()} != trained:
                    yield "checkpoints were not seen by the suite"
                for group in reader.groups():
                    name = reader.seen(group.seen).name
                    if group.state not in (GroupState.COMPLETE, GroupState.GONE) and name not in hurt:
                        yield f"the group of checkpoint {name} is {group.state}: {group.why}"

    def _misled(self, results: Results) -> Iterator[str]:
        """Yield the trials that were given wrong weights although phyla could have known."""
        lines = [json.loads(line) for line in self.witness.read_text().splitlines()]
        claims = {(attempt.job, attempt.token): attempt.claimed_at for attempt in results.attempts()}
        for number, line in enumerate(lines):
            if line["wrong"] is None:
                continue
            faults = [fault for fault in self.outcome.faults if fault.checkpoint == line["source"]]
            lasting = [fault for fault in faults if fault.at < claims[line["trial"], line["token"]]]
            sound = (line["pid"], line["source"], None)
            known = [
                near["at"] for near in lines[:number] if (near["pid"], near["source"], near["wrong"]) == sound
            ]
            if not lasting and (faults or not self.hurts):
                # It happened between the look at the files and their use.
                self.outcome.raced += 1
            elif (
                lasting
                and all(fault.silent for fault in lasting)
                and (self.options["evaluated"] or (known and min(known) < lasting[0].at))
            ):
                # Digests are verified at a process's first use, which may be an evaluation.
                self.outcome.unseen += 1
            else:
                yield f"trial {line['trial']} was given {line['source']}, whose bytes are wrong: {line['wrong']}"


# --- what is done to a study


def _harm(way: str, case: Case) -> None:
    """Change a file of a checkpoint."""
    checkpoint = case.committed(2.0)
    with contextlib.suppress(OSError):  # it may be collected meanwhile
        if checkpoint is not None:
            names = sorted(path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file())
            name, at = case.pick(names), int(case.rng.integers(1 << 16))
            silent = {"silent": bool(case.rng.random() < 0.5)} if way == "flipped bit" else {}
            HARM[way](checkpoint, name, at, **silent)
            case.note(f"{way}: {checkpoint.name}/{name} at {at}", checkpoint=checkpoint.name, **silent)


def _lose_checkpoint(case: Case) -> None:
    """Move a checkpoint away, or what is being written."""
    moved = case.away / f"{len(case.outcome.faults)}"
    if case.rng.random() < 0.25:
        staged = [path for path in (case.root / ".staging").glob("*") if path.name[0].isdecimal()]
        victim = case.pick([*staged, case.root / ".staging"])
        # At once: of files that are deleted one by one while training writes more, the rest could be committed.
        with contextlib.suppress(FileNotFoundError):
            victim.rename(moved)
        case.note(f"removed {victim.relative_to(case.root)}")
    elif (checkpoint := case.committed(2.0)) is not None:
        with contextlib.suppress(FileNotFoundError):
            checkpoint.rename(moved)
            case.note(f"moved {checkpoint.name} away", checkpoint=checkpoint.name)
            if case.rng.random() < 0.4:
                case.healing.append(partial(_put_back, moved, checkpoint))


def _put_back(moved: Path, place: Path) -> None:
    if not place.exists() and place.parent.is_dir():
        moved.rename(place)


def _move_root(case: Case) -> bool:
    """Move the root, or what it is in, away; it comes back when the fault is healed."""
    place = case.root if case.rng.random() < 0.7 else case.weights
    moved = case.away / f"root-{len(case.outcome.faults)}"
    # A study that has no checkpoint yet may begin anew elsewhere.
    if not place.exists() or case.committed() is None or case.begun <= MEMBERS:
        return False
    place.rename(moved)
    root = moved if place == case.root else moved / case.root.name
    kept = (root / ".staging", root / ".deleting")
    before = tree(root, without=kept) if root.exists() else {}

    def back() -> None:
        if root.exists() and tree(root, without=kept) != before:
            case.outcome.violations.append(f"{place} was changed after it was moved to {moved}")
        remove(place)
        moved.rename(place)

    case.healing.append(back)
    return True


def _lose_root(case: Case) -> None:
    """Move the checkpoints away."""
    if _move_root(case):
        if not case.weights.exists() and case.rng.random() < 0.5:
            case.weights.mkdir()  # as an empty mount point
        case.note("moved the checkpoints away")


def _change_marker(case: Case, way: str) -> None:
    """Spoil the file that makes the root the study's own, or remove it."""
    marker = case.root / OWNER_NAME
    try:
        was = marker.read_bytes()
        marker.unlink()
    except FileNotFoundError:
        return
    if way == "marker":
        texts = ["", "{", '{"format": 1, "store": "0123", "study": "toy"}', "[]", '{"format": 9}']
        marker.write_text(str(case.pick(texts)))

    def back() -> None:
        remove(marker)
        marker.write_bytes(was)

    case.healing.append(back)
    case.note(f"changed or removed the marker ({way})")


def _replace_root(case: Case) -> None:
    """Put something else in the place of the checkpoints."""
    root = case.root
    way = str(case.pick(["files", "empty", "file", "other store", "other study", "link", "marker", "no marker"]))
    if way in ("marker", "no marker"):
        _change_marker(case, way)
        return
    if not _move_root(case):
        return
    case.weights.mkdir(exist_ok=True)
    if way == "file":
        root.write_text("precious")
    elif way == "link":
        root.symlink_to(case.base / "nowhere")
    else:
        root.mkdir()
    if way in ("files", "other store", "other study"):
        for folder in (root / "4.1", root / "train", root / ".staging" / "4.2"):
            folder.mkdir(parents=True)
            (folder / "weights.bin").write_bytes(b"precious")
    if way.startswith("other"):
        study = "toy" if way == "other store" else "theirs"
        (root / OWNER_NAME).write_text(
            json.dumps({"format": FORMAT, "store": "f" * 32, "study": study, "directory": "theirs"})
        )
    before = tree(case.weights)

    def unchanged() -> None:
        if (now := tree(case.weights)) != before:
            changes = sorted(set(now.items()) ^ set(before.items()), key=str)[:4]
            case.outcome.violations.append(f"what took the place of the checkpoints ({way}) changed: {changes}")

    case.healing.append(unchanged)
    case.note(f"put something else in the place of the checkpoints ({way})")


def _fail(failure: Failure, case: Case) -> None:
    """Let calls fail until the fault is healed; count there how many did."""
    places = [
        *[case.weights, case.root, case.root / ".staging", case.home, case.home / "phyla.db"] * 4,
        case.root / OWNER_NAME,
        *(case.home / name for name in ("logs", "work", "outputs", "locks")),
    ]
    if checkpoint := case.committed():
        places += [checkpoint, checkpoint / MANIFEST_NAME]
    where, share, count = case.pick(places), int(case.pick(failure.shares)), int(case.pick([-1, -1, 1, 3]))
    calls: Calls = case.pick(failure.calls)
    relative = where.relative_to(case.base)
    fault = case.note(f"{failure.name} from {calls!r} below {relative}, {share} of 1000, {count} times", struck=0)
    before = case.disk.failed

    def end() -> None:
        case.disk.heal()
        fault.struck = case.disk.failed - before
        fault.what += f", {fault.struck} failed, the last one at {case.disk.last}" if fault.struck else ""

    case.healing.append(end)
    case.disk.begin(where, failure.error, calls, share=share, count=count)


LOST_ROOT = (
    r"the checkpoints of study 'toy' (are not )?in .*(no such directory|empty|cannot be read)"
    r"|is not the checkpoint directory of study 'toy' of this store"
)
SQLITE = (
    "disk I/O error|database or disk is full|unable to open database file|attempt to write a readonly"
    # SQLite may take a database that could not be read for a damaged one; the next run shows that it is sound.
    "|database disk image is malformed"
)
KINDS: dict[str, tuple[Callable[[Case], None], str]] = {
    **{way: (partial(_harm, way), "") for way in HARM},
    "vanished checkpoint": (_lose_checkpoint, ""),
    "vanished root": (_lose_root, LOST_ROOT),
    "foreign root": (_replace_root, LOST_ROOT),
    **{name: (partial(_fail, failure), f"{failure.name}|{SQLITE}") for name, failure in FAILURES.items()},
}
"""What does a fault, and what the last words of a study that it stops match; empty if it may stop none."""
HURTING = {*HARM, "vanished checkpoint"}
"""Kinds that change checkpoints."""


def run_case(kind: str, seed: int, faults: int, folder: Path) -> Outcome:
    """Run one case in a directory of its own below a folder; it is kept only where something was wrong."""
    base = Path(tempfile.mkdtemp(prefix=f"{kind.replace(' ', '-')}-{seed}-", dir=folder))
    case = Case(kind, seed, base)
    try:
        outcome = case.run(faults)
    except Exception as error:
        error.add_note(f"in case {kind!r} {seed}, in {base}")
        raise
    if not outcome.violations:
        shutil.rmtree(base, ignore_errors=True)
    return outcome
