"""What the contract of an implementation requires, with messages that say what was seen."""

import time
from collections.abc import Callable

POLL_S = 0.02


def require(holds: object, otherwise: str) -> None:
    """Raise AssertionError with a message unless something holds."""
    if not holds:
        raise AssertionError(otherwise)


def require_equal(value: object, expected: object, what: str) -> None:
    """Raise AssertionError unless two values are equal; `what` names the first."""
    require(value == expected, f"{what}: got {value!r}, expected {expected!r}")


def require_raises(kinds: type[Exception], call: Callable[[], object], when: str) -> None:
    """Raise AssertionError unless a call raises an error of this kind; `when` says on what."""
    try:
        answer = call()
    except kinds:
        return
    except Exception as error:
        problem = f"it raised {type(error).__name__} ({error}), not {kinds.__name__}"
        raise AssertionError(f"{when}: {problem}") from error
    raise AssertionError(f"{when}: it returned {answer!r}, and has to raise {kinds.__name__}")


def wait_until_equal(look: Callable[[], object], expected: object, what: str, wait_s: float) -> None:
    """Wait until a call returns a value; raise AssertionError after some seconds."""
    ends_at = time.monotonic() + wait_s
    while (value := look()) != expected:
        require(time.monotonic() < ends_at, f"{what}: after {wait_s:g} s it is {value!r}, expected {expected!r}")
        time.sleep(POLL_S)
