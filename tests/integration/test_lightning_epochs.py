"""Trials of Lightning, one after the other, do what one long training does: epochs, rates and steps go on."""

from pathlib import Path
from typing import Any

import pytest

import phyla
from effort import rarely
from phyla.records import JobState
from phyla.study import Results
from phyla.worker import session_of

pytestmark = [
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.filterwarnings(
        "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
        "ignore:The `srun` command is available:UserWarning",
        "ignore:The '(train|val)_dataloader' does not have many workers",
        "ignore:You're resuming from a checkpoint that ended before the epoch ended:UserWarning",
        "ignore:Skipping `val` loop:UserWarning",
    ),
]

never_read = pytest.mark.filterwarnings("ignore:train.. never read the hyperparameter")

BATCHES, TOTAL = 4, 24
"""Batches of an epoch, and of a whole training."""
Noted = list[tuple[Any, ...]]


def fit(
    noted: Noted, kind: str, stop_at: int | None = None, trial: phyla.Trial | None = None, **options: Any
) -> None:
    """Train up to the end of the trial, or of all; note the epoch and the rate of each batch.

    All batches are equal, unless they are shuffled.
    """
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch.optim import SGD, lr_scheduler
    from torch.utils.data import DataLoader

    from phyla.integrations.lightning import PhylaCallback

    class Line(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.automatic_optimization = kind != "two"

        def on_train_batch_start(self, *_: Any) -> None:
            rates = [one["lr"] for each in self.trainer.optimizers for one in each.param_groups]
            noted.append((self.trainer.global_step, self.trainer.current_epoch, rates, self.layer.weight.item()))
            if trial is not None and trial.token == 1 and self.trainer.global_step + 1 == stop_at:
                session_of(trial).stop()

        def on_train_epoch_start(self) -> None:
            noted.append(("epoch", self.trainer.current_epoch))

        def training_step(self, batch: Any) -> Any:
            loss = self.layer(batch).square().mean()
            for one in [] if self.automatic_optimization else self.optimizers():
                one.zero_grad()
                self.manual_backward(self.layer(batch).square().mean())
                one.step()
            return loss

        def validation_step(self, batch: Any) -> None:
            self.log("loss", self.layer(batch).square().mean() + 1)

        def configure_optimizers(self) -> Any:
            made = SGD(self.parameters(), lr=0.1)
            if kind == "two":
                return [made, SGD(self.parameters(), lr=0.01)]
            if kind == "plateau":
                scheduler: Any = lr_scheduler.ReduceLROnPlateau(made, patience=0, threshold=0.9)
                return {"optimizer": made, "lr_scheduler": {"scheduler": scheduler, "monitor": "loss"}}
            scheduler = lr_scheduler.StepLR(made, 1, 0.5)
            return {"optimizer": made, "lr_scheduler": {"scheduler": scheduler, "frequency": 2}}

    torch.manual_seed(0)
    callback = trial and PhylaCallback(trial)
    data: Any = torch.ones(BATCHES, 1)
    shuffled = kind == "shuffled"
    batches: Any = DataLoader(data.cumsum(0) / BATCHES if shuffled else data, shuffle=shuffled)
    Trainer(
        callbacks=[callback] if callback else [],
        default_root_dir=callback and callback.root_dir,
        accelerator="cpu",
        logger=False,
        log_every_n_steps=1,
        enable_checkpointing=callback is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_steps": TOTAL, **options},
    ).fit(Line(), batches, DataLoader(data), ckpt_path=callback and callback.ckpt_path)


def run(home: Path, noted: Noted, steps: int, **how: Any) -> Results:
    return phyla.Study(
        "epochs",
        {"lr": phyla.Float(0.1, 0.2)},
        phyla.Minimize("loss"),
        phyla.PBT(population_size=1, steps_per_trial=steps, total_steps=TOTAL),
        lambda trial: fit(noted, trial=trial, **how),
        home=home,
    ).run()


@never_read
@pytest.mark.parametrize(
    ("kind", "steps", "stop_at"),
    [
        ("plateau", 4, None),
        ("every second epoch", 6, None),
        ("every second epoch", 8, 10),
        ("plateau", 8, 12),
        # The same stops, with the other kind; and a trial that ends between these.
        rarely("every second epoch", 4, None),
        rarely("plateau", 6, None),
        rarely("plateau", 8, 10),
        rarely("every second epoch", 8, 12),
        rarely("every second epoch", 8, None),
        rarely("plateau", 8, None),
    ],
)
def test_what_goes_by_epochs_goes_on_in_the_next_trial(
    kind: str, steps: int, stop_at: int | None, tmp_path: Path
) -> None:
    noted: Noted = []
    results = run(tmp_path, noted, steps, kind=kind, stop_at=stop_at)
    assert [row.failures for row in results.trials()] == [0] * (TOTAL // steps)
    assert [row.token for row in results.trials()].count(2) == (stop_at is not None)
    wanted: Noted = []
    fit(wanted, kind)
    assert len({rates[0] for _, _, rates, _ in (each for each in wanted if len(each) > 2)}) > 2
    assert noted == wanted


def test_progress_has_the_steps_of_all_optimizers(tmp_path: Path) -> None:
    noted: Noted = []
    (row,) = run(tmp_path, noted, TOTAL, kind="two", stop_at=11).trials()
    assert (row.state, row.token, row.failures) == (JobState.COMPLETED, 2, 0)
    assert row.progress_step == 12
    wanted: Noted = []
    fit(wanted, "two")
    assert noted == wanted


@never_read
def test_a_shuffled_loader_has_the_same_order_after_a_stop_between_two_epochs(tmp_path: Path) -> None:
    undisturbed: Noted = []
    run(tmp_path / "undisturbed", undisturbed, 8, kind="shuffled")
    stopped: Noted = []
    results = run(tmp_path / "stopped", stopped, 8, kind="shuffled", stop_at=12)
    assert [row.token for row in results.trials()] == [1, 2, 1]
    assert stopped == undisturbed


@never_read
def test_the_end_of_a_trial_is_scored_also_between_two_validations(tmp_path: Path) -> None:
    def scores(home: Path, **options: Any) -> list[float | None]:
        return [row.fitness for row in run(home, [], 12, kind="every second epoch", **options).trials()]

    assert scores(tmp_path / "seldom", check_val_every_n_epoch=2) == scores(tmp_path / "often")
