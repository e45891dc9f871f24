"""A PyTorch loop that loads and saves with phyla: what a child inherits, and what it does not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import SGD, AdamW, lr_scheduler

import phyla
from facts import raises
from phyla.errors import ConfigurationError
from phyla.integrations.torch import load, save
from phyla.worker import session_of

pytestmark = pytest.mark.xdist_group("frameworks")

OLD, NEW = 0.5, 0.02


class Chain:
    """Trials of one member, each of which goes on from the one before."""

    def __init__(self, home: Path) -> None:
        strategy = phyla.PBT(population_size=1, steps_per_trial=4, total_steps=40)
        self.study = phyla.Study("chain", {"x": phyla.Float(0, 1)}, phyla.Minimize("loss"), strategy, home=home)

    def ask(self) -> phyla.Trial:
        trial = self.study.ask()
        assert trial is not None
        return trial

    def tell(self, trial: phyla.Trial) -> None:
        self.study.tell(trial, metrics={"loss": 0.0})


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path)


def made(lr: float, *, groups: int = 1, kind: Any = SGD, **options: Any) -> tuple[torch.nn.Module, Any]:
    model = torch.nn.Linear(2, 1)
    # Later groups have smaller rates, as the first layers of a network may have.
    parameters = [
        {"params": [parameter], "lr": lr / (1 + index)}
        for index, parameter in enumerate([*model.parameters()][:groups])
    ]
    return model, kind(parameters, lr=lr, **options)


def step(model: torch.nn.Module, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def trained(chain: Chain, model: torch.nn.Module, optimizer: Any, scheduler: Any = None) -> None:
    """Train one trial, from what there is."""
    trial = chain.ask()
    objects = {"model": model, "optimizer": optimizer} | ({} if scheduler is None else {"scheduler": scheduler})
    load(trial, **objects)
    for _ in trial.steps():
        step(model, optimizer)
        if scheduler is not None:
            scheduler.step()
    assert save(trial, **objects)
    chain.tell(trial)


def test_a_child_moves_by_its_own_rate(chain: Chain) -> None:
    trained(chain, *made(OLD, groups=2, momentum=0.9))
    model, optimizer = made(NEW, groups=2, momentum=0.0)
    load(chain.ask(), model=model, optimizer=optimizer)
    before = [parameter.clone() for parameter in model.parameters()]
    step(model, optimizer)
    moved = [(old - new).max().item() for old, new in zip(before, model.parameters(), strict=True)]
    assert moved == pytest.approx([NEW, NEW / 2], rel=1e-4)


def test_a_child_inherits_weights_and_the_state_of_the_optimizer(chain: Chain) -> None:
    parent = made(OLD, kind=AdamW)
    trained(chain, *parent)
    model, optimizer = made(NEW, kind=AdamW)
    load(chain.ask(), model=model, optimizer=optimizer)
    assert torch.equal(model.weight, parent[0].weight)
    (state,) = optimizer.state.values()
    assert state["step"] == 4


def test_the_schedule_goes_on_from_the_new_rate(chain: Chain) -> None:
    model, optimizer = made(OLD)
    trained(chain, model, optimizer, lr_scheduler.CosineAnnealingLR(optimizer, T_max=40))
    model, optimizer = made(NEW)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    load(chain.ask(), model=model, optimizer=optimizer, scheduler=scheduler)
    expected = NEW * (1 + np.cos(np.pi * 4 / 40)) / 2
    assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
    assert scheduler.last_epoch == 4


def test_one_cycle_follows_its_new_maximum(chain: Chain) -> None:
    def cycle(lr: float) -> tuple[Any, Any, Any]:
        model, optimizer = made(lr, momentum=0.9)
        return model, optimizer, lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=40)

    trained(chain, *cycle(OLD))
    model, optimizer, scheduler = cycle(NEW)
    load(chain.ask(), model=model, optimizer=optimizer, scheduler=scheduler)
    rates = []
    for _ in range(20):
        step(model, optimizer)
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert max(rates) == pytest.approx(NEW, rel=0.01)


def test_a_rate_that_was_reduced_stays_reduced(chain: Chain) -> None:
    """A member that goes on with its own hyperparameters trains as if nothing had been saved."""
    model, optimizer = made(OLD)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    trial = chain.ask()
    load(trial, model=model, optimizer=optimizer, scheduler=scheduler)
    for _ in range(3):
        scheduler.step(1.0)
    assert save(trial, model=model, optimizer=optimizer, scheduler=scheduler)
    chain.tell(trial)
    model, again = made(OLD)
    load(chain.ask(), model=model, optimizer=again, scheduler=lr_scheduler.ReduceLROnPlateau(again))
    assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == pytest.approx(OLD / 100)


def test_progress_comes_back_with_its_random_numbers_and_the_next_trial_has_its_own(chain: Chain) -> None:
    def draw() -> list[float]:
        import random

        return [random.random(), float(np.random.rand()), torch.rand(()).item()]  # noqa: NPY002  # as users do

    model, optimizer = made(OLD)
    trial = chain.ask()
    for _ in trial.steps():
        draw()
        session_of(trial).stop()  # as Ctrl-C does
    assert not save(trial, model=model, optimizer=optimizer)
    expected = draw()
    chain.study.tell(trial, error="was stopped")
    trial = chain.ask()
    assert trial.progress is not None
    assert trial.progress.step == 1
    load(trial, model=model, optimizer=optimizer)
    assert draw() == expected
    assert list(trial.steps()) == [1, 2, 3]
    assert save(trial, model=model, optimizer=optimizer)
    expected = draw()
    chain.tell(trial)
    torch.manual_seed(7)
    load(chain.ask(), model=model, optimizer=optimizer)
    assert draw() != expected


def test_what_a_checkpoint_lacks_is_named(chain: Chain) -> None:
    model, optimizer = made(OLD)
    trained(chain, model, optimizer)
    trial = chain.ask()
    with raises(ConfigurationError, "state.pt", "phyla.random"):
        load(trial, model=model, optimizer=optimizer, averaged=model)
    (trial.checkpoint_dir / "other.bin").write_bytes(b"x")
    chain.tell(trial)
    with raises(ConfigurationError, "state.pt", "other.bin"):
        load(chain.ask(), model=model)
