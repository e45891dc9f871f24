"""The options of a training script, from its source alone: how each is written, and its default."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
LIBRARIES = ("tyro", "simple_parsing", "draccus", "pyrallis", "HfArgumentParser", "ConfigStore")
"""Libraries that make options of the fields of dataclasses."""
NESTING = ("tyro", "draccus", "pyrallis", "ConfigStore")
"""Those in which an option of a nested dataclass has the names of the fields before its own."""
TRAINER = {"output_dir": None, "learning_rate": 5e-5, "weight_decay": 0.0, "max_grad_norm": 1.0, "max_steps": -1}
TRAINER |= {"seed": 42, "resume_from_checkpoint": None}
"""Options of the TrainingArguments of Hugging Face, which no script declares itself, and their defaults."""
RUNNERS = re.compile(r"((fire\.)?Fire|tyro\.cli|typer\.run|(jsonargparse\.)?(CLI|auto_cli))")
"""Calls that make options of the parameters of a function, or subcommands of several functions."""


class Option(NamedTuple):
    """An option of a script: its name, how it is written, and a default that is a literal.

    It is written as `--lr`, as `--lr=`, or, where it is known by its place, as the empty text.
    """

    name: str
    flag: str
    default: Any
    required: bool = False

    @property
    def file(self) -> str:
        """Return the name of its default if that is a file, else an empty text."""
        default = Path(self.default if isinstance(self.default, str) else "")
        return default.name if default.suffix and not re.search("dir|folder", self.name) else ""

    def arguments(self, value: str) -> str:
        """Return the arguments that give it a value, in `{save_to}` under the default's name if that is a file."""
        if value == "{save_to}" and self.file:
            value += "/" + self.file.replace("{", "{{").replace("}", "}}")
        arguments = [self.flag, value] if self.flag and not self.flag.endswith("=") else [f"{self.flag}{value}"]
        return ", ".join(map(json.dumps, arguments))


@dataclass(frozen=True)
class Interface:
    """The subcommands of a script, the one that trains, and the options that this takes."""

    subcommands: list[str]
    subcommand: str | None
    options: list[Option]


def read_interface(tree: ast.Module, source: str) -> Interface:
    """Return the subcommands and options that a script declares."""
    parsers = _parsers(tree)
    functions = _commands(tree, source)
    names = [*dict.fromkeys([*parsers.values(), *functions])]
    chosen = next((name for name in names if "train" in name), names[0] if names else None)
    alone = "" in functions or ("typer" in source and ".callback" not in source)
    single = len(functions) == 1 and not parsers and alone
    unused = {variable for variable, _ in _variables(tree, parsers)} - {
        variable for variable, name in _variables(tree, parsers) if name == chosen
    }
    others = [function for name, function in functions.items() if name != chosen]
    others += [
        function for function in _functions(tree) if any("group" in word for word, _ in _decorators(function))
    ]
    hidden = {id(node) for function in others for node in ast.walk(function)}
    found = [*_options(tree, source, unused, hidden)]
    if "HfArgumentParser" in source and "TrainingArguments" in source:
        found += [Option(name, f"--{name}", default) for name, default in TRAINER.items()]
    if chosen in functions:
        found += _parameters(functions[chosen], source)
    names = [] if single else names
    return Interface(names, chosen if names else None, [*{option.name: option for option in found}.values()])


def _parsers(tree: ast.Module) -> dict[ast.expr, str]:
    """Return the calls of `add_parser`, and what each names."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    return {call: str(literal(call.args[0])) for call in calls if getattr(call.func, "attr", "") == "add_parser"}


def _variables(tree: ast.Module, parsers: Mapping[ast.expr, str]) -> set[tuple[str, str]]:
    """Return the variables that hold parsers of subcommands."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and node.value in parsers]
    targets = [(target, parsers[node.value]) for node in assigned for target in node.targets]
    return {(target.id, name) for target, name in targets if isinstance(target, ast.Name)}


def _functions(tree: ast.Module) -> list[Function]:
    return [node for node in tree.body if isinstance(node, Function)]


def _dotted(node: ast.expr) -> str:
    """Return a name, or an attribute of a name, as it is written."""
    owner = getattr(node, "value", None)
    return (
        f"{owner.id}.{node.attr}"
        if isinstance(owner, ast.Name) and isinstance(node, ast.Attribute)
        else getattr(node, "id", "")
    )


def _decorators(function: Function) -> Iterator[tuple[str, ast.expr]]:
    for node in function.decorator_list:
        yield _dotted(node.func if isinstance(node, ast.Call) else node), node


def _commands(tree: ast.Module, source: str) -> dict[str, Function]:
    """Return the functions that are subcommands, by name; that of a script without subcommands has no name."""
    commands: dict[str, Function] = {}
    defined = {function.name: function for function in _functions(tree)}
    grouped = any(word in source for word in ("add_command", "click.group"))
    for function in defined.values():
        for word, node in _decorators(function):
            owner, _, kind = word.rpartition(".")
            if kind == "command" and owner and (owner != "click" or grouped):
                call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
                names = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "name")]
                default = re.sub("_(command|cmd)$", "", function.name).replace("_", "-")
                commands[next((str(literal(name)) for name in names), default)] = function
    for run in ast.walk(tree):
        if isinstance(run, ast.Call) and run.args and RUNNERS.fullmatch(_dotted(run.func)):
            pairs = [(name, getattr(value, "id", "")) for name, value in _run(run.args[0])]
            commands |= {name: defined[value] for name, value in pairs if value in defined}
    return commands


def _run(given: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the functions that fire and the like run, by subcommand; a single one has none."""
    match given:
        case ast.Dict(keys=keys, values=values):
            yield from ((str(literal(key)), value) for key, value in zip(keys, values, strict=True))
        case ast.List(elts=values) | ast.Tuple(elts=values):
            yield from ((getattr(value, "id", ""), value) for value in values)
        case _:
            yield "", given


def _parameters(function: Function, source: str) -> Iterator[Option]:
    """Yield the options that typer, fire, tyro or jsonargparse make of the parameters of a function."""
    if "click" in source and "typer" not in source:
        return  # it takes them from decorators
    typer, by_place = "typer" in source, "typer" in source or "jsonargparse" in source
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [*zip_longest(plain[::-1], given.defaults[::-1])][::-1]
    for parameter, default in [*defaults, *zip(given.kwonlyargs, given.kw_defaults, strict=True)]:
        nodes = [*ast.walk(parameter.annotation or ast.Pass()), *ast.walk(default or ast.Pass())]
        declared = next((node for node in nodes if _is_declaration(node)), None)
        inside = isinstance(declared, ast.Call) and declared is default
        value = next(iter(declared.args), None) if inside and isinstance(declared, ast.Call) else default
        needed = value is None or literal(value) is ...
        texts = [text for text in map(literal, getattr(declared, "args", ())) if isinstance(text, str)]
        flags = [text.partition("/")[0] for text in texts if text.startswith("-")]
        flag = max(flags, key=len, default="--" + parameter.arg.replace("_", "-" if typer else "_"))
        place = declared is None or (isinstance(declared, ast.Call) and called(declared) == "Argument")
        if needed or not (typer and declared is not None and place):
            yield Option(parameter.arg, "" if needed and by_place and place else flag, literal(value), needed)


def _is_declaration(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called(node) in ("Option", "Argument")


def called(call: ast.Call) -> str:
    """Return the name of what is called, without its module or object."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _options(tree: ast.Module, source: str, unused: set[str], hidden: set[int]) -> Iterator[Option]:
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    required = _required(tree)
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Call):
            if getattr(getattr(node.func, "value", None), "id", None) not in unused:
                yield from _declared(node, required)
        elif isinstance(node, ast.ClassDef) and any(library in source for library in LIBRARIES):
            before = _nesting(node, tree) if any(library in source for library in NESTING) else ""
            for name, field in _fields(node):
                if ast.unparse(field.annotation).strip("'") not in classes:
                    flag = f"++{before}{name}=" if "hydra" in source else f"--{before}{name}"
                    yield Option(name, flag, literal(field.value))


def _required(tree: ast.Module) -> set[str]:
    """Return the flags of absl that are marked as required."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    marked = [literal(call.args[0]) for call in calls if called(call).startswith("mark_flag")]
    return {name for names in marked for name in ([names] if isinstance(names, str) else names or ())}


def _fields(node: ast.AST) -> Iterator[tuple[str, ast.AnnAssign]]:
    for field in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            yield field.target.id, field


def _nesting(inner: ast.ClassDef, tree: ast.Module) -> str:
    """Return what stands before the options of a dataclass that is the type of a field of a later one: `opt.`."""
    for outer in tree.body:
        for name, field in _fields(outer) if outer.lineno > inner.lineno else ():
            if isinstance(outer, ast.ClassDef) and ast.unparse(field.annotation).strip("'") == inner.name:
                return f"{_nesting(outer, tree)}{name}."
    return ""


def _declared(call: ast.Call, marked: set[str]) -> Iterator[Option]:
    """Yield the option that a call of argparse, click or absl declares."""
    function = called(call)
    texts = [word for word in map(literal, call.args) if isinstance(word, str)]
    keywords = {keyword.arg: literal(keyword.value) for keyword in call.keywords}
    if function in ("add_argument", "option", "argument") and texts:
        flag = max(texts, key=lambda text: (text.startswith("--"), len(text))).partition("/")[0]
        switch = keywords.get("is_flag") or str(keywords.get("action")).startswith("store_")
        if flag.startswith("-"):
            default, required = False if switch else _number(call, keywords), bool(keywords.get("required"))
            yield Option(flag.lstrip("-").replace("-", "_"), flag, default, required)
        elif function != "option" and re.fullmatch(r"[\w-]+", texts[0]):
            needed = "default" not in keywords and keywords.get("nargs", 1) not in ("?", "*", "...", -1, None)
            if keywords.get("required", needed):
                yield Option(texts[0].replace("-", "_"), "", None, required=True)
    elif function.startswith("DEFINE_") and texts:
        yield _flag(call, texts[0], marked)


def _flag(call: ast.Call, name: str, marked: set[str]) -> Option:
    """Return a flag of absl."""
    keywords = {keyword.arg: literal(keyword.value) for keyword in call.keywords}
    default = literal(call.args[1]) if len(call.args) > 1 else keywords.get("default")
    return Option(name, f"--{name}", default, bool(keywords.get("required")) or name in marked)


def _number(call: ast.Call, keywords: Mapping[str | None, Any]) -> Any:
    """Return a default, which argparse converts if it is a text."""
    kind = next((keyword.value for keyword in call.keywords if keyword.arg == "type"), None)
    default = keywords.get("default")
    if isinstance(default, str) and getattr(kind, "id", "") in ("float", "int", "eval"):
        with suppress(ValueError, SyntaxError):
            return ast.literal_eval(default)
    return default


def literal(node: ast.expr | None) -> Any:
    """Return the value of an expression; None if it is no literal."""
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None if node is None else ast.literal_eval(node)
    return None
