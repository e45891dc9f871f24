"""Two ranks that share the trials of one attached study, and say what they see.

Arguments: the home; seconds that a step takes.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import phyla
from phyla.integrations.ranks import shared_trials
from phyla.integrations.steps import FrameworkSteps
from phyla.integrations.torch import load, save

HOME = Path(sys.argv[1])
TOTAL = 8


class Chain:
    """All steps that led here, with the random number that each drew."""

    def __init__(self) -> None:
        self.links: list[tuple[int, int, float]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"links": self.links}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.links = state["links"]


def steps_of(trial: phyla.Trial) -> Iterator[int]:
    """Yield the steps of a trial; for member 1 as frameworks with their own loops count them."""
    if trial.member == 0:
        yield from trial.steps()
        return
    count = trial.source.step if trial.source else 0
    steps = FrameworkSteps(trial, count)
    steps.check_length("the loop", TOTAL)
    while steps.going:
        yield count
        count += 1
        steps.reach(count)


def train(trial: phyla.Trial, rank: int, said: Any) -> None:
    """Train on one rank."""
    chain = Chain()
    load(trial, chain=chain)
    assert trial.cached_state in (None, chain.links)
    if trial.progress is None:
        torch.manual_seed(trial.seed + rank)
    for step in steps_of(trial):
        chain.links.append((trial.id, step, torch.rand(()).item()))
        print(trial.id, step, dict(trial.params), trial.seed, trial.working_dir, file=said, flush=True)
        if step % 4 == 1:
            save(trial, chain=chain)
            trial.save_progress()
        time.sleep(float(sys.argv[2]))
    if save(trial, chain=chain):
        own = torch.Generator().manual_seed(trial.seed + rank)
        assert [link[2] for link in chain.links if link[0] == trial.id] == torch.rand(4, generator=own).tolist()
        trial.report(score=trial.params["lr"] * (1 - rank))
        trial.cached_state = chain.links


def main() -> None:
    """Train until the study ends."""
    rendezvous = HOME.with_name("rendezvous").as_uri()
    dist.init_process_group("gloo", rendezvous, rank=int(os.environ["RANK"]), world_size=2)
    rank = dist.get_rank()
    strategy = phyla.PBT(population_size=2, steps_per_trial=4, total_steps=TOTAL, quorum=1.0)
    study = phyla.Study("ranks", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), strategy, home=HOME)
    with (
        phyla.attach(study) if rank == 0 else nullcontext() as job,
        (HOME.parent / f"rank{rank}").open("a") as said,
    ):
        for trial in shared_trials(job.trials() if job else None):
            train(trial, rank, said)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
