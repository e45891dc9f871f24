"""Evaluates a task of the harness on a checkpoint, whole or one shard of it."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from phyla.errors import ConfigurationError, EvaluationError, is_storage_error
from phyla.integrations.harness_results import OWN, metric_name
from phyla.integrations.lm_eval.task_index import TaskDescription, own_tasks, read_tasks, task_manager
from phyla.integrations.lm_eval.weights import complete_weights
from phyla.records import JsonObject
from phyla.worker import Evaluation, EvaluationCheckpoint
from phyla.worker.evaluating.samples import GROUP, ID

NUMBERS = (int, float, np.generic)
"""Types of the metrics of a document that are numbers."""
_ADAPTER = "adapter_config.json"


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
        """Return the model.

        Raises:
            EvaluationError: the checkpoint cannot be loaded, or another model would be in its place.
        """
        from lm_eval.api.registry import get_model

        arguments = {**self._places(checkpoint.path), **self.model_args}
        settings = {"batch_size": self.batch_size, "device": self.device or _device(self.model)}
        try:
            with complete_weights() if _is_of_transformers(self.model) else nullcontext():
                model = get_model(self.model).create_from_arg_obj(arguments, settings)
        except OSError as error:
            if "peft" not in arguments or is_storage_error(error):
                raise
            raise EvaluationError(
                f"the base model {arguments['pretrained']!r} of this adapter cannot be loaded. As a path it is "
                f"relative to {Path.cwd()}, where phyla was started; if it is elsewhere: "
                f'model_args={{"pretrained": "PATH"}}. {error}'
            ) from error
        if _lacks_tokenizer(model):
            raise EvaluationError(
                "this checkpoint has no tokenizer: let training save it, as Trainer(processing_class=tokenizer) "
                'does, or name one: model_args={"tokenizer": "PATH"}'
            )
        return Loaded(model, self.files, self.include_path)

    def _places(self, path: Path) -> dict[str, str]:
        """Return the arguments that say where the model is: an adapter, as of LoRA, needs its base model."""
        of_transformers = _is_of_transformers(self.model)
        if not of_transformers or not _is_adapter(path):
            if "pretrained" in self.model_args:
                raise EvaluationError(
                    "model_args has 'pretrained', which would be evaluated in place of each checkpoint: leave it "
                    f"out. Only for an adapter (a checkpoint with {_ADAPTER}, but without config.json) does it "
                    "name the base model, and only with a model class of Hugging Face"
                )
            if of_transformers and "gguf_file" not in self.model_args and not (path / "config.json").exists():
                raise EvaluationError(
                    "this checkpoint has no config.json: let training save each checkpoint, the last one too, in "
                    "a directory of its own, as save_pretrained does; or convert them: prepare="
                )
            return {"pretrained": str(path)}
        base = self.model_args.get("pretrained")
        base = base or json.loads((path / _ADAPTER).read_bytes()).get("base_model_name_or_path")
        if not base:
            raise EvaluationError(f'{_ADAPTER} names no base model: name it, model_args={{"pretrained": "PATH"}}')
        places = {"pretrained": str(base), "peft": str(path)}
        if (path / "tokenizer_config.json").exists():
            places["tokenizer"] = str(path)
        return places


def _is_adapter(path: Path) -> bool:
    """Return whether a checkpoint has only the weights that PEFT adds to a base model."""
    return (path / _ADAPTER).exists() and not (path / "config.json").exists()


def _is_of_transformers(model: str) -> bool:
    """Return whether a model class of the harness, by its name, is one of those for Hugging Face's models."""
    return model.startswith(("hf", "huggingface"))


def _device(model: str) -> str | None:
    """Return the device of this machine, where the harness would insist on CUDA."""
    if not _is_of_transformers(model):
        return None
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _lacks_tokenizer(model: Any) -> bool:
    """Return whether a tokenizer knows no text: transformers makes such a one if there are no files of it."""
    tokenizer = getattr(model, "tokenizer", None)
    # Only those of transformers have these.
    special = getattr(tokenizer, "all_special_tokens", None)
    return tokenizer is not None and special is not None and set(tokenizer.get_vocab()) <= set(special)


def _check_unedited(config: Mapping[str, Any], include_path: str) -> None:
    """Reject a task that was edited since its suite was read: its results have the digest of the older one."""
    name, manager = config["task"], read_tasks(include_path, own=False)
    entry = manager.task_index.get(name)
    if entry is None or entry.kind.name != "TASK":
        return
    if TaskDescription.of(manager, name, config["num_fewshot"]).digest != config["digest"]:
        raise EvaluationError(
            f"task {name!r} of {include_path}, or a file that it names, was edited since the watch or the study "
            "started: restart it to evaluate with the new files, or restore the old ones"
        )


def evaluate(evaluation: Evaluation) -> None:
    """Evaluate a task of the harness, or one shard of it."""
    config, shard, loaded = evaluation.config, evaluation.shard, evaluation.loaded
    if loaded.include_path is not None:
        _check_unedited(config, loaded.include_path)
    from lm_eval import simple_evaluate

    describe_machine_once()
    name = config["task"]
    file = loaded.files.get(name)
    manager = task_manager(loaded.include_path, own=file is None)
    spec = name if file is None else str(own_tasks() / file)
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
    unknown = {task: _forget_guesses(rows) for task, rows in documents_of.items()}
    for task, rows in documents_of.items():
        prefix = "" if task == name else f"{task}/"
        _record(evaluation, prefix, results["results"][task], rows, unknown=unknown[task])
    for group, values in results.get("groups", {}).items():
        _record(evaluation, f"{group}/", values, (), unknown=any(unknown.values()))
    evaluation.save_samples(_samples(documents_of, config))
    shared = ("configs", "versions", "n-shot", "higher_is_better", "n-samples", "lm_eval_version", "git_hash")
    kept = {name: results[name] for name in shared if name in results}
    evaluation.save(harness=json.dumps(kept, default=str, indent=1))


@cache
def describe_machine_once() -> None:
    """Keep the harness's description of this machine: for each task it would start pip and many other programs."""
    with suppress(ImportError):
        from torch.utils import collect_env

        collect_env.get_pretty_env_info = cache(collect_env.get_pretty_env_info)


def _forget_guesses(rows: Sequence[dict[str, Any]]) -> bool:
    """Make the metrics of documents nan where a response of the model is; return whether there are any.

    The harness takes the first of several answers for the most likely one if their likelihoods are nan.
    """
    guessed = [row for row in rows if _has_nan((row["resps"], row["filtered_resps"]))]
    for row in guessed:
        row.update({metric: math.nan for metric in row["metrics"] if isinstance(row[metric], NUMBERS)})
    return bool(guessed)


def _has_nan(response: Any) -> bool:
    if isinstance(response, list | tuple):
        return any(map(_has_nan, response))
    return isinstance(response, float | np.floating) and math.isnan(response)


def _record(
    evaluation: Evaluation,
    prefix: str,
    values: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    unknown: bool,
) -> None:
    """Record what the harness says of a task, from single documents where the value is their mean.

    All values are nan if those of some documents are `unknown`.
    """
    for key, value in values.items():
        metric, comma, chosen = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        value = math.nan if unknown else value
        samples = [row[metric] for row in rows if row["filter"] == chosen and metric in row]
        name = prefix + metric_name(metric, chosen)
        if _is_mean(value, samples):
            evaluation.record({name: np.array(samples, dtype=float)})
            continue
        if evaluation.shard.count > 1:
            raise ConfigurationError(
                f"{name!r} of {evaluation.task!r} is not a mean over documents, so the task cannot be split: "
                "suite(..., shards=1)"
            )
        stderr = values.get(f"{metric}_stderr,{chosen}")
        n = len(samples) or int(values.get("sample_len", 1))
        if not (isinstance(stderr, int | float) and math.isfinite(value + stderr) and n > 1):
            stderr = None
        evaluation.record({name: float(value)}, n=n, stderr=stderr)


def _is_mean(value: float, samples: Sequence[Any]) -> bool:
    if not samples or not all(isinstance(sample, NUMBERS) for sample in samples):
        return False
    mean = np.mean(np.array(samples, dtype=float))
    return bool(np.isclose(mean, value, rtol=1e-9, atol=1e-12, equal_nan=True))


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
                if isinstance(row[metric], NUMBERS)
            }
            cluster = config["cluster"]
            group = {} if cluster is None else {GROUP: str(logged[0]["doc"][cluster])}
            yield {ID: f"{prefix}{key}", **group, **metrics, OWN: [dict(row) for row in logged]}


def _count(documents: int, limit: float | None) -> int:
    if limit is None:
        return documents
    return min(documents, math.ceil(documents * limit) if limit < 1 else int(limit))
