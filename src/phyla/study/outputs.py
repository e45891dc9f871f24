"""What evaluations save, and what dead ones left over."""

import shutil
from pathlib import Path

from phyla.records import AttemptState, TrialState
from phyla.store import EvalReader


def remove_leftovers(reader: EvalReader, outputs: Path) -> int:
    """Remove what attempts saved that did not count and are not running; return how many directories that was.

    Safe while workers are alive: each attempt saves into a directory of its own, named by eval task and token.
    """
    removed = 0
    if not outputs.is_dir():
        return removed
    for folder in outputs.iterdir():
        task, _, token = folder.name.partition(".")
        if not (task.isdecimal() and token.isdecimal()):
            continue
        if not _counts(reader, int(task), int(token)):
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _counts(reader: EvalReader, task: int, token: int) -> bool:
    """Return whether the result of an attempt counts, or may still come."""
    attempt = reader.eval_attempt(task, token)
    if attempt is None:
        return False
    if attempt.state is AttemptState.LOST:
        # Perhaps only its lease ran out: a late result counts until somebody else claims the eval task.
        record = reader.locked_eval_task(task)
        return record is not None and record.state is TrialState.PENDING and record.token == token
    return attempt.state in (AttemptState.RUNNING, AttemptState.COMPLETED)
