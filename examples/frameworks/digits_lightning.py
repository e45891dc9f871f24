"""A LightningModule on images of handwritten digits.

The batches have a state, which Lightning saves: a trial may end, or be stopped, in the middle of an epoch.

Run it with `phyla run examples/frameworks/digits_lightning.py --workers 2`.
"""

import logging
from collections.abc import Iterator

import numpy as np
import torch
from lightning import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import phyla
from phyla.integrations.lightning import PhylaCallback

TOTAL = 200
Batch = tuple[torch.Tensor, torch.Tensor]


class Batches:
    """Random batches of images and labels, which go on where they were."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, seed: int) -> None:
        self.images, self.labels, self.seed = images, labels, seed
        self.position = 0

    def __len__(self) -> int:
        return len(self.labels) // 32

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(len(self)):
            batch = np.random.default_rng([self.seed, self.position]).integers(len(self.labels), size=32)
            self.position += 1
            yield self.images[batch], self.labels[batch]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Digits(LightningModule):
    """One hidden layer."""

    def __init__(self, lr: float, dropout: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(32, 10)
        )

    def training_step(self, batch: Batch) -> torch.Tensor:
        loss = functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Batch) -> None:
        self.log("loss", functional.cross_entropy(self.model(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


def setup(worker: phyla.WorkerContext) -> dict[str, Batch]:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    return {"train": (images[:1300], labels[:1300]), "validation": (images[1300:], labels[1300:])}


def train(trial: phyla.Trial) -> None:
    seed_everything(trial.seed, verbose=False)
    callback = PhylaCallback(trial)
    trainer = Trainer(
        max_steps=TOTAL,
        default_root_dir=callback.root_dir,
        callbacks=[callback],
        log_every_n_steps=5,
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    images, labels = trial.worker["train"]
    batches = Batches(images, labels, trial.seed)
    validation = DataLoader(TensorDataset(*trial.worker["validation"]), batch_size=497)
    trainer.fit(Digits(**trial.params.flat()), batches, validation, ckpt_path=callback.ckpt_path)


study = phyla.Study(
    name="digits-lightning",
    space=phyla.Space(lr=phyla.Float(1e-4, 1e-1, log=True), dropout=phyla.Float(0.0, 0.5)),
    objective=phyla.Minimize("loss"),
    strategy=phyla.PBT(population_size=4, steps_per_trial=25, total_steps=TOTAL),
    train=train,
    setup=setup,
)

if __name__ == "__main__":
    print(study.run(workers=2).best)
