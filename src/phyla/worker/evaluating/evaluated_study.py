"""A study to evaluate: its suites, checkpoints, gin bindings, and the directory of results."""

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from phyla.checkpoints import Checkpoints
from phyla.errors import ConfigurationError
from phyla.evaluation import EvalTask, Suite
from phyla.records import Checkpoint, EvalResult
from phyla.system.code_digest import code_digest, imported_by


class Sources(Protocol):
    """Places from which checkpoints are read for evaluation.

    Both methods raise `CheckpointError` if a checkpoint is gone or has changed.
    """

    def path(self, seen: Checkpoint) -> Path:
        """Return where a checkpoint is read."""
        ...

    def check(self, seen: Checkpoint, *, again: bool = False) -> None:
        """Verify, after reading, that a checkpoint is unchanged; `again` reads all bytes again."""
        ...


@final
class StudySources:
    """A study's own checkpoints, which are immutable and kept while they are evaluated; see `Sources`."""

    def __init__(self, repository: Checkpoints) -> None:
        self._repository = repository
        self._read = ""

    def path(self, seen: Checkpoint, *, again: bool = False) -> Path:
        """Return the directory of an unchanged checkpoint."""
        if seen.name != self._read:
            self._repository.release(self._read)
            self._read = ""
        # The identity of one of several models in a checkpoint ends with its place.
        path = self._repository.use(seen.name, seen.identity.partition("#")[0], again=again)
        if not self._read:
            # Only this counts as a reader: without it, the release would be that of a trial that reads the same.
            path, self._read = self._repository.path(seen.name), seen.name
        return path

    def check(self, seen: Checkpoint, *, again: bool = False) -> None:
        """Verify that it is unchanged since its commit."""
        self.path(seen, again=again)


def apply_bindings(root: Path, files: Sequence[str], task: Sequence[str]) -> None:
    """Clear gin's configuration and parse the suite's files, then the eval task's bindings; later ones win.

    In files, bindings of functions that are not imported are skipped: other suites may share them. The eval task's
    must fit, since a misspelled one would change nothing.
    """
    try:
        import gin
    except ModuleNotFoundError:
        if not (files or task):
            return
        raise ConfigurationError(
            "this suite has gin bindings, but gin-config is not installed: pip install 'phyla[gin]'"
        ) from None
    paths = [str(root / name) for name in files]
    missing = [path for path in paths if not Path(path).is_file()]
    if missing:
        raise ConfigurationError(f"files of gin bindings are missing: {', '.join(missing)}")
    gin.clear_config()
    if not (files or task):
        # Parsing nothing would lock the configuration.
        return
    try:
        gin.parse_config_files_and_bindings(paths, (), skip_unknown=True, finalize_config=False)
        gin.parse_config(task)
        gin.finalize()
    except (SyntaxError, ValueError, TypeError, OSError) as error:
        raise ConfigurationError(f"gin bindings cannot be parsed: {error}") from error


@functools.lru_cache(maxsize=256)
def _digest(function: Callable[..., object]) -> str:
    digests = [code_digest(function), *imported_by(function).values()]
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedStudy:
    """A study with its suites and the sources of its checkpoints.

    Attributes:
        suites: its suites, as they were when this process read them.
        outputs: directory of saved arrays and files; its parent is common to all studies of a store, since the
            ledger's entries are, too.
        gin_root: directory of the suites' files of gin bindings.
        changed: returns whether the stored suites have changed.
        stop: ends the study, with a message, where storage fails; None counts that as a failure.
    """

    suites: tuple[Suite, ...]
    sources: Sources
    outputs: Path
    gin_root: Path = Path()
    changed: Callable[[], bool] = lambda: False
    stop: Callable[[str], None] | None = None

    @property
    def prepared(self) -> Path:
        """The directory of its prepared checkpoints, beside that of its outputs."""
        return self.outputs.parent.with_name("prepared") / self.outputs.name

    def describe_edits(self, suite: Suite, results: Mapping[str, Sequence[EvalResult]]) -> dict[str, str]:
        """Return messages, by name, about eval tasks that have results of an older source."""
        messages = {}
        given = {"prepare=": suite.preparation, "load=": suite.load}
        others = "".join(f", or that of {name}" for name, function in given.items() if function is not None)
        for task in suite.tasks:
            source = self.source(suite, task)
            before = {result.source for result in results.get(task.identity, ()) if result.source}
            if source and before - {source}:
                messages[task.name] = (
                    f"the function of eval task {task.name!r}{others}, or what it uses of its file, of modules "
                    "that the file imports, or of gin, changed since some of its results were computed, and its "
                    f"version is still {task.version!r}: raise the version to compute them again"
                )
        return messages

    def source(self, suite: Suite, task: EvalTask) -> str:
        """Return a digest of what evaluates: functions, what these use of their files, modules, and gin files.

        None is part of the eval task's identity. Empty if none is known.
        """
        prepare = None if suite.preparation is None else suite.preparation.function
        source = ""
        for function in (task.evaluate, prepare, suite.load):
            if function is not None:
                with suppress(OSError, TypeError):
                    source += _digest(inspect.unwrap(function))
        if not suite.gin_files:
            return source
        bindings = hashlib.sha256()
        for path in (self.gin_root / name for name in suite.gin_files):
            content = path.read_bytes() if path.is_file() else b""
            bindings.update(b"%d:" % len(content) + content)
        return f"{source}+{bindings.hexdigest()[:16]}"
