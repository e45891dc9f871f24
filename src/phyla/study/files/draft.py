"""Drafts a study file for a training script, from its source alone: nothing is imported or run."""

import ast
import json
import os
import platform
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from phyla.errors import UsageError
from phyla.study.files.options import Interface, Option, called, read_interface

INTERPRETERS = {".py": "python", ".sh": "sh", ".jl": "julia", ".R": "Rscript", ".lua": "lua", ".pl": "perl"}
ROLES = {
    "{source}": r"resume(_.*)?|load(_.*)?|restore(_.*)?|init_from|from_checkpoint",
    "{save_to}": r"(default_root|output|out|save|checkpoint|ckpt|model)_?(dir|path|to|folder)|save|output|out"
    r"|work_?dir",
    "{end_step}": r"((max|total|num|n)_)?(train_)?(steps|iterations|iters|timesteps|updates|epochs)",
    "{seed}": r"(random_)?seed",
}
"""Placeholders, and the names of options that take them."""
STOP = r"(stop|end|until|last)(_at|_after)?_(step|iteration|iter|timestep|update|epoch)s?|stop_at|until"
"""Names of options for where to stop, next to an option for the length of schedules, which stays the study's."""
CHECKPOINT = r"(.*_)?(checkpoint|ckpt)(_path)?"
"""Names of options for a checkpoint to load, or, next to such an option, for a file to save."""
ABSENT = {
    "{source}": ("resume", "loads a checkpoint, so each trial starts over"),
    "{save_to}": ("output_dir", "says where to save a checkpoint"),
    "{end_step}": ("max_steps", "says until which step to train, counted from the very start"),
}
"""Options that a script needs: a name that each may have, and its effect."""
FIXED = r".*(seed|step|epoch|iter|worker|env|interval|freq|every|port|rank|gpu|version|patience|warmup).*"
"""Names of numbers that are no hyperparameters."""


PRINTED = re.compile(
    r"((?:(?:train|val|eval|test|dev)\w* )?[\w/]*?"
    r"(?:(loss|error|perplexity|ppl|[rm]?mse|mae|nll)|acc|accuracy|f1|auc|reward|return|score))\W{0,4}?\0",
    re.IGNORECASE,
)
"""A metric that a script prints, and its value; the second group is of one to minimize."""
PERCENT = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]")
BRACES = re.compile(r"\{.*?\}")
"""The place of a value in a template."""
NUMBER = r"([-+]?(?:\d*\.?\d+(?:\.?e[-+]?\d+)?|nan\b|inf\b))(?![,.]?\d)"
"""A number as a float takes it: not the beginning of 1,234.5 or of a decimal comma."""


def draft(script: Path, output: Path) -> str:
    """Return the text of a study file for a script, to be written to `output`.

    Raises:
        UsageError: Python cannot parse the script; it names the line.
    """
    source, tree = _parse(script)
    return _Draft(script, output, source, tree).text()


def _parse(script: Path) -> tuple[str, ast.Module]:
    """Return the text of a script and its syntax tree; both are empty if it is not one of Python."""
    if script.suffix != ".py":
        script.open().close()
        return "", ast.Module([], [])
    raw = script.read_bytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the script
            return raw.decode(errors="replace"), ast.parse(raw, str(script))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        version = platform.python_version()
        raise UsageError(f"{script}: this Python, {version}, cannot parse it: {error}") from None


@dataclass(frozen=True)
class _Draft:
    """A script, and what its options are for."""

    script: Path
    output: Path
    source: str
    tree: ast.Module

    @cached_property
    def called(self) -> str:
        name = self.script.name
        return name if name.isprintable() else json.dumps(name)

    @cached_property
    def hydra(self) -> bool:
        return "hydra.main" in self.source

    @cached_property
    def interface(self) -> Interface:
        return read_interface(self.tree, self.source)

    @cached_property
    def options(self) -> list[Option]:
        return self.interface.options

    @cached_property
    def length(self) -> Option | None:
        return _fitting(ROLES["{end_step}"], self.options)

    @cached_property
    def stop(self) -> Option | None:
        return _fitting(STOP, self.options)

    @cached_property
    def roles(self) -> dict[str, Option | None]:
        """What takes each placeholder."""
        # The first trials have no source, so a required option cannot be the source.
        optional = [option for option in self.options if not option.required]
        roles = {
            role: _fitting(pattern, optional if role == "{source}" else self.options)
            for role, pattern in ROLES.items()
        }
        roles["{end_step}"] = self.stop or self.length
        checkpoint = _fitting(CHECKPOINT, optional)
        if roles["{source}"] is None:
            roles["{source}"] = checkpoint
            others = [option for option in self.options if option != checkpoint]
            roles["{save_to}"] = _fitting(ROLES["{save_to}"], others)
        elif roles["{save_to}"] is None and checkpoint and checkpoint.file:
            roles["{save_to}"] = checkpoint
        return roles

    @cached_property
    def ranges(self) -> dict[Option, str]:
        """The hyperparameters, each with its range."""
        rest = [option for option in self.options if option not in self.roles.values()]
        ranges = {option: _range(option.name, option.default) for option in rest if _is_number(option.default)}
        return {option: text for option, text in ranges.items() if text is not None}

    @cached_property
    def total(self) -> int:
        """The steps of a member."""
        lengths = (option.default for option in (self.length, self.stop) if option and _is_number(option.default))
        return next((int(length) for length in lengths if length >= 1), 1000)

    def text(self) -> str:
        """Return the study file."""
        usual = "eval_loss" if "TrainingArguments" in self.source else "loss"
        metrics, step = _metrics(self.tree) or {usual: True}, _step(self.tree, self.length or self.stop)
        names = {name: re.sub(r"[ /]", "_", name) for name in metrics}
        goals = [f"{'minimize' if low else 'maximize'} {names[name]}" for name, low in metrics.items()]
        patterns = [f"{names[name]} = '(?i)(?<![\\w/]){name}\\W+?{NUMBER}'  # TODO" for name in metrics]
        patterns += [f"step = '(?i)\\b{step}\\W+?(\\d+)(?:\\.0+)?(?![,.]?\\d)'"] if step else []
        other = "maximize accuracy" if goals[0].startswith("minimize") else "minimize loss"
        other_options = self._others()
        return TEMPLATE.format(
            objective=goals[0],
            or_objective=", ".join(map(json.dumps, goals[1:] or [other])),
            metrics="\n".join(patterns),
            script=self.called,
            file=self.output.name,
            name=json.dumps(re.sub(r"[^\w.-]", "-", self.script.stem)[:100].lstrip(".-") or "study"),
            command="\n".join(f"    {line}" for line in self._command()),
            space="\n".join(f"{self._key(option)} = {text}" for option, text in self.ranges.items()) or EXAMPLE,
            others=f"# Other options: {', '.join(other_options)}\n" if other_options else "",
            steps=max(1, self.total // 20),
            total=self.total,
        )

    def _key(self, option: Option) -> str:
        # Hydra's overrides have the names of the groups, which dots make in TOML.
        return option.flag.strip("+=") if self.hydra else option.name

    def _command(self) -> Iterator[str]:
        yield f"{', '.join(map(json.dumps, _start(self.script, self.output.absolute().parent, self.tree)))},"
        if self.interface.subcommand is not None:
            which = ", ".join(self.interface.subcommands)
            yield f"{json.dumps(self.interface.subcommand)},  # TODO: which of the subcommands? {which}"
        if self.hydra:
            yield '"{hydra}",  # ++name=value for each hyperparameter, ++opt.lr=value for lr in [space.opt]'
        elif self.ranges:
            yield from (f"{option.arguments(f'{{{option.name}}}')}," for option in self.ranges)
        else:
            yield f"{self._new('lr').arguments('{lr}')},  # TODO: how the script takes a hyperparameter"
        yield from self._required()
        for role, option in self.roles.items():
            yield from self._absent(role) if option is None else self._taken(role, option)
        yield from self._length()

    def _required(self) -> Iterator[str]:
        for option in self.options:
            # Not every default can be hashed.
            if option.required and option not in [*self.ranges] and (self.ranges or option.flag != "--lr"):
                value = next((role for role, taker in self.roles.items() if taker == option), "TODO")
                name = option.flag or option.name
                comment = f"  # TODO: {self.called} requires {name}" if value == "TODO" else ""
                yield f"{option.arguments(value)},{comment}"

    def _absent(self, role: str) -> Iterator[str]:
        if role in ABSENT:
            name, does = ABSENT[role]
            text = _argument(role, self._new(name))
            yield f"# TODO: no option of {self.called} was found that {does}. With one, add: {text}"

    def _new(self, name: str) -> Option:
        """Return an option that the script does not have, written as its other options are."""
        if self.hydra:
            return Option(name, f"++{name}=", None)
        keys = re.search(r"OmegaConf\.from_(cli|dotlist)", self.source)
        return Option(name, f"{name}=" if keys else f"--{name.replace('_', '-')}", None)

    def _taken(self, role: str, option: Option) -> Iterator[str]:
        saved = self.roles["{save_to}"]
        pattern = "*" + (Path(saved.file if saved else "").suffix or ".pt")
        if "TrainingArguments" in self.source:
            pattern = "checkpoint-*"
        comment = f"  # TODO: a directory; {{source:{pattern}}} is the newest such file in it"
        if not option.required:
            yield _argument(role, option) + (comment if role == "{source}" else "")

    def _length(self) -> Iterator[str]:
        if self.length is None:
            return
        length = self.length.arguments(str(self.total))
        if self.stop:
            yield f"{length},  # as long as the study, for schedules; the same as total_steps"
            return
        kind = re.search("step|iter|epoch|update", self.length.name)
        way = self._new(f"stop_{kind[0] if kind else 'at'}").arguments("{end_step}")
        yield (
            f"# TODO: {{end_step}} is where a trial ends. A schedule as long as "
            f"{self.length.flag or self.length.name} would end in every trial.\n    # If there is one, let "
            f"{self.called} stop earlier, with: {way}, {length}, the total_steps"
        )

    def _others(self) -> list[str]:
        """Return the options that nothing is given to, with the numbers that they are by default."""
        used = [self.length, *self.roles.values(), *self.ranges]
        rest = [option for option in self.options if option.flag and option not in used]
        return [
            f"{option.flag} {option.default}" if _is_number(option.default) else option.flag for option in rest
        ]


def _argument(role: str, option: Option) -> str:
    """Return the line that gives a placeholder to an option; an argument alone is left out without a source."""
    argument = option.arguments(role)
    return f"[{argument}]," if role == "{source}" else f"{argument},"


EXAMPLE = "lr = { low = 1e-5, high = 1e-1, log = true }  # TODO: an example; what does the script take?"
TEMPLATE = """\
# A study of {script}, drafted from its source by `phyla init`. Decide what is marked TODO, then:
#   phyla check {file}    # does the script load, save and report as it should?
#   phyla run {file}
# Paths are relative to this file, and the command runs in its directory.

name = {name}
command = [
{command}
]
objective = "{objective}"  # TODO: or {or_objective}; measured on the weights that are saved

[metrics]  # what the script prints: regular expressions whose group is the number
{metrics}
# Or it writes JSON lines such as {{"step": 10, "loss": 0.3}} to {{metrics}}, or TensorBoard files: [tensorboard]

[space]  # what can change in the middle of training, which the shape of the weights cannot
{space}
{others}
[pbt]
population_size = 8
steps_per_trial = {steps}  # TODO: steps between two decisions
total_steps = {total}  # TODO: steps of each member
"""


def _start(script: Path, folder: Path, tree: ast.Module) -> list[str]:
    """Return the command of a script in a folder: of a file, or of a module if it has relative imports."""
    top = script.absolute().parent
    while (top / "__init__.py").exists():
        top = top.parent
    inside = any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
    if inside and top == folder:
        return ["python", "-m", ".".join(script.absolute().relative_to(top).with_suffix("").parts)]
    relative = Path(os.path.relpath(script.absolute(), folder)).as_posix()
    if script.suffix not in INTERPRETERS:
        return [f"./{relative}"]
    with script.open("rb") as file:
        first = file.readline().decode(errors="replace")
    named = first[2:].split() if first.startswith("#!") and script.suffix != ".py" else []
    program = [] if named and Path(named[0]).name == "env" else [Path(path).name for path in named[:1]]
    words = program + named[1:]
    return [*(words or [INTERPRETERS[script.suffix]]), relative]


def _metrics(tree: ast.Module) -> dict[str, bool]:
    """Return the metrics that a script prints, and whether to minimize each; first those of validation."""
    metrics = {match[1].lower(): match[2] is not None for match in PRINTED.finditer(_printed(tree))}
    order = sorted(metrics, key=lambda name: (name.startswith("train"), not re.match("val|eval|test|dev", name)))
    return {name: metrics[name] for name in order}


def _step(tree: ast.Module, end: Option | None) -> str | None:
    """Return what a script prints before its step, if that is of the kind that its option counts."""
    kind = re.search("step|iter|epoch|update", end.name if end else "")
    label = re.search(rf"\b({kind[0]}\w*)\W{{0,4}}?\0", _printed(tree), re.IGNORECASE) if kind else None
    return label and label[1].lower()


def _printed(tree: ast.Module) -> str:
    """Return what a script prints or logs, one line for each call, with a NUL for each value."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return "\n".join(_line(call) for call in calls if called(call) in ("print", "echo", "info", "warning", "log"))


def _line(call: ast.Call) -> str:
    match call.args:
        case [ast.Constant(value=str(text)), _, *_] if called(call) in ("info", "warning"):
            # A logger fills in what follows: Python's own as % does, Loguru as format does.
            return PERCENT.sub("\0", text) if PERCENT.search(text) else BRACES.sub("\0", text)
    return " ".join(map(_template, call.args))


def _template(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_template, parts))
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return PERCENT.sub("\0", text)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return BRACES.sub("\0", text)
    return "\0"


def _fitting(pattern: str, options: Iterable[Option]) -> Option | None:
    fitting = (option for option in options if re.fullmatch(pattern, option.name))
    return next((option for option in fitting if not isinstance(option.default, bool)), None)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _range(name: str, default: float) -> str | None:
    """Return the range of a hyperparameter whose name is known, around its default."""
    name, after = name.lower(), f"  # default {default!r}"

    def named(pattern: str) -> bool:
        return re.fullmatch(pattern, name) is not None

    if named(FIXED):
        return None
    if named(r"(.*_)?batch_size") and default >= 2:
        near = [int(default) // 2, int(default), int(default) * 2]
        return f"{{ choices = {near}, ordered = true }}{after}"
    if named(
        r"(.*_)?(lr|learning_rate)(_.*)?|eta0|alpha|weight_decay|wd|(ent|vf|kl|entropy|value)_(coef|coeff|cost|weight|bonus)"
    ):
        if default == 0:
            return f"{{ low = 0.0, high = 0.01 }}{after}"
        return f"{{ low = {default / 10:.1e}, high = {default * 10:.1e}, log = true }}{after}"
    if named(r"(.*_)?(dropout|drop_rate|label_smoothing)") and 0 <= default < 1:
        return f"{{ low = 0.0, high = {(1 + default) / 2:.6g} }}{after}"
    distant = 0.8 <= default < 1 and named(r"beta|(.*_)?(decay|lambda|lam)(_rate)?")
    if distant or (
        named(r"gamma|discount(_factor)?|gae_lambda|momentum|beta_?[12]|(.*_)?ema") and 0 < default < 1
    ):
        # Far enough from 1 by five times more, or less.
        low, high = max(0.0, 1 - 5 * (1 - default)), 1 - (1 - default) / 5
        scale = ', log = "1-x"' if default >= 0.8 else ""
        return f"{{ low = {low:.6g}, high = {high:.6g}{scale} }}{after}"
    if named(r"(.*_)?clip(_.*)?|max_grad_norm") and default > 0:
        return f"{{ low = {default / 3:.1e}, high = {default * 3:.1e}, log = true }}{after}"
    return None
