"""Does once what most programs do first, in the process from which `forked` forks them: importing this does it."""

import phyla
from phyla import plugins
from simulation import Simulation


def warm() -> None:
    """Find the plug-ins that are installed, and compile the statements of a study in SQLite."""
    made = phyla.Study(
        "warmed",
        phyla.Space(lr=phyla.Float(0.01, 1.0, log=True)),
        phyla.Maximize("score"),
        phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2),
    )
    plugins.encode(made.rules.strategy)
    simulation = Simulation(made.rules, lambda parent, trial: (parent, {"score": float(trial.id)}))
    simulation.run_serially()
    with simulation.store.reader(simulation.study.id) as reader:
        for read in (reader.members, reader.trials, reader.checkpoints, reader.events):
            list(read())
    simulation.store.close()


warm()
