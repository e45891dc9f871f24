"""Run all comparisons, then write docs/results.md and its figures: `python bench/quality/everything.py`.

About 80 minutes on 2 quiet cores. It may be interrupted and run again: what is there is kept. With `--quick` it
takes a few minutes, and then nothing is written into docs/.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from comparing import RESULTS

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run the scripts in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny studies, to see that everything runs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="where results are kept")
    options = parser.parse_args()
    folder = options.folder or (RESULTS.with_name("quality-quick") if options.quick else RESULTS)
    how = ["--processes", str(options.processes), *(["--quick"] if options.quick else [])]
    page, figures = (folder / "results.md", folder / "figures") if options.quick else (None, None)
    for script, more in (
        ("compare.py", how),
        ("ablations.py", how),
        ("several_metrics.py", how),
        ("early_stopping.py", how),
        ("schedules.py", how),
        ("settings.py", how),
        ("published.py", how),
        ("wall_time.py", how),
        ("figures.py", ["--out", str(figures)] if figures else []),
        ("results_page.py", ["--out", str(page)] if page else []),
    ):
        command = [sys.executable, str(HERE / script), "--folder", str(folder), *more]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
