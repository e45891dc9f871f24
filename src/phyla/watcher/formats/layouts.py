"""Libraries that write several files per checkpoint: names of parts, and the file that is written last."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple, final

from phyla.watcher.format import (
    Candidate,
    Finish,
    Verdict,
    check_file,
    check_order,
    is_companion,
    worst,
)
from phyla.watcher.formats.siblings import endings, pattern
from phyla.watcher.formats.step_source import DIGITS_AT_MOST, StepFrom
from phyla.watcher.formats.weights import check_distributed, weights
from phyla.watcher.listing import File, Listing, Place, Root

PART = re.compile(r"mp_rank_\d+.*|model_and_optim|pretrained_model|actor|critic|pytorch_model(_\d+)?")
"""Directories inside a checkpoint that hold its weights: of Megatron, OLMo-core, LeRobot, verl and Accelerate."""
_DISTRIBUTED_PART = re.compile(r"model_and_optim|weights|model|dist_ckpt|pytorch_model_fsdp_\d+")
"""The same, for the files of `torch.distributed.checkpoint`; `weights` is NeMo 2's, the last is Accelerate's."""
_OF_LIGHTNING = re.compile(r"checkpoint/.*mp_rank_\d+_(model|optim)_states\.pt")
"""Files inside a checkpoint that Lightning saves with DeepSpeed; `checkpoint` alone may be anything."""
_LAST = {"STABLE": None, ".metadata.json": "model_and_optim"}
"""Files that are written last into a checkpoint (prime-rl, OLMo-core), and the part that shows that one will come.

If a directory has one, the directories beside it need it, too."""
TRACKERS = ("latest_checkpointed_iteration.txt", "latest")
"""Files that name the newest whole checkpoint, of Megatron and verl, and of DeepSpeed."""
LINKS = ("last", "latest")
"""Links to the newest checkpoint, of LeRobot; others may be made by hand, so nothing waits for them."""
_TRACKER_BYTES_AT_MOST = 200
_UNFINISHED = "-unfinished"
"""NeMo has an empty file `NAME-unfinished` beside a checkpoint until it is whole."""


def is_near(path: str, known: tuple[str, ...]) -> bool:
    """Return whether a file, by its path in a directory, holds weights that make this directory a checkpoint."""
    folder, _, name = path.rpartition("/")
    if name.endswith((".distcp", ".metadata")):
        return _DISTRIBUTED_PART.fullmatch(folder) is not None
    if _OF_LIGHTNING.fullmatch(path):
        return True
    return name.endswith(known) and not is_companion(name) and (not folder or PART.fullmatch(folder) is not None)


def check_parts(root: Place, listed: Listing) -> Verdict:
    """Return whether the weights of a directory and of its parts are whole."""
    folder, files = listed.folder()
    known = endings()
    parts: dict[str, dict[str, File]] = {}
    for path, file in files.items():
        part, _, name = path.rpartition("/")
        if is_near(path, known):
            parts.setdefault(part, {})[name] = file
    return worst(
        _check_part(root / folder / part if part else root / folder, inside) for part, inside in parts.items()
    )


def _check_part(folder: Place, files: Mapping[str, File]) -> Verdict:
    if any(name.endswith(".distcp") or name == ".metadata" for name in files):
        return check_distributed(folder, files)
    content = weights(folder, files)
    if content is not None and content.index is not None:
        return content.verdict
    return worst(check_file(folder / name, file.size_bytes) for name, file in files.items())


@final
class NewestWhole(NamedTuple):
    """A file, or link, that names the newest whole checkpoint; its writer updates it after each save.

    `holds` is whether newer ones wait for it.
    """

    name: str
    text: str
    step: int | None
    modified_ns: int
    holds: bool

    def covers(self, name: str) -> bool:
        """Return whether it applies to checkpoints with such a name."""
        return self.text.isdecimal() or pattern(self.text) == pattern(name)


def _trackers(entries: Root, rule: StepFrom) -> Iterator[NewestWhole]:
    for name in (name for name in TRACKERS if name in entries.files):
        file = entries.files[name]
        if file.size_bytes <= _TRACKER_BYTES_AT_MOST:
            text = (entries.path / name).read_bytes().decode(errors="replace").strip()
            step = int(text) if re.fullmatch(rf"[0-9]{{1,{DIGITS_AT_MOST}}}", text) else rule.of_name(text)
            yield NewestWhole(name, text, step, file.modified_ns, holds=True)
    for name, (target, modified_ns) in entries.links.items():
        if name in LINKS:
            yield NewestWhole(name, target, rule.of_name(target), modified_ns, holds=False)


@final
class Layouts:
    """What the entries of one directory say about each other; `rule` tells the steps."""

    def __init__(self, entries: Root, rule: StepFrom) -> None:
        self._entries = entries
        self._rule = rule
        self._trackers: tuple[NewestWhole, ...] = ()
        with suppress(OSError):
            self._trackers = tuple(_trackers(entries, rule))
        inside = {path for folder in entries.folders for path in entries.inside(folder)}
        self._closed = inside & _LAST.keys()

    def wrap(self, candidate: Candidate) -> Candidate:
        """Return a candidate whose check takes the other checkpoints into account."""
        return candidate._replace(check=partial(self._check, candidate))

    def _check(self, candidate: Candidate, root: Place, listed: Listing) -> Verdict:
        stem = candidate.name.removesuffix(".ckpt").removesuffix(".nemo")
        if f"{stem}{_UNFINISHED}" in self._entries.files:
            return Verdict.waiting(f"{stem}{_UNFINISHED} is there until it is whole")
        verdict = self._check_last(candidate, listed, candidate.judge(root, listed))
        return self._check_trackers(candidate, listed, verdict)

    def _check_last(self, candidate: Candidate, listed: Listing, verdict: Verdict) -> Verdict:
        """Return the verdict, by the file that is written last if there is to be one."""
        if candidate.name not in self._entries.folders or verdict.finish > Finish.SETTLING:
            return verdict
        _, files = listed.folder()
        for name, part in _LAST.items():
            needed = name in self._closed or any(part and path.startswith(f"{part}/") for path in files)
            if needed and name not in files:
                return Verdict.partial(f"{name} is missing, which is written last")
            if needed:
                # Configuration may follow.
                rest = [file for path, file in files.items() if not path.endswith((".json", ".yaml"))]
                return check_order(files[name], Verdict.complete(f"{name} is there, and {verdict.why}"), rest)
        return verdict

    def _check_trackers(self, candidate: Candidate, listed: Listing, verdict: Verdict) -> Verdict:
        """Return the verdict, by the file that names the newest whole checkpoint if there is one.

        Whatever is newer than this file may be a checkpoint that is written again.
        """
        step = self._rule.of_name(candidate.name)
        if candidate.name not in self._entries.folders or step is None:
            return verdict
        for tracker in self._trackers:
            if tracker.step is None or not tracker.covers(candidate.name):
                continue
            says = f"{tracker.name} says {tracker.text}"
            newer = listed.modified_ns > tracker.modified_ns
            if step <= tracker.step and not newer and verdict.finish in (Finish.SETTLING, Finish.WAITING):
                return Verdict.complete(says)
            if step > tracker.step and newer and tracker.holds:
                return Verdict.waiting(f"{says}, and is written after each checkpoint")
            if newer and tracker.holds:
                return worst([verdict, Verdict.settling(f"{says}, and is older: it may be being overwritten")])
        return verdict
