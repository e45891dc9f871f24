"""Lets `phyla check` do less of what many checks would repeat."""

import pytest

from phyla.study.checking import evidence, noise, verdicts
from phyla.study.running import stored_config
from phyla.worker import make


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure each checkpoint twice, not eight times as in `test_check_noise.py`, and digest no code."""
    for module in (evidence, noise, verdicts):
        monkeypatch.setattr(module, "MEASUREMENTS", 2)
    for module in (stored_config, make):
        monkeypatch.setattr(module, "digest_code", lambda train, rules: {"train": "no digest"})
