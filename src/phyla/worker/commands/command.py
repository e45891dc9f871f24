"""A study whose training is a command, in any language."""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import final

from phyla import plugins, settings
from phyla.errors import ConfigurationError
from phyla.records import UNLESS_NONE
from phyla.space import Space
from phyla.system.code_digest import imports_of, modules_of
from phyla.validation import check, suggest_arguments
from phyla.worker.commands import placeholders
from phyla.worker.commands.placeholders import Argument
from phyla.worker.gangs import engine
from phyla.worker.training.trial import Trial

SCRIPT_BYTES = 10_000_000
"""Size of the largest file among the arguments whose edits are detected."""


@final
@dataclass(frozen=True)
class Command:
    """A command that trains one trial; give it to `Study(train=...)` in place of a function.

    No shell runs it. Placeholders are filled in argument by argument: `{NAME}` for each hyperparameter (`{opt/lr}`
    for one in a group), `{source}` (the directory to load from, absent at the root), `{source:*.pth}` (the newest
    file in it that matches), `{save_to}`, `{metrics}`, `{params_file}`, `{working_dir}`, `{seed}`, `{member}`,
    `{trial}`, `{start_step}`, `{end_step}`, `{steps}` and `{gpus}`. `{hydra}` becomes several arguments.
    Write other braces twice. `docs/how-to/commands.md` describes what the command does with them.

    Args:
        arguments: the program and its arguments. A list inside is left out when one of its values is absent, as in
            `["python", "train.py", ["--resume", "{source}"]]`.
        metrics: name to a regular expression with one group, searched in each line of standard output and standard
            error. A metric that both have is read from standard output. The name `step` gives the step of what
            follows.
        tensorboard: name to (glob, tag): scalars from the event files that match, in one directory. The glob is
            relative to `{working_dir}`, and may have placeholders.
        env: further environment variables; values may have placeholders. A variable with an absent value
            is not set. They are stored with the study: leave secrets in the environment of `phyla run`, which
            commands inherit.
        cwd: where it runs; a text may have placeholders, a `Path` has none. By default the current directory
            when this is made. In a study file in TOML it is relative to the file.
        timeout_s: seconds one attempt may take; None for no limit.
        grace_s: seconds between SIGTERM, when it has to stop, and the end of everything that it started.
        resources: `{"nodes": 4, "gpus": 8}` runs it once on each of 4 machines, with 8 GPUs each, where Slurm or
            Ray can start it there; see `docs/how-to/gangs.md`. It has more placeholders then: `{nodes}`,
            `{gpus_per_node}`, `{node_rank}`, `{master_addr}` and `{master_port}`.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    arguments: Sequence[Argument]
    _: KW_ONLY
    metrics: Mapping[str, str] = field(default_factory=dict)
    tensorboard: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | Path | None = None
    timeout_s: float | None = None
    grace_s: float = 30.0
    resources: Mapping[str, int] | None = field(default=None, metadata=UNLESS_NONE)

    def __post_init__(self) -> None:
        arguments = self.arguments
        if isinstance(arguments, str) or not isinstance(arguments, Sequence) or not arguments:
            raise ConfigurationError(
                f"Command({arguments!r}): give a list of strings, as in ['python', 'train.py', '--lr', '{{lr}}'];"
                " no shell splits or runs it"
            )
        checked = tuple(map(placeholders.normalize, arguments))
        if not isinstance(checked[0], str) or not checked[0]:
            raise ConfigurationError(
                f"Command(...): the first argument is {arguments[0]!r}; give the program to run"
            )
        for argument in checked:
            fields = placeholders.fields_of(argument) if isinstance(argument, str) else ()
            if any(field.name == "source" for field in fields):
                raise ConfigurationError(
                    f"Command(...): {argument!r} is absent at the root, where there is nothing to load; put it "
                    f"into a list of its own, such as ['--resume', {argument!r}], which is left out then"
                )
        for name in ("metrics", "tensorboard", "env"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise ConfigurationError(f"Command({name}={value!r}): give a mapping by name")
        for name, pattern in self.metrics.items():
            _check_pattern(name, pattern)
        for name, value in self.env.items():
            if not isinstance(value, str):
                raise ConfigurationError(f"Command(env={{{name!r}: {value!r}}}): write {str(value)!r}")
            if name.startswith("PHYLA_"):
                raise ConfigurationError(f"Command(env={{{name!r}: ...}}): phyla itself sets variables PHYLA_*")
        stored = {
            "arguments": checked,
            "metrics": dict(self.metrics),
            "tensorboard": {name: _scalar(name, pair) for name, pair in self.tensorboard.items()},
            "env": dict(self.env),
            "cwd": _template(self.cwd),
        }
        for name, value in stored.items():
            object.__setattr__(self, name, value)
        for text in self._texts:
            names = {field.name for field in placeholders.fields_of(text)}
            for name in names & {placeholders.HYDRA, *(engine.PER_RANK if self.resources else ())}:
                raise ConfigurationError(f"Command(...): {text!r}: {{{name}}} can only be in the arguments")
        check(self, timeout_s="(0, inf)", grace_s="[0, inf)")
        if self.resources is not None:
            where = f"resources={self.resources!r}"
            object.__setattr__(self, "resources", engine.check_resources(self.resources, where))

    @property
    def _texts(self) -> tuple[str, ...]:
        """Strings with placeholders besides the arguments."""
        return (str(self.cwd), *self.env.values(), *(glob for glob, _ in self.tensorboard.values()))

    @property
    def _folder(self) -> str | None:
        """Where it runs; None if that depends on the trial."""
        folder = str(self.cwd)
        return None if any(placeholders.fields_of(folder)) else placeholders.fill(folder, {})

    def __call__(self, trial: Trial) -> None:
        """Run the command for one trial."""
        from phyla.worker.commands.commanded import Run

        Run(self, trial).run()

    def __str__(self) -> str:
        return " ".join(map(str, _flat(self.arguments)))

    @property
    def names(self) -> frozenset[str]:
        """Names of the placeholders that the command uses."""
        return frozenset(field.name for field in placeholders.fields_of((*self.arguments, *self._texts)))

    def check_space(self, space: Space) -> None:
        """Reject placeholders that a search space does not fill in; see `placeholders.check`."""
        more = placeholders.MACHINES if self.resources else ()
        placeholders.check(self.arguments, self._texts, space, more)

    @property
    def nodes(self) -> int:
        """How many machines it runs on."""
        return (self.resources or {}).get("nodes", 1)

    def on_one_node(self) -> "Command":
        """Return the same command on this machine alone."""
        return self if self.resources is None else replace(self, resources={**self.resources, "nodes": 1})

    def check_program(self) -> None:
        """Check, before a trial is claimed, that the program can run.

        Raises:
            ConfigurationError: it is missing, or not executable.
        """
        program, folder = str(self.arguments[0]), self._folder
        if "{" in program or folder is None:
            return
        if not Path(folder).is_dir():
            raise ConfigurationError(f"the command {self} runs in {folder}, which does not exist")
        file, is_path = Path(folder, program), "/" in program
        path = self.env.get("PATH", settings.child_environment({}).get("PATH"))
        if shutil.which(str(file) if is_path else program, path=path) is not None:
            return
        why = f"there is no file {file}" if is_path else f"there is no program {program!r} in PATH"
        if file.is_file() and is_path:
            why = (
                f"{file} is not executable; run chmod +x {file}, or name its interpreter, as in "
                f"['sh', {program!r}, ...]"
            )
        elif file.is_file():
            why += f"; write './{program}' for the file in {folder}"
        raise ConfigurationError(f"the command {self}: {why}")

    def check_engine(self) -> None:
        """Check that an engine is here that runs it on several machines, if it needs them.

        Raises:
            ConfigurationError: there is none, or it has too few machines.
        """
        if self.nodes > 1:
            engine.check_engine(self.resources or {})

    def digest(self) -> str:
        """Return a digest of the command, its environment variables, and the scripts that it names."""
        encoded = plugins.encode(replace(self, cwd="/"))
        parts = [json.dumps(encoded, sort_keys=True).encode(errors="surrogatepass")]
        parts += [file.read_bytes() for file in self._scripts()]
        digests = [hashlib.sha256(part).hexdigest() for part in parts]
        return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]

    def modules(self) -> dict[str, str]:
        """Return digests of the user's modules that it runs by `-m`, or that its Python scripts import."""
        scripts = [file for file in self._scripts() if file.suffix == ".py"]
        run = [name for option, name in pairwise(_flat(self.arguments)) if option == "-m"]
        search = [*(str(file.parent) for file in scripts), self._folder or str(self.cwd)]
        return modules_of([*run, *(name for file in scripts for name in imports_of(file))], search)

    def _scripts(self) -> list[Path]:
        arguments = [argument for argument in _flat(self.arguments) if "{" not in argument]
        files = [Path(self._folder or str(self.cwd), argument) for argument in arguments]
        return [file for file in files if file.is_file() and file.stat().st_size <= SCRIPT_BYTES]


suggest_arguments(Command)


def _flat(arguments: Sequence[Argument]) -> list[str]:
    return [
        text for argument in arguments for text in ([argument] if isinstance(argument, str) else _flat(argument))
    ]


def _template(cwd: str | Path | None) -> str:
    """Return an absolute directory as a text with placeholders."""
    if isinstance(cwd, Path):
        return placeholders.escape(str(cwd.absolute()))
    return placeholders.locate(cwd or "", Path.cwd())


def _check_pattern(name: str, pattern: object) -> None:
    where = f"Command(metrics={{{name!r}: {pattern!r}}})"
    example = "such as r'loss=(\\S+)'"
    if not isinstance(pattern, str):
        raise ConfigurationError(f"{where}: give a regular expression with one group, {example}")
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if groups != 1:
        raise ConfigurationError(
            f"{where}: it has {groups} groups; give one, around the number, {example}. Other parentheses are "
            "written (?:...)"
        )


def _scalar(name: str, pair: object) -> tuple[str, str]:
    match pair:
        case [str(glob), str(tag)] if glob and tag:
            return glob, tag
    raise ConfigurationError(
        f"Command(tensorboard={{{name!r}: {pair!r}}}): give the files and the tag, such as ('**/*tfevents*', "
        "'eval/loss')"
    )
