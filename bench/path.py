"""Count the code between two trials: `python bench/path.py`.

From the end of one call of the training function to the start of the next: which files of phyla and which
functions run in the worker. Other threads, such as the one that sends reports, are not counted.
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import phyla
from machine import facts

RESULTS = Path(__file__).parent / "results" / "path.json"
SOURCE = str(Path(phyla.__file__).parent)
SKIPPED = 3
"""First trials, which import and prepare what later ones find there."""


def main() -> None:
    """Run a small study in this process and print what ran between two of its trials."""
    found: list[Counter[CodeType]] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE):
            found[-1][code] += 1

    def train(trial: phyla.Trial) -> None:
        sys.setprofile(None)
        assert trial.source is None or (trial.source.path / "x").exists()
        for _ in trial.steps():
            pass
        (trial.checkpoint_dir / "x").write_text(json.dumps(trial.params["lr"]))
        trial.report(score=trial.params["lr"])
        found.append(Counter())
        sys.setprofile(watch)

    with tempfile.TemporaryDirectory() as folder:
        strategy = phyla.PBT(population_size=8, steps_per_trial=5, total_steps=50)
        space = phyla.Space(lr=phyla.Float(0.1, 1.0))
        study = phyla.Study("path", space, phyla.Maximize("score"), strategy, train, home=folder)
        study.run(progress=False)
        sys.setprofile(None)
    between = found[SKIPPED:-1]
    functions = [len(one) for one in between]
    files = [len({code.co_filename for code in one}) for one in between]
    calls = [one.total() for one in between]
    rows = {"files": files, "functions": functions, "calls": calls}
    print(f"{'':10}{'fewest':>8}{'median':>8}{'most':>8}")
    for name, values in rows.items():
        print(f"{name:10}{min(values):>8}{sorted(values)[len(values) // 2]:>8}{max(values):>8}")
    fewest = min(between, key=len)
    for file, count in sorted(Counter(code.co_filename for code in fewest).items()):
        print(f"  {Path(file).relative_to(SOURCE)}: {count}")
    medians = {name: sorted(values)[len(values) // 2] for name, values in rows.items()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": facts(), **medians}, indent=1))


if __name__ == "__main__":
    main()
