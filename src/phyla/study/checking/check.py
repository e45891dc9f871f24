"""Controlled experiments that show whether a training function does what populations need.

What a running study shows by itself is in `phyla.study.results.findings`.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from phyla import study_modules
from phyla.errors import ConfigurationError
from phyla.study.checking.checked import Checked
from phyla.study.checking.evidence import function_name
from phyla.study.checking.experiments import Experiments
from phyla.study.checking.verdicts import Verdicts
from phyla.study.study import Study
from phyla.validation import check_integer
from phyla.worker import Command
from phyla.worker.commands.placeholders import name_placeholders

STEPS = 10
"""Default limit for the steps of a trial."""


def check(study: Study, *, steps: int | None = None, workers: int = 1) -> list[Checked]:
    """Find out by short experiments whether a study's training function can be resumed, and explored, correctly.

    It runs the function a dozen times or more, in studies of its own in a temporary directory, which it deletes.
    Nothing is read from or written to the study's home.

    Args:
        study: the study; it need not exist in its store.
        steps: steps of one trial; by default those of the study, at most 10. Some trials train twice as many.
        workers: 1 runs them in two fresh processes, and where that gives cause for doubt each in one of its own;
            0 runs all of them in this process.

    Raises:
        ConfigurationError: an argument is invalid, or the study has no training function.
        NotImportable: a process could not find a function; the message says how to fix that.
    """
    return [*checks(study, steps=steps, workers=workers)]


def checks(
    study: Study, *, steps: int | None = None, workers: int = 1, note: Callable[[str], object] = lambda text: None
) -> Iterator[Checked]:
    """Yield what `check` returns, as soon as it is known; `note` is called with what takes long."""
    study_modules.only_when_run()
    if study.train is None:
        raise ConfigurationError("Study(train=...) is needed to check it: there is no training function")
    workers = check_integer("workers", workers, 0, 1)
    length = check_integer("steps", steps_of(study) if steps is None else steps)
    with tempfile.TemporaryDirectory(prefix="phyla-check-") as folder:
        by_command = isinstance(study.train, Command)
        experiments = Experiments(study=study, root=Path(folder), workers=workers, note=note)
        for checked in Verdicts(study, length, experiments).reach():
            yield _of_command(checked) if by_command else _of_function(checked, study)


def _of_command(checked: Checked) -> Checked:
    # What the command printed stays as it is.
    text, *output = checked.text.split("\n")
    return replace(
        checked, text="\n".join([name_placeholders(text), *output]), change=name_placeholders(checked.change)
    )


def _of_function(checked: Checked, study: Study) -> Checked:
    where = f"in {function_name(study)}: " if checked.verdict == "FAIL" and checked.change else ""
    return replace(checked, change=f"{where}{checked.change}")


def steps_of(study: Study) -> int:
    """Return how many steps a trial of a check has by default."""
    strategy = study.rules.strategy
    return min(getattr(strategy, "steps_per_trial", None) or strategy.member_steps or STEPS, STEPS)
