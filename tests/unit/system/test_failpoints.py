"""Failpoints: named, counted, and free when nobody armed one."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import phyla
from facts import raises
from phyla import settings
from phyla.errors import ConfigurationError
from phyla.system.failpoints import NAMES, FailpointReached, arm, disarm, failpoint

SOURCE = Path(phyla.__file__).parent


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    disarm()


def test_unarmed_failpoints_do_nothing() -> None:
    for name in NAMES:
        failpoint(name)


def test_an_armed_failpoint_acts_at_its_hit_and_only_then() -> None:
    arm("claim.before_commit=raise:3")
    failpoint("claim.before_commit")
    failpoint("claim.after_commit")
    failpoint("claim.before_commit")
    with raises(FailpointReached, "claim.before_commit"):
        failpoint("claim.before_commit")
    failpoint("claim.before_commit")


def test_the_first_hit_is_the_default() -> None:
    arm("reply.before=raise")
    with pytest.raises(FailpointReached):
        failpoint("reply.before")


@pytest.mark.parametrize("armed", [False, True])
def test_a_name_that_is_not_listed_raises_armed_or_not(armed: bool) -> None:
    if armed:
        arm("reply.before=raise")
    with raises(LookupError, "NAMES"):
        failpoint("reply.after")


def test_arming_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(ConfigurationError) as caught:
        arm("reply.after=kill")
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize("rest", ["", "=", "=burn", "=kill:", "=kill:0", "=kill:x", "=kill:-1", "=kill:1:2"])
def test_a_spec_that_is_not_understood_says_how_to_write_one(rest: str) -> None:
    with raises(ConfigurationError, "name=action"):
        arm(f"reply.before{rest}")


@pytest.mark.parametrize(("action", "status"), [("kill", -signal.SIGKILL), ("exit", 17), ("raise", 1)])
def test_the_environment_arms_a_process(action: str, status: int) -> None:
    code = "from phyla.system.failpoints import failpoint; failpoint('reply.before')"
    environment = settings.child_environment(
        {"PHYLA_FAILPOINT": f"reply.before={action}", "PYTHONPATH": str(SOURCE.parent)}
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.returncode == status


def test_names_are_sorted_and_unique() -> None:
    assert list(NAMES) == sorted(set(NAMES))


def test_every_failpoint_in_the_code_is_listed() -> None:
    used = {
        name
        for file in SOURCE.rglob("*.py")
        for name in re.findall(r"""\bfailpoint\(\s*["']([a-z._]+)["']""", file.read_text())
    }
    assert {name for name in NAMES if name.startswith("checkpoint.")} <= used <= set(NAMES)
