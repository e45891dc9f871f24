"""A task of Inspect on every checkpoint that is a Hugging Face folder.

    pip install inspect-ai
    phyla watch runs/x/checkpoints --suite inspect_suite.py

`phyla evaluations x --against best` then compares two checkpoints question by question.
"""

from pathlib import Path

import inspect_ai
from inspect_ai.dataset import json_dataset
from inspect_ai.model import GenerateConfig, Model, get_model
from inspect_ai.scorer import includes, value_to_float
from inspect_ai.solver import generate

import phyla
from phyla.worker import EvaluationCheckpoint

QUESTIONS = Path(__file__).with_name("questions.jsonl")


def load(checkpoint: EvaluationCheckpoint) -> Model:
    """Load a checkpoint, once per worker; Inspect itself would keep all models in memory."""
    config = GenerateConfig(max_tokens=16, temperature=0.01, seed=1)
    return get_model("hf/checkpoint", config=config, memoize=False, model_path=str(checkpoint.path))


@phyla.eval_task
def capitals(evaluation: phyla.Evaluation) -> None:
    task = inspect_ai.Task(dataset=json_dataset(str(QUESTIONS)), solver=generate(), scorer=includes())
    (log,) = inspect_ai.eval(task, model=evaluation.loaded, display="none", log_dir=str(evaluation.working_dir))
    if log.status != "success" or log.results is None or log.samples is None:
        raise RuntimeError(f"Inspect: {log.status}: {log.error and log.error.message}")
    (score,), as_number = log.results.scores, value_to_float()
    metrics = {name: metric.value for name, metric in score.metrics.items()}
    evaluation.record(accuracy=metrics["accuracy"], n=log.results.completed_samples, stderr=metrics["stderr"])
    evaluation.save_samples(
        {
            "id": str(sample.id),
            "accuracy": as_number((sample.scores or {})[score.name].value),
            "answer": sample.output.completion,
        }
        for sample in log.samples
    )
    evaluation.save(log=Path(log.location))


suite = phyla.Suite("inspect", [capitals], load=load, objective=phyla.Maximize("accuracy_mean"))
