"""Inject faults of storage into running studies, at random, and check that nothing is lost, silent or harmed.

    python bench/faults.py --faults 300 --seed 1

Prints a table, and every violation with the command that repeats it; with `--json FILE`, writes what happened,
with facts about the machine. Exit status 1 if anything was violated. Needs Linux and `cc`. What is left to chance
follows from the seed; when exactly a fault strikes does not.
"""

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from machine import facts

sys.path[:0] = map(str, Path(__file__).parents[1].glob("tests/support/*"))

from fault_cases import KINDS, Outcome, run_case


def main() -> None:
    """Run cases until there were enough faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=300, help="how many faults to inject in all")
    parser.add_argument("--each", type=int, default=3, help="faults in one study, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=sorted(KINDS), action="append", help="only faults of this kind")
    parser.add_argument("--jobs", type=int, default=2, help="studies at the same time")
    parser.add_argument("--json", type=Path, help="where to write what happened")
    parser.add_argument("--folder", type=Path, help="where studies are; kept if something was wrong")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="phyla-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    kinds = arguments.kind or list(KINDS)
    seed = arguments.seed
    with ThreadPoolExecutor(arguments.jobs) as pool:
        while (left := arguments.faults - sum(one.injected for one in outcomes)) > 0:
            # Not more studies than may still be needed, and always whole rounds of all kinds.
            rounds = max(1, left // (arguments.each * len(kinds)))
            cases = [(kind, seed + number) for number in range(rounds) for kind in kinds]
            seed += rounds
            for outcome in pool.map(lambda case: run_case(case[0], case[1], arguments.each, folder), cases):
                outcomes.append(outcome)
                show(outcome, arguments.each)
    print(table(outcomes))
    if arguments.json:
        found = {"machine": facts(folder), "seed": arguments.seed, "cases": [asdict(one) for one in outcomes]}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(any(one.violations for one in outcomes))


def show(outcome: Outcome, each: int) -> None:
    """Print what was violated, and how to see it again."""
    if outcome.violations:
        print(f"\n{outcome}")
        again = f"--kind {outcome.kind!r} --seed {outcome.seed} --faults 1 --each {each}"
        print(f"  again: python bench/faults.py {again}")
    sys.stdout.flush()


def table(outcomes: list[Outcome]) -> str:
    """Return one row for each kind."""
    lines = [
        "| fault | injected | studies | never stopped | stops | stopped, healed, finished | violations |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in [*dict.fromkeys(one.kind for one in outcomes), None]:
        those = [one for one in outcomes if kind in (None, one.kind)]
        numbers = [
            sum(one.injected for one in those),
            len(those),
            sum(one.finished_at_once for one in those),
            sum(len(one.stops) for one in those),
            sum(bool(one.stops) and not one.violations for one in those),
            sum(len(one.violations) for one in those),
        ]
        lines.append(f"| {kind or 'all'} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
