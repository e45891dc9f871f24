"""`phyla --help` is quick, since nothing heavy is imported for it."""

import json
import resource
import subprocess
import sys

HEAVY = {"scipy", "numpy", "sqlalchemy", "plotly", "pandas"}


def test_no_heavy_library_is_imported() -> None:
    code = "import sys, json, phyla.cli, phyla.cli.app; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(json.loads(done.stdout))


def test_help_takes_less_than_half_a_second() -> None:
    def cpu_s() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "phyla.cli", "--help"], capture_output=True, text=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "doctor" in done.stdout
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(cpu_s() for _ in range(3)) < 0.5
