"""What there is to watch, under which name, and what watching it would compute."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from phyla.checkpoints import place_of
from phyla.errors import ConfigurationError, StudyNotFound
from phyla.formatting import mask_password
from phyla.records import StudyRecord, escape_name
from phyla.study.places import names_in
from phyla.validation import check_name

if TYPE_CHECKING:
    from phyla.store import Store
COMMON = frozenset(
    {"checkpoints", "checkpoint", "ckpt", "ckpts", "models", "model", "weights", "output", "outputs"}
)
"""Generic names of directories, below one that names the run."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to watch under the name of a run: a directory, a URL in place of one, or a study."""

    name: str
    directory: Path | str | None = None
    study: StudyRecord | None = None


def targets_of(
    store: "Store", paths: str | Path | Sequence[str | Path], name: str | None, *, waits: bool = False
) -> list[Target]:
    """Return what to watch: directories, which may be missing if it `waits`, URLs, or one study of the store."""
    many = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not many:
        raise ConfigurationError("there is nothing to watch: give a directory, or the name of a study")
    if name is not None and len(many) > 1:
        raise ConfigurationError(f"name={name!r} names one run, and there are {len(many)} directories")
    targets = [_target(store, path, name, waits=waits) for path in many]
    names = Counter(target.name for target in targets)
    targets = [
        replace(target, name=_clean("-".join(_parts(target.directory))[-100:]))
        if names[target.name] > 1 and target.directory is not None
        else target
        for target in targets
    ]
    for name, count in Counter(target.name for target in targets).items():
        check_name(f"run name {name!r}", name, "; give it with name= (on the command line: --name)")
        if count > 1:
            raise ConfigurationError(f"{name!r} is given twice")
    for directory in (target.directory for target in targets if isinstance(target.directory, Path)):
        where = escape_name(str(directory))
        if directory.exists() and not directory.is_dir():
            raise ConfigurationError(f"{where} is a file; name the directory that holds the checkpoints")
        if not directory.is_dir() and not waits:
            existing = next(parent for parent in directory.parents if parent.is_dir())
            raise ConfigurationError(
                f"there is no directory {where} ({escape_name(str(existing))} is there): training has not made it "
                "yet, or the path is wrong. Check the path, or create it with: mkdir -p "
                f"{shlex.quote(str(directory))}"
            )
    return targets


def _target(store: "Store", path: str | Path, name: str | None, *, waits: bool) -> Target:
    is_s3 = str(path).startswith("s3://")
    if "://" in str(path) and not is_s3:
        raise ConfigurationError(
            f"{escape_name(mask_password(str(path)))} cannot be watched: phyla watch follows directories and "
            "s3:// URLs. Copy it into a directory from time to time, or mount it, and watch that"
        )
    study = None if is_s3 or isinstance(path, Path) or Path(path).is_dir() else store.find_study(path)
    if study is not None and not study.watched:
        if name == study.name:
            raise ConfigurationError(
                f"name={name!r}: the study's own suites are evaluated under that name; leave it out for "
                f"{study.name}-watch, or give another one"
            )
        return Target(name=name or f"{study.name}-watch", study=study)
    if isinstance(path, str) and "/" not in path and not Path(path).exists() and not waits:
        raise StudyNotFound(
            f"there is neither a directory {escape_name(str(Path(path).absolute()))} nor a study {path!r} "
            f"(studies in {store.url}: {names_in(store, watched=False)}); check the path, or create the directory "
            "that training will write to"
        )
    directory = str(place_of(path, Path())) if is_s3 else Path(path).expanduser().absolute()
    parts = _parts(directory)
    telling = [part for part in parts if part.lower() not in COMMON]
    return Target(name=name or _clean((telling or parts or ["run"])[-1]), directory=directory)


def _parts(directory: Path | str) -> list[str]:
    return [part for part in str(directory).removeprefix("s3://").split("/") if part.strip("./")]


def _clean(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).lstrip("-.") or "run"
