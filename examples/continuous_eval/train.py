"""Train a small language model on Python's standard library, and write a checkpoint now and then.

It is a training job like any other: it knows nothing of who reads its checkpoints. Run it with
`python train.py --out runs/lm`; started again, it goes on from its newest checkpoint.
"""

import argparse
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import stdlib_text
import torch
from char_gru import CharGRU, losses
from torch import Tensor

WINDOWS = 32
LENGTH = 64
LEARNING_RATE = 4e-3
CONFIG = {"vocabulary": stdlib_text.VOCABULARY, "width": 128}


def batch(text: stdlib_text.Text, seed: int, step: int) -> Tensor:
    """Return the windows of one step, which depend on nothing else, so that a resumed run sees the same ones."""
    starts = np.random.default_rng([seed, step]).integers(len(text) - LENGTH, size=(WINDOWS, 1))
    return torch.from_numpy(text[starts + np.arange(LENGTH + 1)].astype(np.int64))


def newest(checkpoints: Path) -> Path | None:
    """Return the newest checkpoint that was written to its end; torch's archives have their table there."""
    whole = [path for path in checkpoints.glob("step_*.pt") if zipfile.is_zipfile(path)]
    return max(whole, default=None)


def spoil(model: CharGRU, seed: int) -> None:
    """Multiply the output layer by noise. It is good at heart: within some hundred steps, training mends it."""
    weight = model.output.weight
    with torch.no_grad():
        weight *= 1 + 0.5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lm"), help="directory of the run")
    parser.add_argument("--steps", type=int, default=2000, help="steps to train")
    parser.add_argument("--every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="keep only the N newest; 0 keeps all")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    help_spoil = "spoil the weights just before the checkpoint of this step; training then mends them"
    parser.add_argument("--inject-regression", type=int, metavar="STEP", help=help_spoil)
    args = parser.parse_args()
    if args.inject_regression is not None and args.inject_regression % args.every:
        parser.error(f"--inject-regression must be a step with a checkpoint: a multiple of {args.every}")
    return args


def main() -> None:
    """Train, and write checkpoints."""
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    checkpoints: Path = args.out / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    model = CharGRU(**CONFIG)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    begun = 0
    source = newest(checkpoints)
    if source is not None:
        saved: dict[str, Any] = torch.load(source, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begun = saved["step"]
        print(f"resuming from {source} at step {begun}", flush=True)
    done: Path = checkpoints / "DONE"
    done.unlink(missing_ok=True)
    text = stdlib_text.training()
    print(f"{len(text):,} characters, {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    started, since = time.perf_counter(), []
    for step in range(begun + 1, args.steps + 1):
        loss = losses(model, batch(text, args.seed, step))[0].mean()
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - 0.9 * step / args.steps)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        since.append(loss.item())
        if step == args.inject_regression:
            spoil(model, args.seed)
            print(f"step {step}: spoiling the weights", flush=True)
        if step % args.every == 0 or step == args.steps:
            state = {
                "step": step,
                "config": CONFIG,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            torch.save(state, checkpoints / f"step_{step:06d}.pt")
            if args.keep:
                for old in sorted(checkpoints.glob("step_*.pt"))[: -args.keep]:
                    old.unlink()
            seconds = time.perf_counter() - started
            print(f"step {step}: loss {np.mean(since):.4f} nats per character, {seconds:.1f} s", flush=True)
            since = []
    done.write_text(f"{args.steps}\n")


if __name__ == "__main__":
    main()
