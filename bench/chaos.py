"""Run a study on several machines, let faults happen to all of them at random, and check that nothing is lost.

    python bench/chaos.py --minutes 20 --seed 1

PostgreSQL, two replicas of `phyla serve`, six workers, and two black-box clients with a study of their own are
real processes in network namespaces. What happens follows from the seed; when exactly it strikes does not. Every
request is recorded, and in the end compared with the rows and the files. Prints a table, and what was violated;
with `--json FILE`, writes all of it, with facts about the machine. Exit status 1 if anything was violated. Needs
Linux, `cc`, `ip`, and root or user namespaces.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from machine import facts

sys.path[:0] = map(str, Path(__file__).parents[1].glob("tests/support/*"))

import chaos_run
from chaos_world import adopt, isolated

ISOLATED = "PHYLA_CHAOS_ISOLATED"


def main() -> None:
    """Run it once, in namespaces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=1.0, help="how long faults happen, or how much there is to do"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=0.9, help="seconds between two faults, on average")
    parser.add_argument("--lease", type=float, default=5.0, help="seconds that a lease lasts")
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="instead: 1 worker, then 16, then 12 lost, then 4 new",
    )
    parser.add_argument("--json", type=Path, help="where to write what happened")
    parser.add_argument("--folder", type=Path, help="a new directory for everything, which is kept")
    arguments = parser.parse_args()
    if ISOLATED not in os.environ:
        command = [*isolated(), sys.executable, *sys.argv]
        sys.exit(subprocess.run(command, env={**os.environ, ISOLATED: "1"}, check=False).returncode)
    adopt()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="phyla-chaos-")) / "world"
    given = ("minutes", "seed", "every", "lease")
    words = [f"--{name} {getattr(arguments, name):g}" for name in given] + ["--elastic"] * arguments.elastic
    print(f"again: python bench/chaos.py {' '.join(words)}", flush=True)
    if arguments.elastic:
        trials = max(5, round(12 * arguments.minutes))
        outcome = chaos_run.elastic(folder.absolute(), seed=arguments.seed, lease_s=arguments.lease, trials=trials)
    else:
        outcome = chaos_run.run(
            folder.absolute(),
            minutes=arguments.minutes,
            seed=arguments.seed,
            every_s=arguments.every,
            lease_s=arguments.lease,
        )
        print(chaos_run.table(outcome))
    print(f"{outcome.trials} trials in {outcome.attempts} attempts; seconds: {outcome.seconds}")
    print(f"requests: {outcome.requests}\nends of programs: {outcome.exits}")
    for violation, times in Counter(outcome.violations).items():
        print(f"VIOLATED: {violation}" + (f" ({times} times)" if times > 1 else ""))
    print(*outcome.stories, sep="\n")
    print(f"{len(outcome.violations)} violations" + (f"; everything is in {folder}" if outcome.violations else ""))
    if arguments.json:
        found = {"machine": facts(folder), **outcome.to_json()}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    if not outcome.violations and arguments.folder is None:
        shutil.rmtree(folder.parent)
    sys.exit(bool(outcome.violations))


if __name__ == "__main__":
    main()
