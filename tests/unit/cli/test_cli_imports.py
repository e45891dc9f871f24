"""`phyla --help` and workers start quickly, since they import nothing that they do not need."""

import re
import subprocess
import sys

HEAVY = {"scipy", "numpy", "sqlalchemy", "plotly", "pandas"}


def test_no_heavy_library_is_imported() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "phyla.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "doctor" in done.stdout
    imported = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))
    assert "phyla.cli.app" in imported
    assert not HEAVY & imported


def test_a_worker_imports_neither_the_watcher_nor_a_database() -> None:
    code = "import sys, phyla.worker.process; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "phyla.worker.make" in imported
    assert not {"phyla.watcher", "phyla.report", "rich", "typer", "scipy", "sqlalchemy"} & imported
