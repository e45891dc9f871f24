"""`phyla --help` is quick, since nothing heavy is imported for it."""

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
