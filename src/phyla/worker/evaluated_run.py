"""A run as a worker evaluates it: its suites, where its checkpoints are, and where results go."""

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from phyla.evaluation import EvalTask, Suite
from phyla.worker.bindings import Bindings
from phyla.worker.sources import Sources


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRun:
    """What it takes to evaluate the checkpoints of one run.

    Attributes:
        suites: its suites, as they were when this process read them.
        sources: where its checkpoints are.
        outputs: directory of saved arrays and files; its parent is common to all runs of a store, since the
            ledger's entries are, too.
        bindings: where gin bindings come from.
        changed: tells whether it has other suites by now.
        stop: ends the study of the run, with a message, where storage fails; None counts that as a failure.
    """

    suites: tuple[Suite, ...]
    sources: Sources
    outputs: Path
    bindings: Bindings = field(default_factory=Bindings)
    changed: Callable[[], bool] = lambda: False
    stop: Callable[[str], None] | None = None


def source_of(task: EvalTask) -> str:
    """Return a digest of a function's source; empty where there is none to see."""
    if task.evaluate is None:
        return ""
    try:
        return hashlib.sha256(inspect.getsource(inspect.unwrap(task.evaluate)).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return ""


def source_with_bindings(run: EvaluatedRun, suite: Suite, task: EvalTask) -> str:
    """Return a digest of what an eval task computes by: its function's source, and files of gin bindings.

    Those files say what is computed, too, and are no part of the eval task's identity.
    """
    bindings = run.bindings.digest(suite.gin_files)
    return f"{source_of(task)}+{bindings}" if bindings else source_of(task)
