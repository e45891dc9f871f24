"""Results in the format of lm-evaluation-harness, which leaderboards and scripts of papers read."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from phyla.errors import UsageError
from phyla.evaluation.paired import ModelScore
from phyla.records import JsonObject
from phyla.worker.evaluating.samples import GROUP, ID

NO_FILTER = "none"
"""The harness's name of the filter that changes nothing."""
OWN = "harness"
"""Under which a sample has what the harness logged of it."""
UNKNOWN = "N/A"
COLUMNS = ("Tasks", "Version", "Filter", "n-shot", "Metric", "Value", "Stderr")


@final
@dataclass(frozen=True, kw_only=True)
class ModelResults:
    """The results of one model.

    Attributes:
        name: of the model: a checkpoint, or the file of a baseline.
        scores: by eval task and metric.
        samples: by eval task, what was saved of each sample.
        groups: aggregates over some tasks, by group and metric.
        details: what the harness says of each task, such as its version, by name.
    """

    name: str
    scores: Mapping[str, Mapping[str, ModelScore]]
    samples: Mapping[str, Sequence[JsonObject]] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, ModelScore]] = field(default_factory=dict)
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def sample_scores(samples: Iterable[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Return the values of a metric by sample, and the groups of samples, as arguments of `ModelScore`."""
    having = [sample for sample in samples if isinstance(sample.get(metric), int | float)]
    return {
        "samples": {str(sample[ID]): float(sample[metric]) for sample in having},
        "groups": {str(sample[ID]): str(sample[GROUP]) for sample in having if GROUP in sample},
    }


def is_of_harness(sample: Mapping[str, Any]) -> bool:
    """Return whether the harness measured a sample; other eval tasks may use the name for something else."""
    rows = sample.get(OWN)
    return isinstance(rows, list) and all(isinstance(row, dict) and "doc_id" in row for row in rows)


def task_name(task: str) -> str:
    """Return our name of one of the harness's tasks, whose names may have any characters."""
    return re.sub(r"[^\w.-]+", "-", task)


def metric_name(metric: str, chosen: str) -> str:
    """Return our name of a metric after one of the harness's filters."""
    return metric if chosen == NO_FILTER else f"{metric},{chosen}"


def to_harness(results: ModelResults) -> JsonObject:
    """Return results as `lm_eval.simple_evaluate` does, with the samples."""
    tasks = {task: _values(task, scores) for task, scores in results.scores.items()}
    groups = {group: _values(group, scores) for group, scores in results.groups.items()}
    samples = {
        task: [row for sample in rows for row in _rows(sample)] for task, rows in results.samples.items() if rows
    }
    return {
        "results": {**tasks, **groups},
        **({"groups": groups} if groups else {}),
        **{name: dict(values) for name, values in results.details.items()},
        "config": {"model": results.name},
        "model_name": results.name,
        **({"samples": samples} if samples else {}),
    }


def _values(name: str, scores: Mapping[str, ModelScore]) -> JsonObject:
    values: dict[str, Any] = {"name": name, "alias": name}
    for metric, score in scores.items():
        bare, _, chosen = metric.partition(",")
        chosen = chosen or NO_FILTER
        values[f"{bare},{chosen}"] = score.value
        values[f"{bare}_stderr,{chosen}"] = UNKNOWN if score.stderr is None else score.stderr
        if score.n is not None:
            values["sample_len"] = max(int(values.get("sample_len", 0)), score.n)
    return values


def _rows(sample: Mapping[str, Any]) -> list[JsonObject]:
    """Return the rows of the harness for a sample; of another one, its metrics as a row."""
    if is_of_harness(sample):
        return list(sample[OWN])
    metrics = [name for name, value in sample.items() if isinstance(value, int | float) and name != ID]
    return [{"doc_id": sample[ID], "filter": NO_FILTER, "metrics": metrics, **{k: sample[k] for k in metrics}}]


def table_rows(results: ModelResults) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the harness's table: a metric each, of tasks and then of groups."""
    for name, scores in (*results.scores.items(), *results.groups.items()):
        version, shots = (results.details.get(key, {}).get(name, "") for key in ("versions", "n-shot"))
        for metric, score in scores.items():
            bare, _, chosen = metric.partition(",")
            stderr = UNKNOWN if score.stderr is None else f"{score.stderr:.4f}"
            yield name, str(version), chosen or NO_FILTER, str(shots), bare, f"{score.value:.4f}", stderr


def to_markdown(results: ModelResults) -> str:
    """Return the harness's table. A bar or a new line in a name does not end its cell."""
    rows = [[re.sub(r"[|\\]", r"\\\g<0>", " ".join(cell.split())) for cell in row] for row in table_rows(results)]
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *rows]
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def read_harness(path: Path) -> ModelResults:
    """Read results from a file in the harness's format, and samples from it or from the files beside it.

    Raises:
        UsageError: it is not such a file.
    """
    try:
        raw = json.loads(path.read_bytes())
        tasks = {
            task: dict(values) for task, values in raw["results"].items() if task not in raw.get("groups", {})
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} has no results in the format of lm-evaluation-harness ({type(error).__name__}: {error}); "
            "give such a file, as phyla evaluations NAME --format json prints, or the name or step of a checkpoint"
        ) from error
    samples = {task: _read_rows(raw, path, task) for task in tasks}
    return ModelResults(
        name=str(path),
        samples={task_name(task): rows for task, rows in samples.items()},
        scores={
            task_name(task): {
                name: _read_score(values, key, samples[task], name)
                for key, value in values.items()
                if "," in key and "_stderr," not in key and isinstance(value, int | float)
                for name in [metric_name(*key.split(",", 1))]
            }
            for task, values in tasks.items()
        },
    )


def _read_score(values: Mapping[str, Any], key: str, samples: Sequence[JsonObject], name: str) -> ModelScore:
    metric, _, chosen = key.partition(",")
    stderr = values.get(f"{metric}_stderr,{chosen}")
    n = values.get("sample_len")
    return ModelScore(
        value=float(values[key]),
        stderr=float(stderr) if isinstance(stderr, int | float) else None,
        n=None if n is None else int(n),
        **sample_scores(samples, name),
    )


def _read_rows(raw: Mapping[str, Any], path: Path, task: str) -> list[JsonObject]:
    """Return the samples of a task: the harness has one row per document and filter."""
    rows = raw.get("samples", {}).get(task)
    if rows is None:
        # The harness writes results_DATE.json and samples_TASK_DATE.jsonl.
        beside = path.with_name(f"samples_{task}_{path.stem.removeprefix('results_')}.jsonl")
        rows = map(json.loads, beside.read_text().splitlines()) if beside.is_file() else ()
    samples: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = str(row["doc_id"])
        sample = samples.setdefault(key, {ID: key})
        sample |= {metric_name(metric, row["filter"]): row[metric] for metric in row["metrics"]}
    return list(samples.values())
