"""Lets `phyla check` do less of what many checks would repeat."""

import pytest

from phyla.study.checking import evidence, noise, verdicts
from phyla.study.running import stored_config


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure each checkpoint twice, not eight times as in `test_check_noise.py`, and digest no code."""
    for module in (evidence, noise, verdicts):
        monkeypatch.setattr(module, "MEASUREMENTS", 2)
    monkeypatch.setattr(stored_config, "code_digest", lambda function: "no digest")
