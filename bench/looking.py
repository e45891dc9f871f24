"""Processor time of a first look at a study with many members: `phyla status`, `phyla best`.

Each member has completed one trial. The members, trials and attempts are inserted without training.

Run: python bench/looking.py [--members 100000] [--output bench/results/looking.json]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from control_plane import add_scores, rules
from machine import facts
from phyla.configuration import to_config
from phyla.records import StudyState
from phyla.store import open_store

COMMANDS = ("status NAME", "status NAME --json", "status", "best NAME")


def populate(file: Path, members: int) -> None:
    """Make a study in which each member has completed a trial."""
    store = open_store(f"sqlite:///{file}")
    study = store.create_study("wide", to_config(rules(members), 1), 1, members)
    store.set_state(study.id, StudyState.STOPPED)
    store.close()
    add_scores(file, study.id, members)


def processor_s(home: Path, command: str) -> float:
    """Return what a command takes, its start included, by user and system together."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    line = [sys.executable, "-m", "phyla.cli", "--home", str(home), *command.replace("NAME", "wide").split()]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=100_000)
    parser.add_argument("--output", type=Path, default=Path("bench/results/looking.json"))
    options = parser.parse_args()
    found: dict[str, dict[int, float]] = {command: {} for command in COMMANDS}
    for members in (10, options.members):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            populate(home / "phyla.db", members)
            for command in COMMANDS:
                found[command][members] = round(processor_s(home, command), 2)
    print(f"{'command':24}{'members':>10}{'processor s':>14}")
    for command, times in found.items():
        for members, seconds in times.items():
            print(f"phyla {command:18}{members:>10,}{seconds:>14}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"machine": facts(), "processor_s": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
