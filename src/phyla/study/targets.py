"""What there is to watch, and under which name."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from phyla.errors import ConfigurationError, StudyNotFound
from phyla.records import StudyRecord, shown
from phyla.study.opening import names_in
from phyla.study.places import NAME

if TYPE_CHECKING:
    from phyla.store import Store

COMMON = frozenset(
    {"checkpoints", "checkpoint", "ckpt", "ckpts", "models", "model", "weights", "output", "outputs"}
)
"""Names of directories that say nothing about the run; the one above does."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to watch: a directory, or a study.

    Attributes:
        name: of the run.
        directory: the directory; None for a study.
        study: the study; None for a directory.
    """

    name: str
    directory: Path | None = None
    study: StudyRecord | None = None


def targets_of(store: "Store", paths: str | Path | Sequence[str | Path], name: str | None) -> list[Target]:
    """Return what to watch: each a directory, or one study of the store.

    Raises:
        ConfigurationError: the names of runs make no sense.
        StudyNotFound: something is neither a directory nor a study.
    """
    many = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not many:
        raise ConfigurationError("there is nothing to watch: give a directory, or the name of a study")
    if name is not None and len(many) > 1:
        raise ConfigurationError(f"name={name!r} names one run, and there are {len(many)} directories")
    found: list[Target] = []
    for path in many:
        study = None if isinstance(path, Path) or Path(path).is_dir() else store.find_study(path)
        if study is not None and not study.watched:
            if name == study.name:
                raise ConfigurationError(
                    f"name={name!r}: the study's own suites are evaluated under that name; leave it out for "
                    f"{study.name}-watch, or give another one"
                )
            found.append(Target(name=name or f"{study.name}-watch", study=study))
        elif isinstance(path, str) and "/" not in path and not Path(path).is_dir():
            known = names_in(store, watched=False)
            where = shown(str(Path(path).absolute()))
            raise StudyNotFound(
                f"there is neither a directory {where} nor a study {path!r} (studies in {store.url}: {known}); "
                "check the path, or create the directory that training will write to"
            )
        else:
            directory = Path(path).expanduser().absolute()
            found.append(Target(name=name or _run_name(directory), directory=directory))
    names = [target.name for target in found]
    twice = {name for name in names if names.count(name) > 1}
    found = [
        replace(target, name=_long_name(target.directory))
        if target.name in twice and target.directory is not None
        else target
        for target in found
    ]
    names = [target.name for target in found]
    for each in names:
        if not NAME.fullmatch(each):
            raise ConfigurationError(
                f"run name {each!r}: use up to 100 letters, digits, '_', '-' and '.'; give it with name= (on the "
                "command line: --name)"
            )
        if names.count(each) > 1:
            raise ConfigurationError(f"{each!r} is given twice")
    return found


def check_directories(targets: Sequence[Target]) -> None:
    """Make sure that the directories to watch exist.

    Raises:
        ConfigurationError: one does not; the message names the nearest directory that does.
    """
    for target in targets:
        directory = target.directory
        if directory is None or directory.is_dir():
            continue
        where = shown(str(directory))
        if directory.exists():
            raise ConfigurationError(f"{where} is a file; name the directory that holds the checkpoints")
        existing = next(parent for parent in directory.parents if parent.is_dir())
        raise ConfigurationError(
            f"there is no directory {where} ({shown(str(existing))} is there): training has not made it yet, or "
            f"the path is wrong. Check the path, or create it with: mkdir -p {shlex.quote(str(directory))}"
        )


def _run_name(directory: Path) -> str:
    parts = [part for part in directory.parts if part.strip("./")]
    telling = [part for part in parts if part.lower() not in COMMON]
    return _clean((telling or parts or ["run"])[-1])


def _long_name(directory: Path) -> str:
    return _clean("-".join(part for part in directory.parts if part.strip("./"))[-100:])


def _clean(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).lstrip("-.") or "run"
