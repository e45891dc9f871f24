"""The end of what a trial printed, as far as this machine has it."""

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
    if file.is_symlink() or not file.is_file():
        return ""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - MOST_BYTES))
        return opened.read(MOST_BYTES).decode("utf-8", "replace")
