"""Which launcher starts worker processes."""

from pathlib import Path

import pytest

import phyla
from phyla import plugins
from phyla.errors import ConfigurationError
from phyla.launchers import get_launcher
from phyla.launchers.local import LocalLauncher

ACME = """
from pathlib import Path

class Acme:
    def __init__(self, client, specs, *, logs, **options):
        self.specs, self.logs = specs, logs

    def run(self):
        self.logs.mkdir(parents=True, exist_ok=True)
        (self.logs / "acme.txt").write_text(" ".join(spec.study for spec in self.specs))
        return True
"""


def train(trial: phyla.Trial) -> None:
    """Never called: the launcher starts nobody."""


def test_worker_processes_are_local_by_default() -> None:
    assert get_launcher() is LocalLauncher


def test_a_launcher_of_another_package_is_used_where_the_environment_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_launcher.py").write_text(ACME)
    info = tmp_path / "acme_launcher-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-launcher\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[phyla.launchers]\nacme = acme_launcher:Acme\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PHYLA_LAUNCHER", "acme")
    study = phyla.Study(
        "s",
        {"x": phyla.Float(0.0, 1.0)},
        phyla.Minimize("x"),
        phyla.RandomSearch(members=1, total_steps=1),
        train,
        home=tmp_path / "home",
    )
    plugins.registered.cache_clear()
    try:
        study.run(workers=2)
    finally:
        plugins.registered.cache_clear()
    (told,) = (tmp_path / "home").rglob("acme.txt")
    assert told.read_text() == "s s"


def test_a_launcher_that_is_not_installed_is_named_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHYLA_LAUNCHER", "slurm")
    with pytest.raises(ConfigurationError, match=r"PHYLA_LAUNCHER='slurm'.*choose one of: local"):
        get_launcher()
