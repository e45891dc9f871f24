"""Processor time of commands that wait: `phyla watch` without a new checkpoint, `phyla run` while training sleeps.

Each has two workers. In the run one worker trains, by sleeping, and the other waits for that trial. Measured are
user and system time of all processes together, in percent of a core.

Run: python bench/idle.py [--seconds 60] [--output bench/results/idle.json]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from machine import facts

SETTLED_S = 30.0
"""From the start of a command until it is measured; on a busy machine workers take ten seconds to start."""
SUITES = """
import phyla

@phyla.eval_task()
def size(evaluation):
    evaluation.record(size=float(evaluation.checkpoint.path.stat().st_size))

suite = phyla.Suite("suite", [size])
"""
STUDY = """
import time
import phyla

def train(trial):
    if trial.member == 0 and trial.generation:
        time.sleep(3600)
    (trial.checkpoint_dir / "w").write_text("w")
    trial.report(score=1.0)

strategy = phyla.PBT(population_size=2, steps_per_trial=1, total_steps=9, quorum=1.0)
study = phyla.Study("idle", {"rate": phyla.Float(0.0, 1.0)}, phyla.Maximize("score"), strategy, train)
"""
COMMANDS = {
    "phyla watch": "watch checkpoints --suite suites.py --format quiet --quiet 1s --workers 2",
    "phyla run": "run study.py --workers 2",
}


def processor_s(process: psutil.Process) -> dict[int, float]:
    """Return the processor time so far of a process and of each one below it, by process id."""
    seconds = {}
    for part in (process, *process.children(recursive=True)):
        times = part.cpu_times()
        seconds[part.pid] = times.user + times.system
    return seconds


def measure(folder: Path, words: str, seconds: float) -> dict[str, float]:
    """Return the percent of a core that a command uses: the command itself, and its workers together."""
    line = [sys.executable, "-m", "phyla.cli", "--home", str(folder / "home"), *words.split()]
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.DEVNULL) as popen:
        process = psutil.Process(popen.pid)
        time.sleep(SETTLED_S)
        before, began = processor_s(process), time.monotonic()
        time.sleep(seconds)
        used = {pid: now - before.get(pid, 0.0) for pid, now in processor_s(process).items()}
        elapsed = time.monotonic() - began
        popen.terminate()
    own = used.pop(popen.pid)
    return {"command": 100 * own / elapsed, "workers": 100 * sum(used.values()) / elapsed}


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path, default=Path("bench/results/idle.json"))
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    print(f"{'percent of a core':20}{'command':>10}{'workers':>10}{'together':>10}")
    for name, words in COMMANDS.items():
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            (folder / "checkpoints").mkdir()
            (folder / "checkpoints" / "step_1.bin").write_bytes(b"weights")
            (folder / "suites.py").write_text(SUITES)
            (folder / "study.py").write_text(STUDY)
            found[name] = measure(folder, words, options.seconds)
        own, workers = found[name].values()
        print(f"{name:20}{own:>10.2f}{workers:>10.2f}{own + workers:>10.2f}", flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"machine": facts(), "percent": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
