"""Two ranks that share the trials of one attached study, and say what they see.

Arguments: the home; seconds that a step takes.
"""

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch.distributed as dist

import phyla
from phyla.integrations.ranks import shared_trials

HOME = Path(sys.argv[1])


def main() -> None:
    """Train until the study ends."""
    rendezvous = HOME.with_name("rendezvous").as_uri()
    dist.init_process_group("gloo", rendezvous, rank=int(os.environ["RANK"]), world_size=2)
    rank = dist.get_rank()
    strategy = phyla.PBT(population_size=2, steps_per_trial=4, total_steps=8, quorum=1.0)
    study = phyla.Study("ranks", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), strategy, home=HOME)
    with (
        phyla.attach(study) if rank == 0 else nullcontext() as job,
        (HOME.parent / f"rank{rank}").open("a") as said,
    ):
        for trial in shared_trials(job.trials() if job else None):
            chain = [] if trial.source is None else json.loads((trial.source.path / f"{rank}.json").read_text())
            assert trial.cached_state in (None, chain)
            for step in trial.steps():
                chain.append([trial.id, step])
                print(trial.id, step, dict(trial.params), trial.seed, trial.working_dir, file=said, flush=True)
                if step % 4 == 1:
                    (trial.checkpoint_dir / f"{rank}.json").write_text(json.dumps(chain))
                    trial.save_progress()
                time.sleep(float(sys.argv[2]))
            (trial.checkpoint_dir / f"{rank}.json").write_text(json.dumps(chain))
            trial.report(score=trial.params["lr"] * (1 - rank))
            trial.cached_state = chain
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
