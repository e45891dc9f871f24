"""A plain PyTorch loop on images of handwritten digits, with a learning rate schedule over the whole study.

Run it with `phyla run examples/frameworks/digits_pytorch.py --workers 2`.
"""

import torch
from sklearn.datasets import load_digits
from torch.nn import functional

import phyla
from phyla.integrations.torch import load, save

TOTAL = 200
Data = dict[str, tuple[torch.Tensor, torch.Tensor]]


def setup(worker: phyla.WorkerContext) -> Data:
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    return {"train": (images[:1300], labels[:1300]), "validation": (images[1300:], labels[1300:])}


def train(trial: phyla.Trial) -> None:
    torch.manual_seed(trial.seed)
    images, labels = trial.worker["train"]
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 32),
        torch.nn.ReLU(),
        torch.nn.Dropout(trial.params["dropout"]),
        torch.nn.Linear(32, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.params["lr"], weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=TOTAL)
    load(trial, model=model, optimizer=optimizer, scheduler=scheduler)

    for step in trial.steps():
        batch = torch.randint(len(labels), (32,))
        loss = functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        trial.report({"train/loss": loss.item()}, step=step)

    if save(trial, model=model, optimizer=optimizer, scheduler=scheduler):
        images, labels = trial.worker["validation"]
        model.eval()
        with torch.no_grad():
            trial.report(loss=functional.cross_entropy(model(images), labels).item())


study = phyla.Study(
    name="digits-pytorch",
    space=phyla.Space(lr=phyla.Float(1e-4, 1e-1, log=True), dropout=phyla.Float(0.0, 0.5)),
    objective=phyla.Minimize("loss"),
    strategy=phyla.PBT(population_size=4, steps_per_trial=25, total_steps=TOTAL),
    train=train,
    setup=setup,
)

if __name__ == "__main__":
    print(study.run(workers=2).best)
