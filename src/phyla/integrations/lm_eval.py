"""Suites of tasks of lm-evaluation-harness: `suite(["arc_easy", "hellaswag"])`, or `phyla watch --lm-eval`.

Each task of the harness is an eval task. The harness computes the values and standard errors, and what it logs of
each document is saved.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, final

import numpy as np

from phyla.errors import ConfigurationError, EvaluationError
from phyla.evaluation import Estimate, EvalTask, Policy, Preparation, Suite, TaskResult
from phyla.evaluation.aggregates import aggregate
from phyla.integrations.harness_results import NO_FILTER, OWN, metric_name
from phyla.records import Goal, JsonObject, Maximize, Minimize
from phyla.worker import Evaluation, EvaluationCheckpoint
from phyla.worker.evaluating.samples import GROUP, ID

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

Groups: TypeAlias = Mapping[str, JsonObject]
"""By name: the tasks of a group of the harness, and the metrics that it aggregates."""


def suite(
    tasks: Sequence[str],
    *,
    name: str = "lm-eval",
    model: str = "hf",
    model_args: Mapping[str, Any] | None = None,
    batch_size: int | str = 1,
    device: str | None = None,
    limit: float | None = None,
    num_fewshot: int | None = None,
    include_path: str | Path | None = None,
    apply_chat_template: bool = False,
    shards: int = 1,
    cluster: str | None = None,
    timeout_s: float | None = None,
    objective: Goal | None = None,
    policy: Policy | None = None,
    prepare: Preparation | Callable[[Any, Path], object] | Sequence[str] | str | None = None,
) -> Suite:
    """Return a suite of tasks of lm-evaluation-harness. Checkpoints must be what the model class can load.

    A model of Hugging Face is loaded once per worker and checkpoint. Groups and tags, such as `mmlu`, become their
    tasks, and the values of groups are aggregates, such as `mmlu/acc`. Metrics have the harness's names: `acc`, or
    `exact_match,strict-match` with a filter.

    Args:
        tasks: names of tasks, groups or tags, as on the harness's command line; `*` stands for any characters.
        name: name of the suite.
        model: name of the harness's model class, which is called with `pretrained=` the checkpoint's path.
        model_args: its other arguments, such as `{"dtype": "bfloat16"}`.
        batch_size: a number, or `"auto"`.
        device: such as "cuda:0"; by default a GPU if there is one.
        limit: only this many documents of each task, or below 1 this share of them; None for all.
        num_fewshot: examples in the prompt; None leaves them as the task has them.
        include_path: a directory of further tasks; in a TOML file it is relative to the file.
        apply_chat_template: whether prompts are made by the chat template of the tokenizer.
        shards: into how many parts the documents of a task are split over workers. Tasks stay whole whose examples
            are drawn anew for each document, and those with a metric that is no mean over documents.
        cluster: a field of the documents. Those that agree in it, such as questions on one text, are not
            independent, and comparisons take that into account.
        timeout_s: seconds that one attempt at an eval task may take.
        objective: what the best checkpoint is chosen by. By default the mean of `acc`, where all tasks have it.
        policy: which checkpoints, and how soon.
        prepare: makes of a checkpoint what the model class can load, as for `Suite`.

    Raises:
        ConfigurationError: lm-eval is not installed, or has no such task.
    """
    directory = None if include_path is None else str(Path(include_path).absolute())
    manager, settings = _manager_of(tasks, directory), dict(model_args or {})
    how: JsonObject = {
        "model": model,
        "model_args": settings,
        "limit": limit,
        "num_fewshot": num_fewshot,
        "apply_chat_template": apply_chat_template,
        "cluster": cluster,
    }
    groups: dict[str, JsonObject] = {}
    names = [leaf for task in _match(manager, tasks) for leaf in _leaves(manager, task, groups)]
    described = {task: _Description.of(manager, task, num_fewshot) for task in dict.fromkeys(names)}
    best, watch = _goals(described.values(), objective)
    load = LoadModel(
        model=model,
        model_args=settings,
        batch_size=batch_size,
        device=device,
        files=_files(manager, list(described)),
        include_path=directory,
    )
    return Suite(
        name,
        [_eval_task(task, described[task], how, shards, timeout_s) for task in described],
        objective=best,
        watch=watch,
        aggregates=[GroupMeans(groups)] if groups else (),
        policy=policy or Policy(),
        prepare=prepare,
        load=load,
    )


def _eval_task(
    task: str, description: "_Description", how: JsonObject, shards: int, timeout_s: float | None
) -> EvalTask:
    return EvalTask(
        re.sub(r"[^\w.-]+", "-", task),
        evaluate,
        config={"task": task, "digest": description.digest, **how},
        version=description.version,
        shards=shards if description.splits else 1,
        timeout_s=timeout_s,
    )


class Loaded(NamedTuple):
    """A model of the harness, and where its tasks are."""

    model: Any
    files: Mapping[str, str]
    include_path: str | None


@final
@dataclass(frozen=True, kw_only=True)
class LoadModel:
    """Loads a checkpoint with a model class of the harness.

    Attributes:
        files: the file of each task, relative to the harness's own tasks unless it is elsewhere. With it, a worker
            need not read thousands of files to find a task.
        include_path: a directory of further tasks.
    """

    model: str = "hf"
    model_args: JsonObject = field(default_factory=dict)
    batch_size: int | str = 1
    device: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    include_path: str | None = None

    def __call__(self, checkpoint: EvaluationCheckpoint) -> Loaded:
        """Return the model."""
        from lm_eval.api.registry import get_model

        arguments = {"pretrained": str(checkpoint.path), **self.model_args}
        settings = {"batch_size": self.batch_size, "device": self.device or _device(self.model)}
        model = get_model(self.model).create_from_arg_obj(arguments, settings)
        return Loaded(model, self.files, self.include_path)


def _device(model: str) -> str | None:
    """Return the device of this machine, where the harness would insist on CUDA."""
    if not model.startswith("hf"):
        return None
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def evaluate(evaluation: Evaluation) -> None:
    """Evaluate a task of the harness, or one shard of it."""
    from lm_eval import simple_evaluate

    config, shard, loaded = evaluation.config, evaluation.shard, evaluation.loaded
    name = config["task"]
    file = loaded.files.get(name)
    manager = _task_manager(loaded.include_path, own=file is None)
    spec = name if file is None else str(_own_tasks() / file)
    limit, documents = config["limit"], None
    if shard.count > 1:
        task = manager.load([spec])["tasks"][name]
        documents = shard.range(_count(len(task.eval_docs), limit))
        limit = None
        if not documents:
            evaluation.save_samples([])
            return
    results = simple_evaluate(
        loaded.model,
        tasks=[spec],
        num_fewshot=config["num_fewshot"],
        limit=limit,
        samples=None if documents is None else {name: list(documents)},
        task_manager=manager,
        apply_chat_template=config["apply_chat_template"],
        log_samples=True,
    )
    if results is None:
        raise EvaluationError("the harness gave no results, as it does on all but the first of several ranks")
    documents_of = results.pop("samples")
    for task, rows in documents_of.items():
        prefix = "" if task == name else f"{task}/"
        _record(evaluation, prefix, results["results"][task], rows)
    for group, values in results.get("groups", {}).items():
        _record(evaluation, f"{group}/", values, ())
    evaluation.save_samples(_samples(documents_of, config))
    shared = ("configs", "versions", "n-shot", "higher_is_better", "n-samples", "lm_eval_version", "git_hash")
    kept = {name: results[name] for name in shared if name in results}
    evaluation.save(harness=json.dumps(kept, default=str, indent=1))


def _record(
    evaluation: Evaluation, prefix: str, values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Record what the harness says of a task, from single documents where the value is their mean."""
    for key, value in values.items():
        metric, comma, chosen = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        samples = [row[metric] for row in rows if row["filter"] == chosen and metric in row]
        name = prefix + metric_name(metric, chosen)
        if _is_mean(value, samples):
            evaluation.record({name: np.array(samples, dtype=float)})
            continue
        if evaluation.shard.count > 1:
            raise ConfigurationError(
                f"{name!r} of {evaluation.task!r} is no mean over documents, so that the task cannot be split: "
                "suite(..., shards=1)"
            )
        stderr = values.get(f"{metric}_stderr,{chosen}")
        n = len(samples) or int(values.get("sample_len", 1))
        if not (isinstance(stderr, int | float) and math.isfinite(stderr) and n > 1):
            stderr = None
        evaluation.record({name: float(value)}, n=n, stderr=stderr)


def _is_mean(value: float, samples: Sequence[Any]) -> bool:
    if not samples or not all(isinstance(sample, int | float | np.generic) for sample in samples):
        return False
    return math.isclose(float(np.mean(np.array(samples, dtype=float))), value, rel_tol=1e-9, abs_tol=1e-12)


def _samples(
    documents_of: Mapping[str, Sequence[Mapping[str, Any]]], config: Mapping[str, Any]
) -> Iterator[JsonObject]:
    """Yield what was logged of each document: numbers by metric, and the rows of the harness, one per filter."""
    for task, rows in documents_of.items():
        prefix = "" if task == config["task"] else f"{task}/"
        by_document: dict[Any, list[Mapping[str, Any]]] = {}
        for row in rows:
            by_document.setdefault(row["doc_id"], []).append(row)
        for key, logged in by_document.items():
            metrics: dict[str, Any] = {
                prefix + metric_name(metric, row["filter"]): row[metric]
                for row in logged
                for metric in row["metrics"]
                if isinstance(row[metric], int | float | np.generic)
            }
            cluster = config["cluster"]
            group = {} if cluster is None else {GROUP: str(logged[0]["doc"][cluster])}
            yield {ID: f"{prefix}{key}", **group, **metrics, OWN: [dict(row) for row in logged]}


def _count(documents: int, limit: float | None) -> int:
    if limit is None:
        return documents
    return min(documents, math.ceil(documents * limit) if limit < 1 else int(limit))


@final
@dataclass(frozen=True, slots=True)
class GroupMeans:
    """The usual means over eval tasks, and the values of the harness's groups, as `<group>/<metric>`."""

    groups: Groups

    def __call__(self, results: Sequence[TaskResult], /) -> dict[str, Estimate]:
        """Return the numbers; a group lacks a metric that one of its tasks lacks."""
        numbers: dict[str, Estimate] = aggregate((), results)
        by_task: dict[Any, TaskResult] = {result.config["task"]: result for result in results}
        for group, described in self.groups.items():
            tasks: Any = described["tasks"]
            members = [by_task[task] for task in tasks if task in by_task]
            metrics: Any = described["metrics"]
            for metric in metrics:
                for name in _names_of(metric, members):
                    having = [member for member in members if name in member.metrics]
                    numbers[f"{group}/{name}"] = _group_estimate(name, having, metric["weight_by_size"])
        return numbers


def _names_of(metric: Mapping[str, Any], members: Sequence[TaskResult]) -> list[str]:
    filters = metric["filters"]
    if filters is not None:
        names = [metric_name(metric["metric"], chosen) for chosen in filters]
    else:
        names = list(dict.fromkeys(name for member in members for name in member.metrics))
        names = [name for name in names if name.partition(",")[0] == metric["metric"]]
    return [name for name in names if any(name in member.metrics for member in members)]


def _group_estimate(name: str, members: Sequence[TaskResult], by_size: bool) -> Estimate:
    """Return the value of a group and its standard error, by the harness's own formulas."""
    from lm_eval.api.metrics import aggregate_subtask_metrics, pooled_sample_stderr, unweighted_mean_stderr

    estimates = [member.estimate(name) for member in members]
    sizes = [member.metrics[name].count or 0 for member in members]
    value = float(aggregate_subtask_metrics([estimate.value for estimate in estimates], sizes, by_size))
    errors = [estimate.stderr for estimate in estimates if estimate.stderr is not None]
    if len(errors) < len(estimates):
        return Estimate(value)
    return Estimate(
        value, float(pooled_sample_stderr(errors, sizes) if by_size else unweighted_mean_stderr(errors))
    )


@lru_cache(maxsize=4)
def _task_manager(include_path: str | None, *, own: bool) -> "TaskManager":
    """Return what knows the tasks of a directory and, with `own`, those of the harness: thousands of files."""
    try:
        from lm_eval.tasks import TaskManager
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error}; install lm-evaluation-harness: pip install 'phyla[lm-eval]'"
        ) from error
    if include_path is not None and not Path(include_path).is_dir():
        raise ConfigurationError(f"include_path={include_path!r}: there is no such directory")
    return TaskManager(include_path=include_path, include_defaults=own)


def _manager_of(tasks: Sequence[str], include_path: str | None) -> "TaskManager":
    """Return what knows these tasks; the harness's own tasks are read if the directory lacks one."""
    if include_path is not None:
        manager = _task_manager(include_path, own=False)
        if all(task in manager.task_index for task in tasks):
            return manager
    return _task_manager(include_path, own=True)


def _own_tasks() -> Path:
    import lm_eval.tasks

    return Path(lm_eval.tasks.__file__).parent


def _files(manager: "TaskManager", names: Sequence[str]) -> dict[str, str]:
    """Return the files of tasks; groups need the whole index."""
    own, files = _own_tasks(), dict[str, str]()
    for name in names:
        entry = manager.task_index[name]
        if entry.kind.name != "GROUP" and entry.yaml_path is not None:
            path = entry.yaml_path.absolute()
            files[name] = str(path.relative_to(own) if path.is_relative_to(own) else path)
    return files


def _match(manager: "TaskManager", tasks: Sequence[str]) -> list[str]:
    names = [tasks] if isinstance(tasks, str) else list(tasks)
    if not names:
        raise ConfigurationError('lm-eval: name at least one task, as in suite(["arc_easy"])')
    matches = {name: manager.match_tasks([name]) for name in names}
    for name, found in matches.items():
        if not found:
            alike = ", ".join(map(repr, get_close_matches(name, manager.all_tasks)))
            did_you_mean = f"; did you mean {alike}?" if alike else "."
            raise ConfigurationError(
                f"lm-eval has no task {name!r}{did_you_mean} All tasks: lm-eval ls tasks; your own: include_path="
            )
    return list(dict.fromkeys(match for found in matches.values() for match in found))


def _leaves(manager: "TaskManager", name: str, groups: dict[str, JsonObject]) -> list[str]:
    """Return the tasks that a name stands for, and add the groups among them.

    A group that changes the settings of its tasks stands for itself.
    """
    entry = manager.task_index[name]
    config: Mapping[str, Any] = entry.cfg or {}
    if entry.kind.name == "TAG":
        return sorted(entry.tags)
    if entry.kind.name != "GROUP":
        return [name]
    members = config.get("task", ())
    if not all(isinstance(member, str) and member in manager.task_index for member in members):
        return [name]
    leaves = [leaf for member in members for leaf in _leaves(manager, member, groups)]
    listed = config.get("aggregate_metric_list") or ()
    metrics = [_group_metric(metric) for metric in ([listed] if isinstance(listed, Mapping) else listed)]
    groups[name] = {"tasks": leaves, "metrics": metrics}
    return leaves


def _group_metric(metric: Mapping[str, Any]) -> JsonObject:
    filters = metric.get("filter_list")
    return {
        "metric": metric["metric"],
        "weight_by_size": bool(metric.get("weight_by_size", True)),
        "filters": [filters] if isinstance(filters, str) else filters,
    }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Description:
    """What the configuration of a task says, without its documents.

    Attributes:
        version: of the task.
        digest: of its file, so that results of an edited task, or of another one of that name, are not reused.
        splits: whether each document can be evaluated without the others.
        directions: by metric, whether higher is better.
    """

    version: str = "1"
    digest: str = ""
    splits: bool = False
    directions: Mapping[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, manager: "TaskManager", task: str, num_fewshot: int | None) -> Self:
        """Read the configuration of a task; that of a class in Python, or of a group, tells little."""
        from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY

        entry = manager.task_index[task]
        config: Mapping[str, Any] = entry.cfg or {}
        version = str((config.get("metadata") or {}).get("version", "1"))
        digest = sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:16]
        if entry.kind.name != "TASK":
            return cls(version=version, digest=digest)
        names = DEFAULT_METRIC_REGISTRY.get(config.get("output_type", "generate_until"), ())
        metrics = config.get("metric_list") or [{"metric": name} for name in names]
        filters = [listed["name"] for listed in config.get("filter_list") or ()] or [NO_FILTER]
        return cls(
            version=version,
            digest=digest,
            splits=_draws_no_examples(config, num_fewshot) and all(map(_averages, metrics)),
            directions={
                metric_name(str(metric["metric"]), chosen): higher
                for metric in metrics
                if (higher := _is_higher_better(metric)) is not None
                for chosen in filters
            },
        )


def _draws_no_examples(config: Mapping[str, Any], num_fewshot: int | None) -> bool:
    """Return whether the prompt of a document does not depend on which documents came before it."""
    own = config.get("num_fewshot")
    if own == 0 or (own is None and not num_fewshot) or num_fewshot == 0:
        return True
    sampler: object = (config.get("fewshot_config") or {}).get("sampler")
    return sampler == "first_n"


def _averages(metric: Mapping[str, Any]) -> bool:
    from lm_eval.api.registry import get_metric_aggregation

    aggregation: object = metric.get("aggregation") or get_metric_aggregation(metric["metric"])
    return str(getattr(aggregation, "__name__", aggregation)) == "mean"


def _is_higher_better(metric: Mapping[str, Any]) -> bool | None:
    from lm_eval.api.registry import is_higher_better

    higher = metric.get("higher_is_better")
    if higher is None:
        higher = is_higher_better(metric["metric"])
    return None if higher is None else bool(higher)


def _goals(descriptions: Collection[_Description], objective: Goal | None) -> tuple[Goal | None, list[Goal]]:
    """Return the objective, and the means over tasks of all other metrics whose direction is known."""
    directions = {name: higher for described in descriptions for name, higher in described.directions.items()}
    goals = [(Maximize if higher else Minimize)(f"{name}_mean") for name, higher in directions.items()]
    if objective is None and all("acc" in described.directions for described in descriptions):
        objective = next((goal for goal in goals if goal.metric == "acc_mean"), None)
    return objective, [goal for goal in goals if objective is None or goal.metric != objective.metric]
