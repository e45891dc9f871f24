"""A population of torchrun jobs: `phyla run examples/torchrun/study.py`."""

from pathlib import Path

import phyla

study = phyla.Study(
    name="torchrun",
    space={"lr": phyla.Float(1e-3, 1.0, log=True), "momentum": phyla.Float(0.0, 0.95)},
    objective=phyla.Minimize("loss"),
    strategy=phyla.PBT(population_size=4, steps_per_trial=250, total_steps=1000),
    train=phyla.Command(
        [
            *("torchrun", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=2", "train.py"),
            *(
                "--lr",
                "{lr}",
                "--momentum",
                "{momentum}",
                "--from-step",
                "{start_step}",
                "--to-step",
                "{end_step}",
            ),
            *("--seed", "{seed}", "--save-to", "{save_to}", "--metrics", "{metrics}"),
            ["--resume", "{source:*.pt}"],
        ],
        cwd=Path(__file__).parent,
    ),
)

if __name__ == "__main__":
    print(study.run(workers=1).best)
