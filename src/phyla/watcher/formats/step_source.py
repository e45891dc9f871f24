"""Where the step of a foreign checkpoint comes from."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Self, final

from phyla.errors import ConfigurationError
from phyla.records import escape_name
from phyla.watcher.listing import Place

_SUFFIX = re.compile(r"(?<=.)\.[A-Za-z][A-Za-z0-9]{0,11}\Z", re.DOTALL)
DIGITS_AT_MOST = 18

_KEYS = ("step", "iteration", "checkpoint", "epoch")
"""Words before a step, most specific first."""
_KEYED = re.compile(
    r"(?P<word>(?P<step>(?:global[-_.]?)?steps?)|(?P<iteration>iter(?:ation)?s?)|(?P<checkpoint>checkpoint|ckpt)"
    r"|(?P<epoch>epochs?))[-_=.]{0,2}(?P<digits>[0-9]+)",
    re.IGNORECASE,
)
_INTEGER = re.compile(r"[0-9]+")
_TIME = r"(?:[-_.T ]?[012][0-9](?P<dot>[-_.:h]?)[0-5][0-9](?P=dot)[0-5][0-9]|[-_.T ][012][0-9][-:h][0-5][0-9])"
_DAY = r"(?:19|20)[0-9]{2}(?P<bar>[-_.]?)(?:0[1-9]|1[0-2])(?P=bar)(?:0[1-9]|[12][0-9]|3[01])"
RANK = re.compile(
    r"(?<![A-Za-z0-9])(?:mp_rank_[0-9]{2}(?:_[0-9]{3}){1,2}"
    r"|(?:(?:[a-z]+[-_]?)?rank|world[-_]?size|shard|part(?:ition)?|worker|node|host|gpu|device|proc(?:ess)?|[dtpm]p)"
    r"[-_=.]?[0-9]+)(?![0-9])",
    re.IGNORECASE,
)
"""The number of a rank or a shard, or how many there are, as in `mp_rank_00`, `world_size_2_rank_0` and `tp4`."""
_NEVER = (
    RANK,
    re.compile(r"(?<!step.)(?<!iter.)(?<!epoch.)(?<![0-9])[0-9]+[-_]of[-_][0-9]+", re.IGNORECASE),
    re.compile(r"\A__[0-9]+(?:_[0-9]+)?\Z"),
    re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9A-Za-z])", re.IGNORECASE),
    re.compile(rf"(?<![0-9]){_DAY}{_TIME}(?![0-9])"),
    re.compile(r"(?<![0-9])(?:19|20)[0-9]{2}([-_.])(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12][0-9]|3[01])(?![0-9])"),
    re.compile(
        r"(?<![0-9a-z])(?=[0-9a-f]*(?:[0-9][a-f]+[0-9]|[a-f][0-9]+[a-f]))[0-9a-f]{7,}(?![0-9a-z])", re.IGNORECASE
    ),
    re.compile(
        r"[0-9]+(?:\.[0-9]+)+(?:e[-+]?[0-9]+)?|[0-9]+e[-+][0-9]+|(?<![0-9a-z])[0-9]+e[0-9]+(?![0-9a-z])",
        re.IGNORECASE,
    ),
)
"""What has digits and is no step: ranks, shards as `00001-of-00002`, `__0_0.distcp`, UUIDs,
dates with a time, dates, hashes, decimals."""
_COMPACT_DAY = re.compile(r"(?<![0-9])(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?![0-9])")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepFrom:
    """Tells the step of a checkpoint, by default from the last part of its name.

    There it is the integer after `step` or `global_step`, else after `iter`, `iteration`, `checkpoint`, `ckpt` or
    `epoch`, else the last integer. Numbers of ranks and shards, decimals, dates and hashes are passed over.

    Attributes:
        pattern: a regular expression with a group `step`, searched for in the whole name.
        file: a JSON file in the checkpoint's directory that holds the step instead.
        keys: where it is in there, outermost first.
    """

    pattern: re.Pattern[str] | None = None
    file: str | None = None
    keys: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `json:FILE#KEY` or `json:FILE#KEY.KEY`, or else a regular expression with a group `step`."""
        if text.startswith("json:"):
            file, mark, keys = text.removeprefix("json:").partition("#")
            if not (file and mark and keys) or file.startswith("/") or ".." in file.split("/"):
                how = "write json:FILE#KEY with a FILE in the checkpoint, such as json:state.json#step"
                raise ConfigurationError(f"step {text!r}: {how}")
            return cls(file=file, keys=tuple(keys.split(".")))
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise ConfigurationError(f"step {text!r} is not a regular expression: {error}") from error
        if "step" not in pattern.groupindex:
            raise ConfigurationError(
                f"step {text!r} has no group called step; write one such as model_(?P<step>\\d+)\\.pt"
            )
        return cls(pattern=pattern)

    def of_name(self, name: str) -> int | None:
        """Return the step in a name; None without one."""
        return self._read(name)[0]

    def rule(self, name: str) -> str:
        """Say in words where the step of a checkpoint of this name comes from."""
        return self._read(name)[1]

    @staticmethod
    def describe(rule: str, step: int) -> str:
        """Return a rule for the name of a checkpoint, or where its step comes from if the name has none."""
        return "as it records itself" if rule.startswith("unknown") and step >= 0 else rule

    def describe_restart(self, names: Iterable[str]) -> str | None:
        """Describe steps that begin again in each epoch and so do not order these names; None without."""
        numbered = []
        for name in names if self == StepFrom() else ():
            _, keyed = _keyed(name)
            numbers = {key: _integer(keyed[key]["digits"]) for key in _KEYS if key in keyed}
            epoch = numbers.pop("epoch", None)
            step = next(iter(numbers.values()), None)
            if step is not None and epoch is not None:
                numbered.append((epoch, step, name, keyed["epoch"]))
        for before, after in pairwise(sorted(numbered, key=lambda item: item[:3])):
            if before[0] < after[0] and after[1] <= before[1]:
                older, newer = escape_name(before[2]), escape_name(after[2])
                word = re.escape(after[3][0].removesuffix(after[3]["digits"]))
                return (
                    f"{newer} does not count as newer than {older}, as its step is not higher: let steps continue "
                    f"over all epochs, or compare checkpoints by epoch: --step '{word}(?P<step>\\d+)'"
                )
        return None

    def _read(self, name: str) -> tuple[int | None, str]:
        if self.file is not None:
            return None, f"{'.'.join(self.keys)} in {self.file}"
        if self.pattern is not None:
            match = self.pattern.search(name)
            text = match.group("step") if match else None
            rule = f"the regular expression {self.pattern.pattern}"
            return (None, f"unknown: {rule} does not fit") if text is None else (_integer(text), rule)
        last, keyed = _keyed(name)
        for key in _KEYS:
            step = _integer(keyed[key]["digits"]) if key in keyed else None
            if step is not None:
                return step, f"the number after {keyed[key]['word']!r} in the name"
        for text in reversed(_INTEGER.findall(_COMPACT_DAY.sub("~", last))):
            step = _integer(text)
            if step is not None:
                return step, "the last whole number in the name"
        return None, "unknown: the name has no whole number; ranks, decimals, dates and hashes do not count"

    def of_content(self, folder: Place) -> int:
        """Return the step in the JSON file; raises OSError or ValueError, naming what is missing."""
        assert self.file is not None
        try:
            value = json.loads((folder / self.file).read_bytes())
        except FileNotFoundError:
            raise ValueError(f"{self.file}, which holds the step, is missing") from None
        for key in self.keys:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**DIGITS_AT_MOST:
            raise ValueError(f"{self.file} has {value!r} at {'.'.join(self.keys)}, which is not a step")
        return value


def _keyed(name: str) -> tuple[str, dict[str, re.Match[str]]]:
    """Return the last part of a name without what is no step, and the numbers in it by the word before them."""
    last = _SUFFIX.sub("", name.rpartition("/")[2])
    for pattern in _NEVER:
        last = pattern.sub(lambda match: "~" * len(match[0]), last)
    return last, {key: match for match in _KEYED.finditer(last) for key in _KEYS if match[key]}


def _integer(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= DIGITS_AT_MOST else None
