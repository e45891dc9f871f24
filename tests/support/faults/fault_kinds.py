"""Faults of storage: what a saboteur does to the directories of a study that runs, and how it is healed."""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import faulty_study
from failing_calls import CREATE, EVERYTHING, FLUSH, LOOK, NAME, OPEN, READ, WRITE
from fault_cases import Case, Kind, Outcome, tree
from phyla.checkpoints import MANIFEST_NAME
from phyla.checkpoints.ownership import OWNER_NAME


def _committed(case: Case) -> Path | None:
    """Return some committed checkpoint, most likely a new one."""
    strange = {folder.name for folder in case.foreign}
    with contextlib.suppress(FileNotFoundError):
        found = [path for path in case.root.iterdir() if path.name[0].isdecimal() and path.name not in strange]
        with contextlib.suppress(FileNotFoundError):
            found.sort(key=lambda path: path.stat().st_mtime_ns)
        if found:
            return found[-1 - int(len(found) * case.rng.random() ** 2)]
    return None


def _hurt_a_file(how: Callable[[Case, Path], str]) -> Callable[[Case], None]:
    def inject(case: Case) -> None:
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            checkpoint = _committed(case)
            if checkpoint is None:
                time.sleep(0.005)
                continue
            with contextlib.suppress(OSError):  # it was collected meanwhile
                file = case.pick(sorted(path for path in checkpoint.rglob("*") if path.is_file()))
                before = file.stat()
                what = how(case, file)
                silent = False
                if file.exists():
                    silent = file.stat().st_size == before.st_size and case.rng.random() < 0.5
                    if silent:
                        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
                case.note(f"{what} {file.relative_to(case.root)}", checkpoint=checkpoint.name, silent=silent)
                return

    return inject


def _flip(case: Case, file: Path) -> str:
    file.chmod(0o644)
    with file.open("r+b") as opened:
        content = opened.read()
        if not content:
            raise FileNotFoundError
        at = int(case.rng.integers(len(content)))
        opened.seek(at)
        opened.write(bytes([content[at] ^ (1 << int(case.rng.integers(8)))]))
    return f"flipped a bit of byte {at} of"


def _truncate(case: Case, file: Path) -> str:
    size = file.stat().st_size
    if not size:
        raise FileNotFoundError
    left = int(case.rng.integers(size))
    file.chmod(0o644)
    os.truncate(file, left)
    return f"left {left} of {size} bytes of"


def _unlink(case: Case, file: Path) -> str:
    file.unlink()
    return "removed"


def _lose_checkpoint(case: Case) -> None:
    if case.rng.random() < 0.25:
        staged = [path for path in (case.root / ".staging").glob("*") if path.name[0].isdecimal()]
        victim = case.pick([*staged, case.root / ".staging"])
        # At once: of files that are deleted one by one while training writes more, the rest could be committed.
        gone = case.away / f"staged-{len(case.outcome.faults)}"
        with contextlib.suppress(FileNotFoundError):
            victim.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        case.note(f"removed {victim.relative_to(case.root)}")
        return
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        checkpoint = _committed(case)
        if checkpoint is None:
            time.sleep(0.005)
            continue
        moved = case.away / f"{len(case.outcome.faults)}-{checkpoint.name}"
        with contextlib.suppress(FileNotFoundError):
            checkpoint.rename(moved)
            case.note(f"moved {checkpoint.name} away", checkpoint=checkpoint.name)
            if case.rng.random() < 0.4:
                case.healing.append(partial(_put_back, moved, checkpoint))
            return


def _put_back(moved: Path, place: Path) -> None:
    if moved.exists() and not place.exists() and place.parent.is_dir():
        moved.rename(place)


ABSENT = r"the checkpoints of study 'faulty' (are not )?in .*(no such directory|empty|cannot be read)"
NOT_OURS = r"is not the checkpoint directory of study 'faulty' of this store"


def _move_root(case: Case) -> bool:
    """Move the root, or what it is in, away; it comes back when the fault is healed."""
    place = case.root if case.weights in case.mounted or case.rng.random() < 0.7 else case.weights
    moved = case.away / f"root-{len(case.outcome.faults)}"
    if not place.exists():
        return False
    place.rename(moved)
    root = moved if place == case.root else moved / case.root.name
    kept = (root / ".staging", root / ".deleting")
    before = tree(root, without=kept) if root.exists() else {}

    def back() -> None:
        if root.exists() and tree(root, without=kept) != before:
            case.outcome.violations.append(f"{place} was changed after it was moved to {moved}")
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        elif os.path.lexists(place):
            place.unlink()
        moved.rename(place)

    case.healing.append(back)
    return True


def _lose_root(case: Case) -> None:
    if not _move_root(case):
        return
    moved = sorted(case.away.glob("root-*"))[-1]
    if not case.weights.exists() and case.rng.random() < 0.5:
        # As an empty mount point.
        case.weights.mkdir()
    case.note(f"moved the checkpoints to {moved.name}")


def _replace_root(case: Case) -> None:
    root = case.root
    marker = root / OWNER_NAME
    way = str(case.pick(["files", "empty", "file", "other store", "other study", "link", "marker", "no marker"]))
    if way in ("marker", "no marker"):
        try:
            was = marker.read_bytes()
            marker.rename(case.away / f"marker-{len(case.outcome.faults)}")
        except FileNotFoundError:
            return
        if way == "marker":
            texts = ["", "{", '{"format": 1, "store": "0123", "study": "faulty"}', "[]", '{"format": 9}']
            marker.write_text(str(case.pick(texts)))

        def back() -> None:
            marker.unlink(missing_ok=True)
            marker.write_bytes(was)

        case.healing.append(back)
        case.note(f"changed or removed the marker ({way})")
        return
    if not _move_root(case):
        return
    case.weights.mkdir(exist_ok=True)
    if way == "file":
        root.write_text("precious")
    elif way == "link":
        root.symlink_to(case.base / "nowhere")
    elif way == "empty":
        root.mkdir()
    else:
        for folder in (root / "4.1", root / "train", root / ".staging" / "4.2"):
            folder.mkdir(parents=True)
            (folder / "weights.bin").write_bytes(b"precious")
        if way != "files":
            study = "faulty" if way == "other store" else "theirs"
            marker.write_text(json.dumps({"format": 1, "store": "f" * 32, "study": study}))
    before = tree(case.weights) if not root.is_file() else {"": root.read_bytes()}

    def unchanged() -> None:
        now = tree(case.weights) if not root.is_file() else {"": root.read_bytes()}
        if now != before:
            case.outcome.violations.append(
                f"what took the place of the checkpoints ({way}) was changed: "
                f"{sorted(set(now.items()) ^ set(before.items()))[:4]}"
            )

    case.healing.append(unchanged)
    case.note(f"put something else in the place of the checkpoints ({way})")


def _small(case: Case) -> None:
    """Put the checkpoints, or everything, on a small file system.

    It holds all that the study ever writes: what is collected waits for up to a second, in which such short trials
    leave more than 5 MB.
    """
    if case.rng.random() < 0.5:
        case.mount(case.weights, "size=32m,nr_inodes=6000")
    else:
        # The database's log may grow to 16 MiB.
        case.mount(case.home, "size=64m,nr_inodes=6000")
        case.options["checkpoints"] = str(case.home / "weights")
        case.weights = case.home / "weights"
        case.root = case.weights / faulty_study.NAME
        case.weights.mkdir()


def _fill(case: Case) -> None:
    where = case.mounted[0]
    hog = where / "somebody else's"
    case.healing.append(lambda: hog.unlink(missing_ok=True))
    with hog.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1 << 8):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    case.note(f"filled {where.name}")


def _use_up_names(case: Case) -> None:
    where = case.mounted[0]
    hog = where / "somebody else's"
    case.healing.append(lambda: shutil.rmtree(hog, ignore_errors=True))
    with contextlib.suppress(OSError):
        hog.mkdir(exist_ok=True)
        for number in range(10**6):
            (hog / str(number)).touch()
    case.note(f"used up the inodes of {where.name}")


def _remount(where: Path) -> None:
    subprocess.run(["mount", "-o", "remount,rw", str(where)], check=True)


def _read_only(case: Case) -> None:
    """Remount the checkpoints read-only; a database that is open for writing keeps a file system from that."""
    if case.mounted[0] == case.home:
        case.note("let the home be read-only", struck=0)
        _let_fail(case, case.home, errno.EROFS, CREATE | NAME | WRITE | FLUSH)
        return
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        done = subprocess.run(
            ["mount", "-o", "remount,ro", str(case.weights)], check=False, capture_output=True, text=True
        )
        if done.returncode == 0:
            case.healing.append(partial(_remount, case.weights))
            case.note("remounted the checkpoints read-only")
            return


def _let_fail(case: Case, where: Path, error: int, kinds: int, *, share: int = 1000, count: int = -1) -> None:
    """Let calls fail until the fault that was noted last is healed; count there how many did."""
    fault, before = case.outcome.faults[-1], case.calls.failed

    def end() -> None:
        case.calls.end()
        fault.struck = case.calls.failed - before
        fault.what += f", {fault.struck} failed, the last one at {case.calls.last}" if fault.struck else ""

    case.healing.append(end)
    case.calls.begin(where, error, kinds, share=share, count=count)


def _calls(error: int, kinds: Sequence[int], shares: Sequence[int]) -> Callable[[Case], None]:
    def inject(case: Case) -> None:
        places = [
            *[case.weights, case.root, case.root / ".staging", case.home, case.home / "phyla.db"] * 4,
            case.root / OWNER_NAME,
            case.home / "logs",
            case.home / "work",
            case.home / "outputs",
            case.home / "locks",
        ]
        checkpoint = _committed(case)
        if checkpoint is not None:
            places += [checkpoint, checkpoint / MANIFEST_NAME]
        where, kind, share = case.pick(places), int(case.pick(kinds)), int(case.pick(shares))
        count = int(case.pick([-1, -1, 1, 3]))
        relative = where.relative_to(case.base)
        name = errno.errorcode[error]
        case.note(f"{name} from calls {kind:#x} below {relative}, {share} of 1000, {count} times", struck=0)
        _let_fail(case, where, error, kind, share=share, count=count)

    return inject


SQLITE = "disk I/O error|database or disk is full|unable to open database file|attempt to write a readonly"

BROKEN = f"{SQLITE}|database disk image is malformed"
"""SQLite may take a database that could not be read for a damaged one; the next run shows that it is sound."""

KINDS: dict[str, Kind] = {
    "bit flip": Kind(_hurt_a_file(_flip), hurts=True),
    "truncation": Kind(_hurt_a_file(_truncate), hurts=True),
    "vanished file": Kind(_hurt_a_file(_unlink), hurts=True),
    "vanished checkpoint": Kind(_lose_checkpoint, hurts=True),
    "vanished root": Kind(_lose_root, says=f"{ABSENT}|{NOT_OURS}"),
    "foreign root": Kind(_replace_root, says=f"{ABSENT}|{NOT_OURS}"),
    "full disk": Kind(_fill, says=f"No space left on device|{SQLITE}", prepare=_small),
    "no inodes": Kind(_use_up_names, says=f"No space left on device|{SQLITE}", prepare=_small),
    "quota of bytes": Kind(
        _calls(errno.EDQUOT, [WRITE, WRITE | FLUSH], [1000, 300]), says=f"Disk quota exceeded|{SQLITE}"
    ),
    "quota of inodes": Kind(_calls(errno.EDQUOT, [CREATE], [1000, 300]), says=f"Disk quota exceeded|{SQLITE}"),
    "stale handles": Kind(
        _calls(
            errno.ESTALE, [EVERYTHING, LOOK | OPEN | READ, READ | WRITE | FLUSH, NAME | CREATE], [1000, 300, 50]
        ),
        says=f"Stale file handle|{BROKEN}",
    ),
    "failing disk": Kind(
        _calls(errno.EIO, [READ, WRITE | FLUSH, READ | WRITE | FLUSH, LOOK | OPEN], [1000, 300, 50]),
        says=f"Input/output error|{BROKEN}",
    ),
    "read-only": Kind(_read_only, says=f"Read-only file system|{SQLITE}", prepare=_small),
}


def run_case(kind: str, seed: int, faults: int, folder: Path, library: Path) -> Outcome:
    """Run one case in a directory of its own below a folder; it is kept only where something was wrong."""
    base = Path(tempfile.mkdtemp(prefix=f"{kind.replace(' ', '-')}-{seed}-", dir=folder))
    case = Case(kind, KINDS[kind], seed, base, library)
    try:
        outcome = case.run(faults)
    except Exception as error:
        error.add_note(f"in case {kind!r} {seed}, in {base}")
        raise
    if not outcome.violations:
        shutil.rmtree(base, ignore_errors=True)
    return outcome
