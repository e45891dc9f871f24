"""A trial trains with its own hyperparameters, also after the states of optimizer and scheduler were loaded."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from phyla.errors import ConfigurationError
from phyla.integrations.torch import set_hyperparameters

OLD, NEW = 0.5, 0.02
EPOCHS = (0, 1, 2, 4, 5, 7, 11, 12, 13)


def optimizer_of(kind: type[Optimizer] = SGD, lr: Any = OLD, groups: int = 2, **options: Any) -> Optimizer:
    parameters = [{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(groups)]
    if isinstance(lr, list):
        parameters = [{**group, "lr": rate} for group, rate in zip(parameters, lr, strict=True)]
        lr = lr[0]
    made: Optimizer = kind(parameters, lr=lr, **options)  # type: ignore[call-arg]  # every optimizer takes lr
    return made


def sequence(optimizer: Optimizer) -> LRScheduler:
    parts: list[LRScheduler] = [
        lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=4, eta_min=0.001),
        lr_scheduler.ExponentialLR(optimizer, gamma=0.8),
        lr_scheduler.LambdaLR(optimizer, [lambda epoch: 1 / (1 + epoch)] * len(optimizer.param_groups)),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[4, 9, 12])


def chain(optimizer: Optimizer) -> LRScheduler:
    parts: list[LRScheduler] = [
        lr_scheduler.ConstantLR(optimizer, factor=0.1, total_iters=5),
        lr_scheduler.ExponentialLR(optimizer, gamma=0.9),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=40),
        lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.95 if epoch % 2 else 1.1),
    ]
    return lr_scheduler.ChainedScheduler(parts, optimizer)


SETTABLE: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda made: lr_scheduler.LambdaLR(made, lambda epoch: min(1.0, epoch / 5)),
    "MultiplicativeLR": lambda made: lr_scheduler.MultiplicativeLR(made, lambda epoch: 0.9 + 0.01 * epoch),
    "StepLR": lambda made: lr_scheduler.StepLR(made, step_size=4),
    "MultiStepLR": lambda made: lr_scheduler.MultiStepLR(made, milestones=[2, 5, 5, 13]),
    "ConstantLR": lambda made: lr_scheduler.ConstantLR(made, total_iters=5),
    "LinearLR": lambda made: lr_scheduler.LinearLR(made, start_factor=0.01, total_iters=6),
    "ExponentialLR": lambda made: lr_scheduler.ExponentialLR(made, gamma=0.7),
    "PolynomialLR": lambda made: lr_scheduler.PolynomialLR(made, total_iters=12, power=2.0),
    "CosineAnnealingLR": lambda made: lr_scheduler.CosineAnnealingLR(made, T_max=6, eta_min=0.003),
    "CosineAnnealingWarmRestarts": lambda made: lr_scheduler.CosineAnnealingWarmRestarts(made, 3, 2, 0.004),
    "SequentialLR": sequence,
    "ChainedScheduler": chain,
}
REFUSED: dict[str, tuple[Callable[[Optimizer], Any], str]] = {
    "OneCycleLR": (
        lambda made: lr_scheduler.OneCycleLR(made, max_lr=0.1, total_steps=40, cycle_momentum=False),
        "set_hyperparameters.optimizer, scheduler, max_lr=",
    ),
    "CyclicLR": (
        lambda made: lr_scheduler.CyclicLR(made, 0.01, 0.1, cycle_momentum=False),
        "leave lr= out and assign those",
    ),
}


def trained(optimizer: Optimizer, scheduler: Any, epochs: int) -> list[list[float]]:
    """Train; return the learning rates that were used."""
    used = []
    for _ in range(epochs):
        used.append(rates(optimizer))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        scheduler.step()
    return used


def rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def saved(make: Callable[[Optimizer], Any], epochs: int, **options: Any) -> tuple[Any, Any]:
    """The states that a parent left."""
    optimizer = optimizer_of(**options)
    scheduler = make(optimizer)
    trained(optimizer, scheduler, epochs)
    return copy.deepcopy(optimizer.state_dict()), copy.deepcopy(scheduler.state_dict())


def test_every_scheduler_of_pytorch_is_set_or_named() -> None:
    there = {name for name in lr_scheduler.__all__ if name != "LRScheduler"}
    assert {*SETTABLE, *REFUSED, "ReduceLROnPlateau"} == there


@pytest.mark.parametrize("name", SETTABLE)
@pytest.mark.parametrize("epochs", EPOCHS)
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_a_child_uses_its_own_rate_from_its_first_step_to_its_last(
    name: str, epochs: int, kind: type[Optimizer]
) -> None:
    make = SETTABLE[name]
    for new in (NEW, [NEW, 5 * NEW]):
        optimizer_state, scheduler_state = saved(make, epochs, kind=kind)
        before = copy.deepcopy(scheduler_state.get("base_lrs"))
        optimizer = optimizer_of(kind)
        scheduler = make(optimizer)
        optimizer.load_state_dict(optimizer_state)
        scheduler.load_state_dict(scheduler_state)
        told = set_hyperparameters(optimizer, scheduler, lr=new)

        fresh = optimizer_of(kind, lr=new)
        wanted = make(fresh)
        trained(fresh, wanted, epochs)
        assert told["lr"] == pytest.approx(rates(fresh), abs=1e-12)
        assert scheduler.get_last_lr() == pytest.approx(rates(fresh), abs=1e-12)
        expected = trained(fresh, wanted, 16)
        assert trained(optimizer, scheduler, 16) == [pytest.approx(one, abs=1e-12) for one in expected]
        assert scheduler_state.get("base_lrs") == before


@pytest.mark.parametrize("name", SETTABLE)
@pytest.mark.parametrize("scheduler_first", [False, True])
def test_a_scheduler_that_begins_anew_begins_with_the_new_rate(name: str, scheduler_first: bool) -> None:
    make = SETTABLE[name]
    state, _ = saved(make, 7)
    optimizer = optimizer_of(lr=NEW)
    if scheduler_first:
        scheduler = make(optimizer)
        optimizer.load_state_dict(state)
    else:
        optimizer.load_state_dict(state)
        scheduler = make(optimizer)
    set_hyperparameters(optimizer, scheduler, lr=NEW)
    fresh = optimizer_of(lr=NEW)
    expected = trained(fresh, make(fresh), 16)
    assert trained(optimizer, scheduler, 16) == [pytest.approx(one, abs=1e-12) for one in expected]


@pytest.mark.parametrize("name", SETTABLE)
def test_a_scheduler_made_after_the_rate_was_set_begins_with_it(name: str) -> None:
    make = SETTABLE[name]
    state, _ = saved(make, 7)
    optimizer = optimizer_of()
    optimizer.load_state_dict(state)
    set_hyperparameters(optimizer, lr=NEW)
    fresh = optimizer_of(lr=NEW)
    expected = trained(fresh, make(fresh), 16)
    assert trained(optimizer, make(optimizer), 16) == [pytest.approx(one, abs=1e-12) for one in expected]


def test_reduce_on_plateau_goes_on_reducing_from_the_new_rate() -> None:
    optimizer = optimizer_of()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for loss in (1.0, 2.0):
        scheduler.step(loss)
    assert rates(optimizer) == pytest.approx([OLD / 10] * 2)
    told = set_hyperparameters(optimizer, scheduler, lr=NEW)
    assert told["lr"] == scheduler.get_last_lr() == [NEW, NEW]
    scheduler.step(0.5)
    assert rates(optimizer) == [NEW, NEW]
    scheduler.step(3.0)
    assert rates(optimizer) == pytest.approx([NEW / 10] * 2)


@pytest.mark.parametrize("name", REFUSED)
def test_schedulers_that_would_undo_the_rate_are_named(name: str) -> None:
    make, way_out = REFUSED[name]
    optimizer = optimizer_of()
    scheduler = make(optimizer)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ConfigurationError, match=rf"scheduler {name}: .*{way_out}"):
        set_hyperparameters(optimizer, scheduler, lr=NEW, weight_decay=0.1)
    assert optimizer.state_dict() == before
    assert set_hyperparameters(optimizer, scheduler, weight_decay=0.1) == {"weight_decay": [0.1, 0.1]}


def test_the_way_out_of_one_cycle_works() -> None:
    def make(optimizer: Optimizer, peak: float) -> Any:
        return lr_scheduler.OneCycleLR(optimizer, peak, total_steps=40, cycle_momentum=False)

    optimizer_state, scheduler_state = saved(lambda made: make(made, OLD), 5)
    optimizer = optimizer_of()
    scheduler = make(optimizer, OLD)
    optimizer.load_state_dict(optimizer_state)
    scheduler.load_state_dict(scheduler_state)
    set_hyperparameters(optimizer, scheduler, max_lr=NEW, initial_lr=NEW / 25, min_lr=NEW / 25e4)
    fresh = optimizer_of()
    wanted = make(fresh, NEW)
    expected = trained(fresh, wanted, 20)[6:]
    assert trained(optimizer, scheduler, 15)[1:] == [pytest.approx(one) for one in expected]


class Mine(lr_scheduler.ExponentialLR):
    """Somebody's own scheduler."""

    def get_lr(self) -> list[float | torch.Tensor]:
        return [0.3 for _ in self.base_lrs]


def with_part(container: str, part: Callable[[Optimizer], Any]) -> Callable[[Optimizer], Any]:
    def make(made: Optimizer) -> Any:
        parts = [lr_scheduler.ConstantLR(made), part(made)]
        if container == "ChainedScheduler":
            return lr_scheduler.ChainedScheduler(parts, made)
        return lr_scheduler.SequentialLR(made, parts, [4])

    return make


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda made: Mine(made, 0.9), r"scheduler \S*test_torch\.Mine: phyla does not know"),
        (with_part("SequentialLR", lambda made: Mine(made, 0.9)), r"test_torch\.Mine in SequentialLR: phyla does"),
        (
            with_part("SequentialLR", lambda made: lr_scheduler.MultiplicativeLR(made, lambda epoch: 0.9)),
            "MultiplicativeLR in SequentialLR: it goes on from",
        ),
        (
            with_part("SequentialLR", lambda made: lr_scheduler.OneCycleLR(made, 0.1, 9, cycle_momentum=False)),
            "OneCycleLR in SequentialLR: it computes",
        ),
        (
            with_part("ChainedScheduler", lambda made: lr_scheduler.LambdaLR(made, lambda epoch: 1.0)),
            "LambdaLR in ChainedScheduler: it does more than",
        ),
        (
            with_part("ChainedScheduler", lambda made: lr_scheduler.CosineAnnealingLR(made, 5, 0.1)),
            "CosineAnnealingLR in ChainedScheduler: it does more than",
        ),
    ],
)
def test_what_cannot_be_set_in_a_scheduler_is_named(make: Callable[[Optimizer], Any], named: str) -> None:
    optimizer = optimizer_of()
    scheduler = make(optimizer)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ConfigurationError, match=named):
        set_hyperparameters(optimizer, scheduler, lr=NEW)
    assert optimizer.state_dict() == before


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_adam(kind: type[Optimizer]) -> None:
    optimizer = optimizer_of(kind)
    told = set_hyperparameters(optimizer, lr=NEW, weight_decay=0.3, betas=(0.8, 0.99), eps=1e-6)
    for group in optimizer.param_groups:
        assert [group[key] for key in ("lr", "weight_decay", "betas", "eps")] == [NEW, 0.3, (0.8, 0.99), 1e-6]
    assert told["betas"] == [(0.8, 0.99)] * 2
    set_hyperparameters(optimizer, betas=[(0.1, 0.2), (0.3, 0.4)], weight_decay=[0.0, 0.1])
    assert [group["betas"] for group in optimizer.param_groups] == [(0.1, 0.2), (0.3, 0.4)]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.1]
    set_hyperparameters(optimizer, betas=[0.7, 0.9])  # type: ignore[list-item]  # as JSON gives a pair
    assert [group["betas"] for group in optimizer.param_groups] == [(0.7, 0.9)] * 2
    with pytest.raises(
        ConfigurationError, match=r"momentum=0\.9: parameter group 0 .* has no 'momentum'; it has .*betas"
    ):
        set_hyperparameters(optimizer, lr=0.7, momentum=0.9)
    assert rates(optimizer) == [NEW, NEW]


@pytest.mark.parametrize("kind", [SGD, RMSprop])
def test_optimizers_with_momentum(kind: type[Optimizer]) -> None:
    optimizer = optimizer_of(kind)
    set_hyperparameters(optimizer, momentum=0.9, lr=NEW)
    trained(optimizer, lr_scheduler.ConstantLR(optimizer), 2)
    assert [group["momentum"] for group in optimizer.param_groups] == [0.9, 0.9]
    assert all("momentum_buffer" in state for state in optimizer.state.values())


def test_the_next_step_of_the_optimizer_uses_what_was_set() -> None:
    optimizer = optimizer_of(SGD, groups=1)
    set_hyperparameters(optimizer, lr=0.25)
    trained(optimizer, lr_scheduler.ConstantLR(optimizer, factor=1.0), 1)
    assert optimizer.param_groups[0]["params"][0].tolist() == [0.75, 0.75]


def test_a_rate_that_is_a_tensor_stays_that_tensor() -> None:
    optimizer = optimizer_of(Adam, lr=torch.tensor(OLD), groups=1)
    scheduler = lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    trained(optimizer, scheduler, 1)
    held = optimizer.param_groups[0]["lr"]
    set_hyperparameters(optimizer, scheduler, lr=NEW)
    assert optimizer.param_groups[0]["lr"] is held
    assert float(held) == pytest.approx(NEW / 2)
    trained(optimizer, scheduler, 1)
    assert rates(optimizer) == pytest.approx([NEW / 4])


def test_a_scheduler_that_was_not_passed_is_missed() -> None:
    optimizer = optimizer_of()
    lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    with pytest.warns(UserWarning, match="its next step restores the old learning rate"):
        set_hyperparameters(optimizer, lr=NEW)


def test_momentum_that_is_cycled_is_refused() -> None:
    optimizer = optimizer_of(SGD, momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    with pytest.raises(ConfigurationError, match=r"momentum cannot be set with OneCycleLR.*cycle_momentum=False"):
        set_hyperparameters(optimizer, scheduler, momentum=0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "given no hyperparameter"),
        ({"lr": math.nan}, "finite number of at least 0"),
        ({"lr": -1.0}, "finite number of at least 0"),
        ({"lr": "fast"}, "finite number of at least 0"),
        ({"lr": [0.1, 0.2, 0.3]}, "3 values for 2 parameter groups"),
        ({"initial_lr": 0.1}, "has no 'initial_lr'"),
        ({"params": 1}, "has no 'params'"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, Any], message: str) -> None:
    optimizer = optimizer_of()
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ConfigurationError, match=message):
        set_hyperparameters(optimizer, **values)
    assert optimizer.state_dict() == before


def test_the_scheduler_of_another_optimizer_is_refused() -> None:
    other = lr_scheduler.ExponentialLR(optimizer_of(groups=3), gamma=0.5)
    with pytest.raises(ConfigurationError, match="has 3 base rates and the optimizer 2 parameter groups"):
        set_hyperparameters(optimizer_of(), other, lr=NEW)
