"""The contract of a launcher: start workers, count them, stop them. It is independent of studies."""

import json
import re
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, final

from phyla import plugins
from phyla.errors import ConfigurationError, LauncherFailed, advice_on
from phyla.system.drafts import replace_text
from phyla.validation import look_up

GROUP = "phyla.launchers"
IDENTITY = re.compile("[0-9a-f]{8}")


@final
@dataclass(frozen=True, kw_only=True)
class Pool:
    """Identical workers, and where they run. It is stored as `pool.json` in its folder.

    Attributes:
        name: of the pool.
        launcher: name of the launcher that runs it.
        command: what one worker runs, without `--workers`; see `worker`.
        workers: how many workers to run.
        files: the study files they work for.
        nodes: machines for each worker, which runs on the first of them; its trials run on all.
        gpus: GPUs per worker, on each of its machines; 0 requests none.
        cpus: processor cores for each worker; None leaves them to the launcher.
        memory_mb: memory for each worker in MiB; None leaves it to the launcher.
        time_limit_s: time limit of each worker in seconds; None for no limit.
        options: further options, which only this launcher understands.
        only_here: the store, if it is a file on this machine alone; else empty.
        environment: variables for the workers, besides those they inherit. Never secrets: they are stored.
        directory: the working directory.
        folder: for its logs and the launcher's files; on a shared disk where there are several machines.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    name: str
    launcher: str
    command: Sequence[str]
    workers: int
    files: Sequence[str] = ()
    nodes: int = 1
    gpus: float = 0
    cpus: float | None = None
    memory_mb: int | None = None
    time_limit_s: float | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    only_here: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path = field(default_factory=Path.cwd)
    folder: Path

    def worker(self, *more: str) -> list[str]:
        """Return the command line of one worker, with these options at the end."""
        limit = [] if self.time_limit_s is None else ["--time-limit", f"{self.time_limit_s:.15g}"]
        return self.with_options(*limit, *more)

    def with_options(self, *more: str) -> list[str]:
        """Return the command of one worker with more options, before the arguments of the study file."""
        at = self.command.index("--") if "--" in self.command else len(self.command)
        return [*self.command[:at], "--workers", "1", *more, *self.command[at:]]

    def identity(self) -> str:
        """Return eight letters and digits unique to the pool in this folder, generated at the first call."""
        file = self.folder / "id"
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_text(file, uuid.uuid4().hex[:8])
        return file.read_text()

    def save(self) -> None:
        """Store it in its folder."""
        # A stored pool always has its identity, so no process makes another one.
        self.identity()
        stored = {**asdict(self), "folder": None, "directory": str(self.directory)}
        replace_text(self.folder / "pool.json", json.dumps(stored, indent=1))

    @staticmethod
    def load(folder: Path) -> "Pool | None":
        """Return the pool that is stored in a folder, if there is one.

        Raises:
            ConfigurationError: its records are damaged, or cannot be read.
        """
        file = folder / "pool.json"
        try:
            pool = _decode({**json.loads(file.read_text()), "folder": folder})
            if pool.name != folder.name:
                raise ValueError(f"it describes pool {pool.name!r}")
            check_identity(folder)
        except (OSError, ValueError, TypeError) as error:
            if isinstance(error, (FileNotFoundError, NotADirectoryError)) and error.filename == str(file):
                return None
            if isinstance(error, PermissionError):
                raise ConfigurationError(f"{error}; {advice_on(error)}") from error
            raise ConfigurationError(
                f"pool {folder.name!r} is damaged: {file}: {error}. phyla cannot stop its workers, if any are "
                f"alive. Remove its records with: phyla down {folder.name} --forget"
            ) from error
        return pool


def check_identity(folder: Path) -> None:
    """Raise `ValueError` or `OSError` if the folder of a pool has no identity."""
    file = folder / "id"
    if not IDENTITY.fullmatch(file.read_text()):
        raise ValueError(f"{file} has no identity, by which its workers are known")


def _decode(stored: Mapping[str, Any]) -> Pool:
    """Make a pool of its stored fields, or raise `ValueError` with the first mistake."""
    import pydantic

    try:
        return pydantic.TypeAdapter(Pool).validate_python(stored)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


class Launcher(Protocol):
    """Starts and stops the workers of pools.

    A launcher is a subclass, so methods with a default may be left out. It is registered in the entry point group
    `phyla.launchers`, and created without arguments. The pool's folder, or the engine that runs the workers, keeps
    what another process needs to find them.

    All methods raise `LauncherFailed` where the engine fails or cannot be reached, and `ConfigurationError` if the
    launcher does not support the settings of the pool.
    """

    def check(self, pool: Pool) -> None:
        """Reject a pool that could not be started; called before anything is stored, or deleted to start over."""
        self.alive(pool)

    def start(self, pool: Pool) -> None:
        """Start missing workers; may be repeated, but not concurrently."""
        ...

    def alive(self, pool: Pool) -> int:
        """Return how many workers are running or queued."""
        ...

    def stop(self, pool: Pool, grace_s: float) -> None:
        """Ask the workers to save and exit, kill the remaining ones after `grace_s`, and wait for them."""
        ...

    def outcomes(self, pool: Pool) -> Mapping[str, int]:
        """Return how many workers are `queued`, have `completed` and `failed`, as far as the engine knows."""
        return {}

    def reasons(self, pool: Pool) -> Mapping[str, int]:
        """Return why workers are `queued`, in the engine's words, and how many for each reason."""
        return {}

    def logs(self, pool: Pool) -> str:
        """Return where the output of the workers is: paths, or a command that shows it."""
        ...


def launcher_named(name: str) -> Launcher:
    """Return the launcher of that name.

    Raises:
        ConfigurationError: none is installed.
    """
    launcher: Launcher = plugins.load(look_up("launcher", name, plugins.of_group(GROUP)))()
    return launcher


def refuse_store(pool: Pool) -> None:
    """Reject a pool on other machines whose store only this machine can open."""
    if pool.only_here:
        raise ConfigurationError(
            f"launcher {pool.launcher!r} starts workers on other machines, which cannot open the store "
            f"{pool.only_here}: each would open a file of its own. Give --server URL, of phyla serve, or "
            "--storage postgresql://..."
        )


def refuse_nodes(pool: Pool) -> None:
    """Reject a pool whose trials run on several machines."""
    if pool.nodes > 1:
        raise ConfigurationError(
            f"launcher {pool.launcher!r} gives each worker one machine, and a trial needs {pool.nodes}; use "
            "--launcher slurm or ray, or see docs/how-to/gangs.md"
        )


def refuse_options(pool: Pool, known: Sequence[str]) -> None:
    """Reject options unknown to a launcher."""
    unknown = [name for name in pool.options if name not in known]
    if unknown:
        raise ConfigurationError(
            f"launcher {pool.launcher!r} has no option {unknown[0]!r}; "
            f"{'choose from: ' + ', '.join(known) if known else 'it has none'}"
        )


def run_program(
    words: Sequence[str],
    *,
    action: str,
    missing: str,
    limit_s: float,
    stdin: str = "",
    fine: int = 0,
    noise: str = "(?!)",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program and return its output; errors name the `action`, or what to do if it is `missing`.

    Exit status `fine` is no error. Lines of its errors that begin with the pattern `noise` are shown only if there
    are no others. The program gets our environment unless another is given.
    """
    try:
        # In its own session it does not receive our Ctrl-C.
        how: dict[str, Any] = {"capture_output": True, "text": True, "start_new_session": True, "env": environment}
        done: subprocess.CompletedProcess[str] = subprocess.run(
            words, input=stdin, check=False, timeout=limit_s, **how
        )
    except FileNotFoundError:
        raise LauncherFailed(f"{words[0]} is not installed on this machine; {missing}") from None
    except subprocess.TimeoutExpired:
        raise LauncherFailed(f"{action}: no answer within {limit_s:g} s") from None
    if done.returncode not in (0, fine):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = "\n".join([line for line in lines if not re.match(noise, line)] or lines[-1:])
        raise LauncherFailed(f"{action} failed: {why or f'exit status {done.returncode}'}")
    return done.stdout
