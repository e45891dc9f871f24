"""Eval tasks and suites, as a user declares them, and what a stored suite says without its functions."""

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final, overload

from phyla.errors import ConfigurationError
from phyla.evaluation.command_line import split_command
from phyla.evaluation.policy import Policy
from phyla.evaluation.preparation import Preparation, name_of, preparation_of
from phyla.records import UNLESS_NONE, Goal, Json, JsonObject, Maximize, Minimize
from phyla.validation import check, check_function, check_name, look_up, suggestion

RESOURCES = ("gpus", "label")

FIELDS = ("checkpoint", "original", "step", "name", "shard", "shards", "seed", "config", "results")
"""Fields that the arguments of a command may have in braces."""


@final
@dataclass(frozen=True, slots=True)
class EvalTask:
    """One evaluation: a function, or a command, and its configuration.

    It can be called like its function.

    Args:
        name: unique in its suite; letters, digits, `_`, `-` and `.`.
        evaluate: `evaluate(evaluation)`; or None when `command` is given.
        command: a command in any language, as a list of arguments with fields such as `{checkpoint}`, or one
            string that is split into them once, as a shell would. No shell runs it: a field is always one argument
            or part of one, whatever is in it. The guide to evaluation lists the fields.
        config: what the function reads as `evaluation.config`; JSON.
        gin: gin bindings, applied after those of `gin_files`.
        tags: such as `in` and `out` of distribution; aggregates are also made per tag.
        shards: into how many parts it may be split over workers.
        version: part of what identifies its results: change it when the function computes something else.
        seed: root of `evaluation.seed`; the same for every checkpoint, so that comparisons are paired.
        weight: in weighted aggregates.
        samples: how many samples all shards count together; checked when given.
        timeout_s: seconds one attempt may take; None for no limit.
        max_attempts: attempts that may fail before it is given up.
        resources: `{"gpus": 2}` runs it only in a worker that has two GPUs; a supervisor makes room for it.
            `{"label": "a100"}` runs it only in a worker that was started with `--labels a100`.
        cwd: where the command runs; by default where phyla was started. In a TOML file it is relative to the
            file, and by default the directory of the file.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    name: str
    evaluate: Callable[[Any], object] | None = None
    command: Sequence[str] | str | None = None
    config: JsonObject = field(default_factory=dict)
    gin: Sequence[str] = ()
    tags: Sequence[str] = ()
    shards: int = 1
    version: str = "1"
    seed: int = 0
    weight: float = 1.0
    samples: int | None = None
    timeout_s: float | None = None
    max_attempts: int = 3
    resources: Mapping[str, int | str] = field(default_factory=dict)
    cwd: str | Path | None = None
    given: JsonObject = field(default_factory=dict, init=False, repr=False)
    """What it is given by its suite, as part of its identity: preparation, `load` and files of bindings."""

    def __post_init__(self) -> None:
        check_name(f"EvalTask name {self.name!r}", self.name, ", as in 'clean'")
        if isinstance(self.evaluate, EvalTask):
            # A decorated function is an eval task under its own name.
            object.__setattr__(self, "evaluate", self.evaluate.evaluate)
        if (self.evaluate is None) == (self.command is None):
            raise ConfigurationError(f"EvalTask({self.name!r}): give either evaluate= or command=")
        if self.evaluate is not None:
            check_function(f"EvalTask({self.name!r}): evaluate", self.evaluate, "an evaluation")
        if self.command is not None:
            example = ("evaluate", "{checkpoint}", "{results}")
            arguments = split_command(f"EvalTask({self.name!r}, ", self.command, FIELDS, example)
            object.__setattr__(self, "command", arguments)
        if self.cwd is not None:
            if self.command is None:
                raise ConfigurationError(f"EvalTask({self.name!r}, cwd={self.cwd!r}): only a command has cwd=")
            object.__setattr__(self, "cwd", str(Path(self.cwd).absolute()))
        check(self, shards=1, max_attempts=1, samples=0, timeout_s="(0, inf)", weight="[0, inf)")
        for name in ("gin", "tags"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        _check_resources(self.resources, f"EvalTask({self.name!r}, resources={self.resources!r})")
        try:
            json.dumps(self.config, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"EvalTask({self.name!r}, config=...): must be JSON: {error}") from error

    def __call__(self, evaluation: Any) -> object:
        """Call the function."""
        if self.evaluate is None:
            raise ConfigurationError(f"eval task {self.name!r} is a command and cannot be called")
        return self.evaluate(evaluation)

    def with_given(self, given: JsonObject) -> "EvalTask":
        """Return it with what its suite gives it to evaluate."""
        if given == self.given:
            return self
        task = copy.copy(self)
        object.__setattr__(task, "given", given)
        return task

    @property
    def gpus(self) -> int:
        """How many GPUs it asks for."""
        return int(self.resources.get("gpus", 0))

    @property
    def label(self) -> str:
        """The label that it asks for; empty for none."""
        return str(self.resources.get("label", ""))

    @property
    def identity(self) -> str:
        """How it evaluates: name, function or command, version, configuration, bindings and seed.

        Of its suite the preparation, the name of `load` and those of files of bindings are part of it. Results are
        filed under this; tags, weight, shards, limits and the source of functions are no part of it (the ledger's
        key has the layout of shards beside it).
        """
        how = {
            "task": self.name,
            "function": name_of(self.evaluate),
            "command": self.command,
            "version": self.version,
            "config": self.config,
            "gin": self.gin,
            "seed": self.seed,
            **self.given,
        }
        return hashlib.sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()[:32]


def _check_resources(resources: object, where: str) -> None:
    if not isinstance(resources, Mapping):
        raise ConfigurationError(f'{where}: say what it needs, as in {{"gpus": 2, "label": "a100"}}')
    for name in resources:
        if name not in RESOURCES:
            raise ConfigurationError(f"{where}: there is no resource {name!r}; {suggestion(name, RESOURCES)}")
    gpus = resources.get("gpus", 0)
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 0:
        raise ConfigurationError(f'{where}: say how many GPUs it needs, as in {{"gpus": 2}}')
    if "label" in resources:
        check_label(resources["label"], where)


def check_label(label: object, where: str) -> None:
    """Reject an invalid label of a worker; `where` names its place."""
    check_name(f"{where}: {label!r} is not a label", label, ", as in 'a100'")


@overload
def eval_task(function: Callable[[Any], object], /) -> EvalTask: ...


@overload
def eval_task(**settings: Any) -> Callable[[Callable[[Any], object]], EvalTask]: ...


def eval_task(
    function: Callable[[Any], object] | None = None, /, **settings: Any
) -> EvalTask | Callable[[Callable[[Any], object]], EvalTask]:
    """Make an eval task of a function, as a decorator, with or without settings of `EvalTask`.

    The name is the function's unless `name=` says otherwise.
    """

    def decorate(evaluate: Callable[[Any], object]) -> EvalTask:
        try:
            return EvalTask(**{"name": evaluate.__name__, **settings}, evaluate=evaluate)
        except TypeError as error:
            raise ConfigurationError(f"eval_task(...) on {evaluate.__name__}: {error}") from error

    return decorate if function is None else decorate(function)


@final
@dataclass(frozen=True, slots=True)
class Suite:
    """A named set of eval tasks that is run on checkpoints.

    Args:
        name: unique in its run; letters, digits, `_`, `-` and `.`.
        tasks: the eval tasks.
        objective: the aggregate that says how good a checkpoint is, as `Maximize("accuracy_mean")`: for the
            best checkpoint and for regressions; None for none.
        watch: further aggregates, as `[Minimize("nll_mean")]`: phyla reports regressions of the metrics behind
            the objective and these, eval task by eval task.
        aggregates: functions from the results of all eval tasks to named numbers; none means the mean of each
            metric, over all eval tasks and per tag.
        policy: which checkpoints, and how soon.
        prepare: `prepare(checkpoint, into)`, or a command with `{checkpoint}` and `{into}`: makes of a checkpoint
            what `load` and all eval tasks read instead of it, in the empty directory `into`. It runs once for each
            checkpoint. A `Preparation` has a version and limits.
        load: `load(checkpoint)`, called once per worker and checkpoint; what it returns is
            `evaluation.loaded` in all eval tasks. Its name is part of what identifies their results.
        gin_files: files of gin bindings, relative to the run's directory, applied before all others.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    name: str
    tasks: Sequence[EvalTask] = ()
    objective: Goal | None = None
    watch: Sequence[Goal] = ()
    aggregates: Sequence[Callable[..., Mapping[str, Any]]] = ()
    policy: Policy = field(default_factory=Policy)
    load: Callable[[Any], object] | None = None
    gin_files: Sequence[str] = ()
    prepare: Preparation | Callable[[Any, Path], object] | Sequence[str] | str | None = field(
        default=None, metadata=UNLESS_NONE
    )

    def __post_init__(self) -> None:
        check_name(f"Suite name {self.name!r}", self.name, ", as in 'heldout'")
        watch: object = self.watch
        if isinstance(watch, Maximize | Minimize):
            raise ConfigurationError(f"Suite({self.name!r}, watch={watch!r}): give a list, such as [{watch!r}]")
        for name in ("tasks", "watch", "aggregates", "gin_files"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for task in self.tasks:
            if not isinstance(task, EvalTask):
                raise ConfigurationError(f"Suite({self.name!r}, tasks=...): {task!r} is not a phyla.EvalTask")
        if self.load is not None:
            check_function(f"Suite({self.name!r}): load", self.load, "a checkpoint")
        object.__setattr__(self, "prepare", preparation_of(self.prepare, f"Suite({self.name!r}"))
        given = self._given()
        object.__setattr__(self, "tasks", tuple(task.with_given(given) for task in self.tasks))
        if self.objective is not None and not isinstance(self.objective, Maximize | Minimize):
            raise ConfigurationError(
                f"Suite({self.name!r}, objective={self.objective!r}): its best checkpoint is chosen by one "
                'aggregate, as in Maximize("accuracy_mean"); several make the fitness of a study, with '
                "FromSuite(suite) and the study's objective"
            )
        for goal in self.watch:
            if not isinstance(goal, Maximize | Minimize):
                raise ConfigurationError(
                    f"Suite({self.name!r}, watch=...): {goal!r} does not say which direction is better; write "
                    f'Minimize("nll_mean") or Maximize("accuracy_mean")'
                )
        if twice := _repeated(goal.metric for goal in self.goals):
            raise ConfigurationError(
                f"Suite({self.name!r}, watch=...): {', '.join(twice)} is there twice; watch holds the aggregates "
                "beside the objective, each once"
            )
        if any(goal.stop_at is not None for goal in self.goals):
            raise ConfigurationError(
                f"Suite({self.name!r}, objective={self.objective!r}): stop_at is for the objective of a study"
            )
        if not self.tasks:
            raise ConfigurationError(f"Suite({self.name!r}): needs at least one eval task")
        if twice := _repeated(task.name for task in self.tasks):
            raise ConfigurationError(f"Suite({self.name!r}): several eval tasks are called {', '.join(twice)}")

    def _given(self) -> JsonObject:
        """Return what eval tasks are given, without what there is none of."""
        given: dict[str, Json] = {}
        if self.preparation is not None:
            given["preparation"] = self.preparation.identity
        if self.load is not None:
            given["load"] = name_of(self.load)
        if self.gin_files:
            given["gin_files"] = list(self.gin_files)
        return given

    @property
    def preparation(self) -> Preparation | None:
        """How checkpoints are prepared for it; None if its eval tasks read them as they are."""
        return self.prepare if isinstance(self.prepare, Preparation) else None

    @property
    def goals(self) -> tuple[Goal, ...]:
        """The objective, and what is watched beside it."""
        return (*self.watch,) if self.objective is None else (self.objective, *self.watch)

    def task(self, name: str) -> EvalTask:
        """Return an eval task by name."""
        return look_up("eval task", name, {task.name: task for task in self.tasks})


def _find_metric(aggregate: str, tasks: "Iterable[EvalTask | TaskOutline]") -> str:
    for tag in {tag for task in tasks for tag in task.tags}:
        aggregate = aggregate.removeprefix(f"{tag}/")
    for suffix in ("_mean", "_weighted", "_min", "_max"):
        aggregate = aggregate.removesuffix(suffix)
    return aggregate


def check_aggregate(suite: Suite, name: str, where: str) -> None:
    """Reject an aggregate that a suite never gives, as far as that is known; `where` names the setting."""
    names = [getattr(aggregate, "aggregate_names", None) for aggregate in suite.aggregates]
    known = [known_name for group in names for known_name in group or ()]
    refused = f"{where} names {name!r}, which suite {suite.name!r} never gives"
    if not names and not name.endswith("_mean"):
        # The results of one eval task are shown under its name.
        task = next((task.name for task in suite.tasks if name.startswith(f"{task.name}/")), None)
        tagged = any(task in eval_task.tags for eval_task in suite.tasks)
        first = "" if task is None or tagged else f"Give eval task {task!r} a tag of that name. "
        raise ConfigurationError(
            f"{refused}: without aggregates= it gives the mean of each metric over its eval tasks, as "
            f"'METRIC_mean', and over those with a tag, as 'TAG/METRIC_mean'. {first}Did you mean "
            f"{f'{name}_mean'!r}?"
        )
    if names and None not in names and name not in known:
        raise ConfigurationError(f"{refused}; {suggestion(name, known)}")


def suite_named(suites: Sequence[Suite], name: str) -> Suite:
    """Return a suite by name."""
    return look_up("suite", name, {suite.name: suite for suite in suites})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutline:
    """An eval task without its function."""

    name: str
    tags: tuple[str, ...] = ()
    samples: int | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOutline:
    """A suite without its functions: enough to read its results anywhere.

    Attributes:
        objective: the aggregate that says how good a checkpoint is; None without one.
        maximize: whether a higher objective is better.
        watch: the aggregates that are watched beside it, and whether higher is better.
    """

    name: str
    tasks: tuple[TaskOutline, ...] = ()
    objective: str | None = None
    maximize: bool = True
    watch: Mapping[str, bool] = field(default_factory=dict)

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Read a suite as it is stored with its study."""
        tasks: Any = raw.get("tasks", ())
        objective: Any = raw.get("objective")
        watch: Any = raw.get("watch", ())
        return cls(
            name=str(raw["name"]),
            tasks=tuple(
                TaskOutline(name=str(task["name"]), tags=tuple(task.get("tags", ())), samples=task.get("samples"))
                for task in tasks
            ),
            objective=None if objective is None else str(objective["metric"]),
            maximize=objective is None or _maximizes(objective),
            watch={str(goal["metric"]): _maximizes(goal) for goal in watch},
        )

    @property
    def metric(self) -> str | None:
        """The metric of single eval tasks that the objective is made of; None without an objective."""
        return None if self.objective is None else _find_metric(self.objective, self.tasks)

    @property
    def directions(self) -> dict[str, bool]:
        """The metrics of single eval tasks that are watched for regressions, and whether higher is better."""
        goals = {**self.watch, **({} if self.objective is None else {self.objective: self.maximize})}
        return {_find_metric(name, self.tasks): maximize for name, maximize in goals.items()}

    def task(self, name: str) -> TaskOutline:
        """Return an eval task by name; one that the suite no longer has is known by its name only."""
        return next((task for task in self.tasks if task.name == name), TaskOutline(name=name))


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _maximizes(goal: Mapping[str, Any]) -> bool:
    return str(goal["plugin"]).endswith(("maximize", "Maximize"))


def outlines(config: Mapping[str, Any]) -> tuple[SuiteOutline, ...]:
    """Return the suites of a study from its configuration; imports nothing."""
    return tuple(SuiteOutline.from_json(raw) for raw in config.get("suites") or ())
