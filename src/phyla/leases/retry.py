"""What happens to a trial whose attempt failed."""

from dataclasses import dataclass
from typing import TypeAlias, final


@final
@dataclass(frozen=True, slots=True)
class Retry:
    """Queue the trial again; it keeps parent, hyperparameters and seed."""

    failures: int


@final
@dataclass(frozen=True, slots=True)
class Quarantine:
    """Give the trial up with its last error; its member goes on from its true ancestor."""

    failures: int


AfterFailure: TypeAlias = Retry | Quarantine


def after_failure(failures: int, *, max_attempts: int, retryable: bool = True) -> AfterFailure:
    """Decide between another attempt and quarantine.

    Args:
        failures: attempts that failed before this one.
        max_attempts: attempts that may fail in all.
        retryable: False for errors that another attempt cannot cure.
    """
    failures += 1
    if retryable and failures < max_attempts:
        return Retry(failures)
    return Quarantine(failures)
