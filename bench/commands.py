"""Overhead of a command: `python bench/commands.py`.

A shell script of one second, which reports ten times and saves a small file, is run in a bare loop, and as the
trials of a study with one member, whose command it is. The script sleeps, so that a busy machine changes little.
How long it takes to start the process that keeps what a command starts is measured by itself, since that is the
same for trials of an hour. Overheads are those of the faster half of the trials.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import phyla
from machine import facts
from phyla.worker.containment.processes import Process

RESULTS = Path(__file__).parent / "results" / "commands.json"
SCRIPT = """
for step in 1 2 3 4 5 6 7 8 9 10; do
  sleep 0.1
  echo "{\\"step\\": $step, \\"loss\\": 0.5}" >> "$2"
done
echo $$ > "$1/x"
"""
MOST = 0.03


def bare(folder: Path, count: int, *, contained: bool) -> list[float]:
    """Run the script again and again, perhaps contained; return the seconds of each."""
    seconds = []
    for number in range(count):
        save_to = folder / f"{contained}-{number}"
        save_to.mkdir(exist_ok=True)
        arguments = ["sh", "script.sh", str(save_to), str(save_to / "metrics.jsonl")]
        began = time.perf_counter()
        if contained:
            with (
                (folder / "log").open("wb") as log,
                Process(arguments, output=log, errors=log, cwd=str(folder)) as run,
            ):
                assert run.wait() == 0
        else:
            subprocess.run(arguments, cwd=folder, check=True)
        seconds.append(time.perf_counter() - began)
    return seconds


def trials(folder: Path, count: int, number: int) -> list[float]:
    """Run it as the trials of a study; return the seconds from claim to claim."""
    command = phyla.Command(["sh", "script.sh", "{save_to}", "{metrics}", ["{source}"]], cwd=folder)
    strategy = phyla.PBT(population_size=1, steps_per_trial=10, total_steps=10 * (count + 1))
    space = {"lr": phyla.Float(0, 1)}
    study = phyla.Study(f"c{number}", space, phyla.Minimize("loss"), strategy, command, home=folder)
    claimed = [attempt.claimed_at for attempt in study.run().attempts()]
    return [later - earlier for earlier, later in pairwise(claimed)]


def fast(seconds: list[float]) -> float:
    """Return the median of the faster half, in which others on the machine take less part."""
    return statistics.median(sorted(seconds)[: len(seconds) // 2])


def main() -> None:
    """Measure, print a table, and write the results as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--trials", type=int, default=6)
    args = parser.parse_args()
    found: dict[str, list[float]] = {"bare loop": [], "contained": [], "trials of a study": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.sh").write_text(SCRIPT)
        for number in range(args.rounds):
            found["bare loop"] += bare(folder, args.trials, contained=False)
            found["contained"] += bare(folder, args.trials, contained=True)
            found["trials of a study"] += trials(folder, args.trials, number)
        machine = facts(folder)
    loop, kept, study = map(fast, found.values())
    print(f"{'':20}{'fast':>10}{'median':>10}{'worst':>10}")
    for label, values in found.items():
        print(f"{label:20}{fast(values):>8.3f} s{statistics.median(values):>8.3f} s{max(values):>8.3f} s")
    beside, whole = (study - kept) / loop, study / loop - 1
    print(
        f"overhead {beside:.1%} besides the start of the process (wanted: at most {MOST:.0%}), {whole:.1%} with it"
    )
    RESULTS.parent.mkdir(exist_ok=True)
    measured = {"bare_s": loop, "contained_s": kept, "trial_s": study, "overhead": beside, "with_start": whole}
    RESULTS.write_text(json.dumps({"machine": machine, **measured}, indent=1))


if __name__ == "__main__":
    main()
