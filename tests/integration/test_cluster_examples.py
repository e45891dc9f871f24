"""The digits study with each launcher, by the scripts that the guide names, with a small budget."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from phyla.records import StudyState
from phyla.settings import child_environment
from phyla.study import Places, Results, open_any

EXAMPLES = Path(__file__).parents[2] / "examples"
BUDGET = '"population_size": 16, "steps_per_trial": 100, "total_steps": 3000'
SMALL = '"population_size": 2, "steps_per_trial": 20, "total_steps": 40'


def run(name: str, folder: Path, *more: str) -> Results:
    """Run a script of a copy of the examples, whose digits study is small."""
    for part in ("cluster", "digits"):
        shutil.copytree(EXAMPLES / part, folder / "examples" / part)
    digits = folder / "examples/digits/digits.py"
    text = digits.read_text()
    assert BUDGET in text
    digits.write_text(text.replace(BUDGET, SMALL))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    home = folder / "home"
    done = subprocess.run(
        [folder / "examples/cluster" / name, *more],
        env=child_environment({"PHYLA_HOME": str(home), "PATH": path}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = open_any("digits", Places.of(home))
    assert isinstance(found, Results)
    assert found.state is StudyState.COMPLETED
    assert found.counts() == {"completed": 4}
    assert {group.state for group in found.evaluations().groups()} == {"complete"}
    return found


def test_the_digits_with_workers_of_this_machine(tmp_path: Path) -> None:
    run("local.sh", tmp_path)


@pytest.mark.xdist_group("slurm")
@pytest.mark.usefixtures("slurm")
def test_the_digits_with_workers_that_slurm_places(tmp_path: Path) -> None:
    run("slurm.sh", tmp_path, "--launcher-option", "partition=requeue")


def test_every_script_is_one_that_a_shell_can_read() -> None:
    scripts = [*EXAMPLES.rglob("cluster/**/*.sh"), *EXAMPLES.rglob("cluster/**/*.sbatch")]
    assert len(scripts) >= 4
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
