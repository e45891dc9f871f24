"""An eval task as evaluation code sees it: a function, or a command line in any language."""

import hashlib
import json
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final, overload

import numpy as np

from phyla.errors import ConfigurationError, EvaluationError
from phyla.evaluation import EvalTask, Metric, Moments, Preparation
from phyla.evaluation.metric import as_count, as_number
from phyla.evaluation.recorder import Recorder, decode
from phyla.plugins import loaded_class
from phyla.records import Checkpoint, EvalJob
from phyla.worker.commands.outputs import LAST_CHARACTERS, last_lines, tail
from phyla.worker.containment.processes import CannotStart, Process, describe_end
from phyla.worker.evaluating.samples import FILE, NAME, write_samples

LOG_TAIL = 2000
_FIELDS_BESIDE = {"values": (), "metric": ("state",), "mean": ("n", "stderr", "variance")}
"""The fields by which a metric that a command writes is recognized, and those that may stand beside each."""

_T = TypeVar("_T")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCheckpoint:
    """What is evaluated: one immutable checkpoint, the same for all shards of all eval tasks of a group.

    Attributes:
        path: where to read it: a directory, or a file where the training job writes single files; for a suite with
            `prepare`, the directory that this made.
        original: what `prepare` read; without `prepare` the same as `path`.
        step: age of the weights; -1 when it is not known.
        name: its name in the study, or its path below the watched directory.
        index: place within it, when one checkpoint holds several models; else 0.
        trial: the trial that wrote it, in a study.
    """

    path: Path
    original: Path
    step: int
    name: str
    index: int = 0
    trial: int | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Which part of an eval task this is.

    Attributes:
        index: 0 .. count - 1.
        count: how many parts there are.
    """

    index: int = 0
    count: int = 1

    def range(self, total: int) -> range:
        """Return the indices of this part of `total` samples: consecutive, sizes differing by at most one."""
        return range(total * self.index // self.count, total * (self.index + 1) // self.count)

    @overload
    def of(self, samples: Sequence[_T]) -> Sequence[_T]: ...

    @overload
    def of(self, samples: Any) -> Any: ...

    def of(self, samples: Any) -> Any:
        """Return this part of a sequence or an array."""
        part = self.range(len(samples))
        return samples[part.start : part.stop]


@final
class Evaluation:
    """One shard of one eval task on one checkpoint.

    Read `checkpoint`, `config` and `shard`; `record()` metrics, per batch or once; `save()` arrays and files.

    Attributes:
        suite: name of the suite.
        task: name of the eval task.
        checkpoint: what is evaluated.
        config: the eval task's configuration.
        shard: which part of the eval task this is.
        seed: for the evaluation code, in [0, 2**31): the same for every checkpoint and shard, other when a
            checkpoint is evaluated again.
        loaded: what the suite's `load(checkpoint)` returned in this process; None without one.
        worker: what the study's `setup(worker)` returned in this process; None without one.
    """

    def __init__(
        self,
        job: EvalJob,
        task: EvalTask,
        checkpoint: EvaluationCheckpoint,
        *,
        suite: str,
        loaded: Any,
        worker: Any,
        outputs: Path,
        work_root: Path,
    ) -> None:
        self.suite = suite
        self.task = task.name
        self.checkpoint = checkpoint
        self.config: Mapping[str, Any] = task.config
        self.shard = Shard(index=job.shard, count=job.shards)
        self.seed = seed_of(task.seed, job.replicate)
        self.loaded = loaded
        self.worker = worker
        self._recorder = Recorder()
        self._outputs = outputs
        self._work_root = work_root
        self._stop = False
        # For the worker: saved files by name, and signs of progress.
        self.files: dict[str, str] = {}
        self.beats = 0

    def record(
        self,
        metrics: Mapping[str, Any] | None = None,
        /,
        *,
        n: int | None = None,
        mask: Any = None,
        seed: int | None = None,
        stderr: float | None = None,
        **more: Any,
    ) -> None:
        """Record metrics of one batch, or of all; phyla merges sufficient statistics, never means.

        Args:
            metrics: name to what was measured; nested mappings become slashed names. A number is one sample,
                an array holds one sample per element, a metric such as `Perplexity` is merged as it is.
            n: a number is then the mean of n samples, with unknown variance.
            mask: for arrays: which elements count, as opposed to padding.
            seed: the seed of the samples, for comparisons seed by seed.
            stderr: the standard error of a mean of n samples, where another library computed it.
            **more: further metrics.

        Raises:
            EvaluationError: a value is not a metric, or does not match earlier values of its name.
        """
        self.beats += 1
        self._recorder.record({**(metrics or {}), **more}, n=n, mask=mask, seed=seed, stderr=stderr)

    def save(self, **outputs: Any) -> None:
        """Save arrays (as `.npy`), texts, bytes or files (by path) beside the result.

        Raises:
            ConfigurationError: a name is used twice, or is not a plain name.
        """
        for name, value in outputs.items():
            if name in self.files:
                raise ConfigurationError(f"save({name}=...): this evaluation has already saved that")
            self._outputs.mkdir(parents=True, exist_ok=True)
            if isinstance(value, Path):
                file = name + value.suffix
                shutil.copyfile(value, self._outputs / file)
            elif isinstance(value, bytes):
                file = name
                (self._outputs / file).write_bytes(value)
            elif isinstance(value, str):
                file = f"{name}.txt"
                (self._outputs / file).write_text(value)
            else:
                file = f"{name}.npy"
                np.save(self._outputs / file, np.asarray(value), allow_pickle=False)
            self.files[name] = file
            self.beats += 1

    def save_samples(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Save what was measured on each sample beside the result, compressed.

        Two checkpoints are then compared sample by sample: `phyla evaluations NAME --against CHECKPOINT`.

        Args:
            samples: one mapping for each sample. "id" identifies it in all checkpoints; "group" is that of samples
                that belong together, such as questions on one text; numbers are metrics, and the rest is kept.

        Raises:
            ConfigurationError: this evaluation has already saved samples.
            EvaluationError: a sample has no id, or two have the same.
        """
        if NAME in self.files:
            raise ConfigurationError("save_samples(): call it once in an evaluation, with all samples")
        self._outputs.mkdir(parents=True, exist_ok=True)
        write_samples(self._outputs / FILE, samples)
        self.files[NAME] = FILE
        self.beats += 1

    @property
    def working_dir(self) -> Path:
        """A directory of this attempt for scratch; removed when it ends."""
        self._work_root.mkdir(parents=True, exist_ok=True)
        return self._work_root

    @property
    def should_stop(self) -> bool:
        """Whether to stop soon: the worker is being stopped. The eval task then goes back to the queue."""
        return self._stop

    def stop(self) -> None:
        """Ask evaluation code to stop; for the worker. Takes no lock, so a signal handler may call it."""
        self._stop = True

    @property
    def statistics(self) -> dict[str, Metric]:
        """What was recorded."""
        return self._recorder.statistics()

    def __repr__(self) -> str:
        return (
            f"Evaluation({self.suite}/{self.task}, shard {self.shard.index} of {self.shard.count}, "
            f"{self.checkpoint.name} at step {self.checkpoint.step})"
        )


def seed_of(seed: int, replicate: int) -> int:
    """Return the seed of an evaluation: that of the eval task, and a different one for each repetition."""
    if not replicate:
        return seed % 2**31
    return int.from_bytes(hashlib.sha256(f"{seed}:{replicate}".encode()).digest()[:4], "big") % 2**31


def checkpoint_of(seen: Checkpoint, path: Path) -> EvaluationCheckpoint:
    """Return a checkpoint as evaluation code sees it."""
    return EvaluationCheckpoint(
        path=path, original=path, step=seen.step, name=seen.name, index=seen.index, trial=seen.trial
    )


def run_command(
    template: Sequence[str], evaluation: Evaluation, *, timeout_s: float | None, cwd: str | None = None
) -> None:
    """Run a command and record its results.

    Fields in its arguments are `{checkpoint}`, `{original}`, `{step}`, `{name}`, `{shard}`, `{shards}`, `{seed}`,
    `{config}` (a JSON file) and `{results}`. They are filled in argument by argument, and no shell sees them. It
    writes its metrics as one JSON object to `{results}`: a number, `{"mean": .., "n": .., "stderr": ..}`,
    `{"values": [..]}`, or a stored metric of phyla's. Other mappings are metrics with slashed names.

    Raises:
        ConfigurationError: there is no such program.
        EvaluationError: it failed, took too long, or left no results, or such as need a guess.
    """
    folder = evaluation.working_dir.absolute()
    config, results, log = folder / "config.json", folder / "results.json", folder / "log.txt"
    config.write_text(json.dumps(dict(evaluation.config)))
    checkpoint, shard = evaluation.checkpoint, evaluation.shard
    fields: dict[str, object] = {
        "checkpoint": checkpoint.path.absolute(),
        "original": checkpoint.original.absolute(),
        "step": checkpoint.step,
        "name": checkpoint.name,
        "shard": shard.index,
        "shards": shard.count,
        "seed": evaluation.seed,
        "config": config,
        "results": results,
    }
    where = f"command of eval task {evaluation.task!r}"
    command, details = execute(template, fields, where, log=log, timeout_s=timeout_s, cwd=cwd)
    try:
        values = json.loads(results.read_text())
    except FileNotFoundError:
        raise EvaluationError(f"the command wrote no results to {{results}}: {details}") from None
    except ValueError as error:
        raise EvaluationError(f"the command's results are not JSON: {error}: {command}") from error
    if not isinstance(values, Mapping):
        raise EvaluationError(f"the command's results are not a JSON object: {values!r:.200}: {command}")
    for name, value in values.items():
        _record(evaluation, name, value)


def convert(preparation: Preparation, original: EvaluationCheckpoint, into: Path, scratch: Path) -> None:
    """Prepare a checkpoint with a command, whose output is in `scratch` while it runs.

    Raises:
        ConfigurationError: there is no such program.
        EvaluationError: it failed or took too long.
    """
    assert preparation.command is not None
    fields = {
        "checkpoint": original.path.absolute(),
        "into": into.absolute(),
        "step": original.step,
        "name": original.name,
    }
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        execute(
            preparation.command,
            fields,
            "command of prepare=",
            log=scratch / "log.txt",
            timeout_s=preparation.timeout_s,
            cwd=None if preparation.cwd is None else str(preparation.cwd),
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def execute(
    template: Sequence[str],
    fields: Mapping[str, object],
    where: str,
    *,
    log: Path,
    timeout_s: float | None,
    cwd: str | None,
) -> tuple[str, str]:
    """Run a command with fields in its arguments; return it as one line, and details for the messages of errors.

    Raises:
        ConfigurationError: there is no such program; `where` names its place.
        EvaluationError: it failed or took too long.
    """
    arguments = [argument.format(**{key: str(value) for key, value in fields.items()}) for argument in template]
    command = shlex.join(arguments)
    try:
        with log.open("wb") as output, Process(arguments, output=output, errors=output, cwd=cwd) as process:
            status = process.wait(timeout_s)
    except CannotStart as error:
        raise ConfigurationError(f"{where}: {error}: {command}") from error
    last = (last_lines([log]) or ["it wrote no output"])[-1].strip()
    details = f"{last[:LAST_CHARACTERS]}\n{command}\n{tail(log, LOG_TAIL)}"
    if status is None:
        raise EvaluationError(f"the command took more than timeout_s={timeout_s:g}: {details}")
    if status:
        raise EvaluationError(f"the command {describe_end(status)}: {details}")
    return command, details


def _record(evaluation: Evaluation, name: str, value: Any) -> None:
    """Record one metric that a command wrote, or several that it nested in each other."""
    if not isinstance(value, Mapping):
        evaluation.record({name: value})
        return
    kind = next((key for key in _FIELDS_BESIDE if key in value), None)
    if kind is None:
        for key, item in value.items():
            _record(evaluation, f"{name}/{key}", item)
        return
    where = f"the command's result {name!r}"
    if unknown := sorted(value.keys() - {kind, *_FIELDS_BESIDE[kind]}):
        known = ", ".join(map(repr, _FIELDS_BESIDE[kind])) or "no other field"
        raise EvaluationError(
            f"{where} has {', '.join(map(repr, unknown))} beside {kind!r}, which allows {known}; give "
            "other metrics names of their own"
        )
    if kind == "mean":
        _record_mean(evaluation, name, value, where)
    else:
        evaluation.record({name: value["values"] if kind == "values" else decode(value, loaded_class)})


def _record_mean(evaluation: Evaluation, name: str, value: Mapping[str, Any], where: str) -> None:
    n, stderr, variance = (value.get(field) for field in _FIELDS_BESIDE["mean"])
    # Some languages write every number as one with a fraction.
    n = int(n) if isinstance(n, float) and n.is_integer() else n
    if variance is None:
        evaluation.record({name: value["mean"]}, n=1 if n is None else n, stderr=stderr)
        return
    mean, spread = (as_number(number, f"{where}: {number!r}") for number in (value["mean"], variance))
    count = as_count(n, f"{where}: n")
    if mean is None or spread is None or stderr is not None:
        raise EvaluationError(
            f"{where} is {dict(value)!r}: give a variance together with a mean and n, all of them numbers, and "
            "without stderr"
        )
    evaluation.record({name: Moments(n=count, mean=mean, m2=spread * max(0, count - 1))})
