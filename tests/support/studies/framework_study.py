"""Runs the study of an example twice.

`python framework_study.py EXAMPLE FOLDER`: once undisturbed; and once killed in the middle of a trial, resumed,
interrupted by SIGTERM in the middle of another, and resumed again. Each has a home of that name in the folder.
"""

import itertools
import os
import runpy
import signal
import sys
from pathlib import Path

import phyla
from phyla.worker import session_of

KILLED, STOPPED = (0, 1), (1, 1)
"""Member and generation of the two trials that are disturbed, which have parents."""
SIGNALS = {KILLED: signal.SIGKILL, STOPPED: signal.SIGTERM}
REPORT = 2
"""The report at which they are."""
STEPS = 15
"""Of a trial: three reports of each example."""


def run(example: phyla.Study, home: Path, *, disturbed: bool) -> None:
    """Run two generations of two members."""

    def train(trial: phyla.Trial) -> object:
        session, reports = session_of(trial), itertools.count(1)

        def disturb() -> None:
            if next(reports) == REPORT:
                os.kill(os.getpid(), SIGNALS[trial.member, trial.generation])

        if disturbed and trial.token == 1 and (trial.member, trial.generation) in SIGNALS:
            session.on_report = disturb
        assert example.train is not None
        return example.train(trial)

    phyla.Study(
        example.name,
        example.rules.space,
        example.rules.objective,
        phyla.PBT(
            population_size=2,
            steps_per_trial=STEPS,
            total_steps=2 * STEPS,
            quorum=1.0,
            exploit=phyla.Truncation(0.5),
        ),
        train,
        setup=example.declared.setup,
        home=home,
        retention=phyla.Retention(every_steps=1),
    ).run()


def main() -> None:
    """Run both."""
    study: phyla.Study = runpy.run_path(sys.argv[1], run_name="study")["study"]
    folder = Path(sys.argv[2])
    for name, status in (("undisturbed", 0), ("disturbed", -signal.SIGKILL)):
        child = os.fork()
        if not child:
            run(study, folder / name, disturbed=name == "disturbed")
            sys.stdout.flush()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status, name
    interrupted = False
    try:
        run(study, folder / "disturbed", disturbed=True)
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted
    run(study, folder / "disturbed", disturbed=True)


if __name__ == "__main__":
    main()
