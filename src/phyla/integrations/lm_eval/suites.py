"""Suites of tasks of lm-evaluation-harness."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from phyla.evaluation import EvalTask, Policy, Preparation, Suite
from phyla.integrations.harness_results import task_name
from phyla.integrations.lm_eval.evaluation import LoadModel, evaluate
from phyla.integrations.lm_eval.group_means import GroupMeans
from phyla.integrations.lm_eval.task_index import TaskDescription, files_of, leaves_of, manager_of, match_tasks
from phyla.records import Goal, JsonObject, Maximize, Minimize


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
        model: name of the harness's model class; its `pretrained=` is the checkpoint's path. Those of Hugging Face
            take an adapter of PEFT as `peft=`, on the base model that it names.
        model_args: more arguments, such as `{"dtype": "bfloat16"}`; `pretrained` is another base for adapters.
        batch_size: a number, or `"auto"`.
        device: such as "cuda:0"; by default a GPU if there is one.
        limit: only this many documents of each task, or below 1 this share of them; None for all.
        num_fewshot: examples in the prompt; None for the number that the task has.
        include_path: a directory of further tasks; in a TOML file it is relative to the file.
        apply_chat_template: whether prompts are made by the chat template of the tokenizer.
        shards: into how many parts the documents of a task are split over workers. Tasks stay whole whose examples
            are drawn anew for each document, and those with a metric that is not a mean over documents.
        cluster: a field that groups dependent documents, such as questions on one text, for comparisons.
        timeout_s: seconds that one attempt at an eval task may take.
        objective: what the best checkpoint is chosen by. By default the mean of `acc`, where all tasks have it.
        policy: which checkpoints, and how soon.
        prepare: makes of a checkpoint what the model class can load, as for `Suite`.

    Raises:
        ConfigurationError: lm-eval is not installed, or has no such task.
    """
    directory = None if include_path is None else str(Path(include_path).absolute())
    manager, settings = manager_of(tasks, directory), dict(model_args or {})
    how: JsonObject = {
        "model": model,
        "model_args": settings,
        "limit": limit,
        "num_fewshot": num_fewshot,
        "apply_chat_template": apply_chat_template,
        "cluster": cluster,
    }
    groups: dict[str, JsonObject] = {}
    names = [leaf for task in match_tasks(manager, tasks) for leaf in leaves_of(manager, task, groups)]
    described = {task: TaskDescription.of(manager, task, num_fewshot) for task in dict.fromkeys(names)}
    best, watch = _goals(described.values(), objective)
    load = LoadModel(
        model=model,
        model_args=settings,
        batch_size=batch_size,
        device=device,
        files=files_of(manager, list(described)),
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
    task: str, description: "TaskDescription", how: JsonObject, shards: int, timeout_s: float | None
) -> EvalTask:
    return EvalTask(
        task_name(task),
        evaluate,
        config={"task": task, "digest": description.digest, **how},
        version=description.version,
        shards=shards if description.splits else 1,
        timeout_s=timeout_s,
    )


def _goals(descriptions: Collection[TaskDescription], objective: Goal | None) -> tuple[Goal | None, list[Goal]]:
    """Return the objective, and the means over tasks of all other metrics whose direction is known."""
    directions = {name: higher for described in descriptions for name, higher in described.directions.items()}
    goals = [(Maximize if higher else Minimize)(f"{name}_mean") for name, higher in directions.items()]
    if objective is None and all("acc" in described.directions for described in descriptions):
        objective = next((goal for goal in goals if goal.metric == "acc_mean"), None)
    return objective, [goal for goal in goals if objective is None or goal.metric != objective.metric]
