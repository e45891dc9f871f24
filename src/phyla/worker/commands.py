"""Eval tasks that are command lines, in any language."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from phyla.errors import ConfigurationError, EvaluationError
from phyla.evaluation import Metric, Moments, decode
from phyla.plugins import loaded_class
from phyla.settings import child_environment
from phyla.worker.evaluation import Evaluation

LOG_TAIL = 2000


def run_command(template: Sequence[str], evaluation: Evaluation, *, timeout_s: float | None) -> None:
    """Run a command and record what it wrote.

    Fields in its arguments are `{checkpoint}`, `{step}`, `{name}`, `{shard}`, `{shards}`, `{seed}`, `{config}` (a
    JSON file) and `{results}`. They are filled in argument by argument, and no shell sees them. It writes its
    metrics as one JSON object to `{results}`: a number, `{"mean": .., "n": ..}`, `{"values": [..]}`, or a stored
    metric of phyla's.

    Raises:
        ConfigurationError: an argument has another field, or there is no such program.
        EvaluationError: it failed, took too long, or left no results.
    """
    folder = evaluation.working_dir
    config, results, log = folder / "config.json", folder / "results.json", folder / "log.txt"
    config.write_text(json.dumps(dict(evaluation.config)))
    fields: dict[str, object] = {
        "checkpoint": evaluation.checkpoint.path,
        "step": evaluation.checkpoint.step,
        "name": evaluation.checkpoint.name,
        "shard": evaluation.shard.index,
        "shards": evaluation.shard.count,
        "seed": evaluation.seed,
        "config": config,
        "results": results,
    }
    try:
        arguments = [each.format(**{key: str(value) for key, value in fields.items()}) for each in template]
    except (KeyError, IndexError, ValueError) as error:
        known = ", ".join(f"{{{key}}}" for key in fields)
        raise ConfigurationError(
            f"command of eval task {evaluation.task!r}: {error!r} in {list(template)!r}; its fields are {known}, "
            "and other braces are written twice"
        ) from error
    command = shlex.join(arguments)
    try:
        with log.open("wb") as output:
            status = _run(arguments, output, timeout_s)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"command of eval task {evaluation.task!r}: {error}: {command}") from error
    tail = log.read_text(errors="replace")[-LOG_TAIL:].strip()
    if status is None:
        raise EvaluationError(f"the command took more than timeout_s={timeout_s:g}: {command}\n{tail}")
    if status:
        raise EvaluationError(f"the command ended with exit status {status}: {command}\n{tail}")
    try:
        found = json.loads(results.read_text())
    except FileNotFoundError:
        raise EvaluationError(f"the command wrote no results to {{results}}: {command}\n{tail}") from None
    except ValueError as error:
        raise EvaluationError(f"the command's results are no JSON: {error}: {command}") from error
    if not isinstance(found, Mapping):
        raise EvaluationError(f"the command's results are no JSON object: {found!r:.200}: {command}")
    for name, value in found.items():
        _record(evaluation, name, value)


def _run(arguments: Sequence[str], output: Any, timeout_s: float | None) -> int | None:
    """Return the exit status; None after the time-out, when its whole process group is ended."""
    process = subprocess.Popen(
        arguments,
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=child_environment({}),
        start_new_session=True,
    )
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _record(evaluation: Evaluation, name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        evaluation.record({name: value})
    elif "values" in value:
        evaluation.record({name: value["values"]})
    elif "metric" in value:
        metric: Metric = decode(value, loaded_class)
        evaluation.record({name: metric})
    elif "mean" in value and "variance" in value:
        n = int(value["n"])
        evaluation.record({name: Moments(n=n, mean=float(value["mean"]), m2=float(value["variance"]) * (n - 1))})
    elif "mean" in value:
        evaluation.record({name: value["mean"]}, n=int(value.get("n", 1)))
    else:
        evaluation.record({name: value})
