"""Trains a small network on several processes, as one would without phyla.

torchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nproc-per-node=2 train.py --save-to . --metrics m.jsonl
"""

import argparse
import json
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 64
REPORT_EVERY = 50


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of the plane, and in which of two rings they are."""
    points = torch.randn(BATCH, 2, generator=generator)
    return points, (points.norm(dim=1, keepdim=True) > 1.2).float()


def main() -> None:
    """Train from step FROM_STEP to step TO_STEP, and save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--from-step", type=int, default=0)
    parser.add_argument("--to-step", type=int, default=1000)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--save-to", type=Path, required=True)
    parser.add_argument("--metrics", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    # torchrun sends SIGTERM on to every rank, perhaps not at the same step.
    stop = torch.zeros(1)
    signal.signal(signal.SIGTERM, lambda number, frame: stop.fill_(1))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed * 1000 + rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    if args.resume:
        state = torch.load(args.resume, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        # The optimizer's state brings the old learning rate and momentum along.
        for group in optimizer.param_groups:
            group.update(lr=args.lr, momentum=args.momentum)

    def report(**values: object) -> None:
        if rank == 0:
            with args.metrics.open("a") as file:
                file.write(json.dumps(values) + "\n")

    def save() -> None:
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, args.save_to / "checkpoint.pt")

    for step in range(args.from_step, args.to_step):
        points, targets = batch(generator)
        loss = nn.functional.binary_cross_entropy_with_logits(model(points), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        any_stops = stop.clone()
        dist.all_reduce(any_stops, dist.ReduceOp.MAX)
        if any_stops:
            save()
            report(step=step + 1, saved=True)
            break
        if (step + 1) % REPORT_EVERY == 0:
            report(step=step + 1, train_loss=loss.item())
    else:
        save()
        with torch.no_grad():
            points, targets = batch(torch.Generator().manual_seed(1))
            held_out = nn.functional.binary_cross_entropy_with_logits(model(points), targets)
        report(step=args.to_step, loss=held_out.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
