"""Memory of the main process of a study with a long history.

The study has 100,000 completed trials when it is resumed with 2 workers; the main process supervises them, shows
progress, collects checkpoints, and at the end looks up the best trial and its schedule. Its peak is read from the
operating system.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import phyla
from control_plane import add_history
from machine import facts

POPULATION, MORE = 20, 10


def train(trial: phyla.Trial) -> None:
    """Train nothing, but leave a checkpoint."""
    (trial.checkpoint_dir / "empty.json").write_text("{}")
    trial.report(score=trial.params["rate"])


def study(home: Path) -> phyla.Study:
    """Return the study that is measured."""
    return phyla.Study(
        name="long",
        space=phyla.Space(rate=phyla.Float(1e-5, 1.0, log=True), momentum=phyla.Float(0.0, 1.0)),
        objective=phyla.Maximize("score"),
        strategy=phyla.PBT(population_size=POPULATION, steps_per_trial=10, total_steps=10 * MORE),
        train=train,
        home=home,
    )


def look(results: phyla.Results) -> None:
    """Do what a live display does."""
    results.progress()


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path("bench/results/memory.json"))
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.home:
        results = study(options.home).run(workers=2, on_progress=look)
        assert results.best is not None
        results.schedule()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        return
    peaks = {}
    for trials in (0, options.trials):
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            home = Path(folder)
            first = study(home)
            trial = first.ask()
            assert trial is not None
            train(trial)
            first.tell(trial)
            if trials:
                add_history(home / "phyla.db", trials)
            command = [sys.executable, __file__, "--home", str(home)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            counts = phyla.load_study("long", home=home).counts()
            assert counts["completed"] == trials + POPULATION * MORE, counts
        peaks[trials] = int(done.stdout.split()[-1])
    print(f"{'trials before':>14}{'peak of the main process, MiB':>32}{'wanted':>10}")
    for trials, peak in peaks.items():
        print(f"{trials:>14,}{peak:>32}{150:>10}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts(), "peak_mib": peaks}, indent=2))


if __name__ == "__main__":
    main()
