"""The end of what a trial printed, as far as this machine has it."""

import os
from collections.abc import Sequence
from pathlib import Path

from phyla.records import Attempt, TrialRecord
from phyla.study.places import Places

MOST_BYTES = 16 * 1024


def end_of_log(
    places: Places, study: str, trial: TrialRecord, attempts: Sequence[Attempt]
) -> tuple[str, str] | None:
    """Return the name of the log of a trial's newest attempt, and its end; None if it is not here.

    Nothing that the store says is taken for a path, except the number of a worker.
    """
    if not attempts:
        return None
    token, slot = attempts[-1].token, attempts[-1].worker.split(":")[1:2]
    files = [places.work(study) / f"trial-{trial.id}" / f"{name}-{token}.txt" for name in ("stderr", "stdout")]
    if slot and slot[0].isdecimal():
        files.append(places.logs(study) / f"worker-{slot[0]}.log")
    for file in files:
        text = _end(file)
        if text:
            return str(file), text
    return None


def _end(file: Path) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as opened:
        try:
            opened.seek(-MOST_BYTES, os.SEEK_END)
            opened.readline()
        except OSError:
            opened.seek(0)
        return opened.read(MOST_BYTES).decode("utf-8", "replace")
