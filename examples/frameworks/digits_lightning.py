"""A LightningModule on images of handwritten digits.

A trial is one epoch of 40 batches, so that shuffled data need no state of their own.

Run it with `phyla run examples/frameworks/digits_lightning.py --workers 2`.
"""

import logging

import torch
from lightning import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

import phyla
from phyla.integrations.lightning import PhylaCallback

TOTAL = 200
Batch = tuple[torch.Tensor, torch.Tensor]


class Digits(LightningModule):  # type: ignore[misc]  # mypy does not read Lightning
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


def setup(worker: phyla.WorkerContext) -> TensorDataset:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    digits = load_digits()
    return TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))


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
    shuffled = DataLoader(Subset(trial.worker, range(1280)), batch_size=32, shuffle=True)
    validation = DataLoader(Subset(trial.worker, range(1280, 1797)), batch_size=517)
    trainer.fit(Digits(**trial.params.flat()), shuffled, validation, ckpt_path=callback.ckpt_path)


study = phyla.Study(
    name="digits-lightning",
    space=phyla.Space(lr=phyla.Float(1e-4, 1e-1, log=True), dropout=phyla.Float(0.0, 0.5)),
    objective=phyla.Minimize("loss"),
    strategy=phyla.PBT(population_size=4, steps_per_trial=40, total_steps=TOTAL),
    train=train,
    setup=setup,
)

if __name__ == "__main__":
    print(study.run(workers=2).best)
