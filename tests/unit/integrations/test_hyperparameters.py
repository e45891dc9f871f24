"""Optimizers and schedulers keep what they were made with, also when the states of a parent are loaded."""

import copy
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from effort import rarely
from facts import raises
from phyla.errors import ConfigurationError
from phyla.integrations.hyperparameters import keep_hyperparameters

pytestmark = pytest.mark.xdist_group("frameworks")
"""The first step of an optimizer imports more of PyTorch, which one process of tests does."""

OLD, NEW = 0.5, 0.02
EPOCHS = (0, 1, 2, 4, 5, 7, 11, 12, 13)
OPTIONS: tuple[dict[str, Any], ...] = ({"kind": SGD, "momentum": 0.9}, {"kind": AdamW})


def optimizer_of(kind: type[Optimizer] = SGD, lr: Any = OLD, groups: int = 2, **options: Any) -> Optimizer:
    parameters = [{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(groups)]
    if isinstance(lr, list):
        parameters = [{**group, "lr": rate} for group, rate in zip(parameters, lr, strict=True)]
        lr = lr[0]
    made: Optimizer = kind(parameters, lr=lr, **options)
    return made


def sequence(optimizer: Optimizer) -> LRScheduler:
    parts: list[LRScheduler] = [
        lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=4, eta_min=0.001),
        lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.8),
        lr_scheduler.LambdaLR(optimizer, [lambda epoch: 1 / (1 + epoch)] * len(optimizer.param_groups)),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[4, 9, 12])


def chain(optimizer: Optimizer) -> LRScheduler:
    parts: list[LRScheduler] = [
        lr_scheduler.ConstantLR(optimizer, factor=0.1, total_iters=5),
        lr_scheduler.ExponentialLR(optimizer, gamma=0.9),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=10, eta_min=0.001),
        Mine(optimizer, 3),
    ]
    return lr_scheduler.ChainedScheduler(parts, optimizer)


class Mine(lr_scheduler.StepLR):
    """Somebody's own scheduler."""

    def get_lr(self) -> list[float | torch.Tensor]:
        return [group["lr"] * (0.8 if self.last_epoch % 3 else 1.1) for group in self.optimizer.param_groups]


def base(optimizer: Optimizer) -> float:
    return max(rates(optimizer))


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
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
    "CyclicLR": lambda made: lr_scheduler.CyclicLR(made, base(made) / 10, base(made), 3),
    "OneCycleLR": lambda made: lr_scheduler.OneCycleLR(made, max_lr=rates(made), total_steps=40),
    "Mine": lambda made: Mine(made, 3),
}


def trained(optimizer: Optimizer, scheduler: Any, epochs: int) -> list[list[float]]:
    """Train; return the learning rates and momenta that were used."""
    used = []
    for _ in range(epochs):
        used.append(rates(optimizer) + [group.get("momentum", 0.0) for group in optimizer.param_groups])
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


def test_every_scheduler_of_pytorch_is_tested() -> None:
    there = {name for name in lr_scheduler.__all__ if name != "LRScheduler"}
    assert {*SCHEDULERS, "ReduceLROnPlateau"} - {"Mine"} == there


def turns() -> list[Any]:
    """All schedulers, epochs and optimizers; on each change a sixth, and one scheduler after all epochs."""
    return [
        case if place % 6 == 0 or (name == "SequentialLR" and case[2] is OPTIONS[0]) else rarely(*case)
        for number, name in enumerate(SCHEDULERS)
        for place, case in enumerate(((name, epochs, options) for epochs in EPOCHS for options in OPTIONS), number)
    ]


@pytest.mark.parametrize(("name", "epochs", "options"), turns())
def test_a_child_uses_its_own_rate_from_its_first_step_to_its_last(
    name: str, epochs: int, options: dict[str, Any]
) -> None:
    make = SCHEDULERS[name]
    for new in (NEW, [NEW, 5 * NEW]):
        optimizer_state, scheduler_state = saved(make, epochs, **options)
        before = copy.deepcopy(scheduler_state)
        optimizer = optimizer_of(lr=new, **options)
        scheduler = make(optimizer)
        with warnings.catch_warnings(action="error"), keep_hyperparameters(optimizer, scheduler):
            optimizer.load_state_dict(optimizer_state)
            scheduler.load_state_dict(scheduler_state)

        fresh = optimizer_of(lr=new, **options)
        wanted = make(fresh)
        trained(fresh, wanted, epochs)
        assert rates(optimizer) == scheduler.get_last_lr() == rates(fresh)
        assert trained(optimizer, scheduler, 16) == trained(fresh, wanted, 16)
        assert scheduler_state.get("base_lrs") == before.get("base_lrs")


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("scheduler_first", [False, True])
def test_a_scheduler_that_begins_anew_begins_with_the_new_rate(name: str, scheduler_first: bool) -> None:
    make = SCHEDULERS[name]
    state, _ = saved(make, 7)
    optimizer = optimizer_of(lr=NEW)
    schedulers = [make(optimizer)] if scheduler_first else []
    with keep_hyperparameters(optimizer, *schedulers):
        optimizer.load_state_dict(state)
    scheduler = schedulers[0] if schedulers else make(optimizer)
    fresh = optimizer_of(lr=NEW)
    assert trained(optimizer, scheduler, 16) == trained(fresh, make(fresh), 16)


@pytest.mark.parametrize("loads", [False, True])
def test_a_scheduler_that_took_its_steps_before_takes_none_again(loads: bool) -> None:
    make = SCHEDULERS["StepLR"]
    state, scheduler_state = saved(make, 4)
    optimizer = optimizer_of(lr=NEW)
    scheduler = make(optimizer)
    trained(optimizer, scheduler, 4)
    with keep_hyperparameters(optimizer, scheduler):
        optimizer.load_state_dict(state)
        if loads:
            scheduler.load_state_dict(scheduler_state)
    assert scheduler.last_epoch == 4
    assert rates(optimizer) == pytest.approx([NEW / 10] * 2)


def test_what_a_scheduler_was_made_with_is_kept_too() -> None:
    _, state = saved(lambda made: lr_scheduler.ExponentialLR(made, gamma=0.5), 3)
    optimizer = optimizer_of(lr=1.0)
    scheduler = lr_scheduler.ExponentialLR(optimizer, gamma=0.1)
    with keep_hyperparameters(optimizer, scheduler):
        scheduler.load_state_dict(state)
    assert rates(optimizer) == pytest.approx([1e-3, 1e-3])


def test_two_schedulers_of_one_optimizer_take_their_steps_in_turns() -> None:
    def make(optimizer: Optimizer) -> list[Any]:
        return [lr_scheduler.CosineAnnealingLR(optimizer, 10, 0.001), lr_scheduler.ExponentialLR(optimizer, 0.9)]

    def train(optimizer: Optimizer, schedulers: list[Any], steps: int) -> list[float]:
        for _ in range(steps):
            optimizer.step()
            for one in schedulers:
                one.step()
        return rates(optimizer)

    parent = optimizer_of()
    its = make(parent)
    train(parent, its, 4)
    optimizer = optimizer_of(lr=NEW)
    schedulers = make(optimizer)
    with keep_hyperparameters(*schedulers, optimizer):
        optimizer.load_state_dict(parent.state_dict())
        for one, other in zip(schedulers, its, strict=True):
            one.load_state_dict(other.state_dict())
    fresh = optimizer_of(lr=NEW)
    assert rates(optimizer) == train(fresh, make(fresh), 4)


@pytest.mark.parametrize("new", [OLD, NEW])
def test_reduce_on_plateau_keeps_its_factor(new: float) -> None:
    def make(lr: float) -> tuple[Optimizer, Any]:
        optimizer = optimizer_of(lr=lr)
        return optimizer, lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)

    parent, reducing = make(OLD)
    with keep_hyperparameters(parent, reducing):
        pass  # a fresh start
    for loss in (1.0, 2.0):
        reducing.step(loss)
    optimizer, scheduler = make(new)
    with keep_hyperparameters(optimizer, scheduler):
        optimizer.load_state_dict(parent.state_dict())
        scheduler.load_state_dict(reducing.state_dict())
    assert rates(optimizer) == pytest.approx([new / 10] * 2)
    scheduler.step(0.5)
    assert rates(optimizer) == pytest.approx([new / 10] * 2)
    scheduler.step(3.0)
    assert rates(optimizer) == pytest.approx([new / 100] * 2)


def test_reduce_on_plateau_keeps_its_factor_however_often_it_is_kept() -> None:
    optimizer = optimizer_of()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    with keep_hyperparameters(optimizer, scheduler):
        pass
    for loss in (1.0, 2.0):
        scheduler.step(loss)
    for _ in range(2):
        with keep_hyperparameters(optimizer, scheduler):
            optimizer.load_state_dict(optimizer.state_dict())
        assert rates(optimizer) == pytest.approx([OLD / 10] * 2)


def test_reduce_on_plateau_after_a_training_elsewhere_begins_with_the_new_rate() -> None:
    optimizer = optimizer_of(lr=NEW)
    with keep_hyperparameters(optimizer, lr_scheduler.ReduceLROnPlateau(optimizer)):
        optimizer.load_state_dict(optimizer_of(lr=OLD).state_dict())
    assert rates(optimizer) == [NEW, NEW]


def test_all_hyperparameters_are_kept_and_the_averages_are_loaded() -> None:
    parent = optimizer_of(AdamW)
    trained(parent, lr_scheduler.ConstantLR(parent), 3)
    optimizer = optimizer_of(AdamW, lr=NEW, weight_decay=0.3, betas=(0.8, 0.99), eps=1e-6)
    optimizer.param_groups[1]["weight_decay"] = 0.0
    with keep_hyperparameters(optimizer):
        optimizer.load_state_dict(parent.state_dict())
    first, second = optimizer.param_groups
    for group in (first, second):
        assert [group[key] for key in ("lr", "betas", "eps")] == [NEW, (0.8, 0.99), 1e-6]
    assert (first["weight_decay"], second["weight_decay"]) == (0.3, 0.0)
    assert all(state["step"] == 3 for state in optimizer.state.values())


class Counting(SGD):
    """Keeps a part of its state in the parameter groups, as schedule-free optimizers and Prodigy do."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        for group in self.param_groups:
            group["steps"] = 0
        self.defaults["steps"] = 0

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] += 1
        return super().step(closure)


def test_state_in_the_parameter_groups_is_loaded() -> None:
    parent = optimizer_of(Counting)
    parent.step()
    optimizer = optimizer_of(Counting, lr=NEW)
    with keep_hyperparameters(optimizer):
        optimizer.load_state_dict(parent.state_dict())
    assert [(group["lr"], group["steps"]) for group in optimizer.param_groups] == [(NEW, 1), (NEW, 1)]


class Handing(AdamW):
    """Somebody's own optimizer, which names only what it looks at."""

    def __init__(self, params: Any, lr: float = 0.1, **others: Any) -> None:
        super().__init__(params, lr, **others)


def test_hyperparameters_that_a_subclass_hands_on_are_kept() -> None:
    optimizer = optimizer_of(Handing, lr=NEW, weight_decay=0.3, betas=(0.8, 0.99))
    with keep_hyperparameters(optimizer):
        optimizer.load_state_dict(optimizer_of(Handing, weight_decay=0.1).state_dict())
    assert [(group["weight_decay"], group["betas"]) for group in optimizer.param_groups] == [
        (0.3, (0.8, 0.99))
    ] * 2


class Wrapping(Optimizer):
    """An optimizer around another one, which takes no rate itself."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, inner.defaults)


def test_an_optimizer_around_another_one_keeps_its_rate() -> None:
    optimizer = Wrapping(optimizer_of(lr=NEW))
    with keep_hyperparameters(optimizer):
        optimizer.load_state_dict(Wrapping(optimizer_of(lr=OLD)).state_dict())
    assert rates(optimizer) == [NEW, NEW]


def test_the_next_step_uses_what_was_kept() -> None:
    optimizer = optimizer_of(lr=0.25, groups=1)
    with keep_hyperparameters(optimizer):
        optimizer.load_state_dict(optimizer_of(groups=1).state_dict())
    trained(optimizer, lr_scheduler.ConstantLR(optimizer, factor=1.0), 1)
    assert optimizer.param_groups[0]["params"][0].tolist() == [0.75, 0.75]


def test_a_rate_that_is_a_tensor_stays_one() -> None:
    def make(lr: float) -> tuple[Optimizer, Any]:
        optimizer = optimizer_of(Adam, lr=torch.tensor(lr), groups=1)
        return optimizer, lr_scheduler.ExponentialLR(optimizer, gamma=0.5)

    parent, its = make(OLD)
    trained(parent, its, 1)
    optimizer, scheduler = make(NEW)
    with keep_hyperparameters(optimizer, scheduler):
        optimizer.load_state_dict(parent.state_dict())
        scheduler.load_state_dict(its.state_dict())
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)
    assert rates(optimizer) == pytest.approx([NEW / 2])
    trained(optimizer, scheduler, 1)
    assert rates(optimizer) == pytest.approx([NEW / 4])


def test_a_scheduler_that_was_not_passed_is_missed() -> None:
    optimizer = optimizer_of()
    lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    with pytest.warns(UserWarning, match="its next step restores the old rate"):
        keep_hyperparameters(optimizer).__enter__()


def test_what_fails_to_load_leaves_its_error() -> None:
    optimizer = optimizer_of()
    with pytest.raises(ValueError, match="different number of parameter groups"), keep_hyperparameters(optimizer):
        optimizer.load_state_dict(optimizer_of(groups=3).state_dict())


def test_a_rate_is_kept_when_what_is_loaded_next_fails_and_training_goes_on() -> None:
    state, scheduler_state = saved(SCHEDULERS["StepLR"], 4)
    optimizer = optimizer_of(lr=NEW)
    scheduler = SCHEDULERS["StepLR"](optimizer)

    def load() -> None:
        with keep_hyperparameters(optimizer, scheduler):
            optimizer.load_state_dict(state)
            scheduler.load_state_dict(scheduler_state)
            state["averages"]

    with pytest.raises(KeyError, match="averages"):
        load()
    assert rates(optimizer) == pytest.approx([NEW / 10] * 2)
    trained(optimizer, scheduler, 4)
    assert rates(optimizer) == pytest.approx([NEW / 100] * 2)


def test_a_group_that_is_added_meanwhile_is_refused() -> None:
    optimizer = optimizer_of()
    added: dict[str, Any] = {"params": [torch.nn.Parameter(torch.ones(2))]}
    said = r"2 parameter groups .* 3 now: call add_param_group"
    with pytest.raises(ConfigurationError, match=said), keep_hyperparameters(optimizer):
        optimizer.add_param_group(added)


@pytest.mark.parametrize(("kind", "name"), [(AdamW, "amsgrad"), (RMSprop, "centered")])
def test_averages_that_the_parent_did_not_have_are_missed(kind: type[Optimizer], name: str) -> None:
    with keep_hyperparameters(optimizer_of(kind, **{name: True})):
        pass  # a fresh start
    for parent, child in ((True, True), (True, False), (False, False), (False, True)):
        optimizer = optimizer_of(kind, **{name: child})
        with ExitStack() as stack:
            if child and not parent:
                stack.enter_context(raises(ConfigurationError, name))
            with keep_hyperparameters(optimizer):
                optimizer.load_state_dict(optimizer_of(kind, **{name: parent}).state_dict())


@pytest.mark.parametrize("late", [False, True])
def test_what_accelerate_wraps_keeps_its_rate_and_its_schedule(late: bool) -> None:
    from accelerate import Accelerator

    def make(lr: float) -> tuple[Any, Any]:
        inner, accelerator = optimizer_of(lr=lr), Accelerator(cpu=True)
        wrapped = accelerator.prepare_optimizer(inner)
        scheduler = SCHEDULERS["StepLR"](wrapped if late else inner)
        return wrapped, accelerator.prepare_scheduler(scheduler)

    parent, its = make(OLD)
    trained(parent, its, 5)
    optimizer, scheduler = make(NEW)
    with keep_hyperparameters(optimizer, scheduler):
        optimizer.load_state_dict(parent.state_dict())
        scheduler.load_state_dict(its.state_dict())
    assert rates(optimizer) == pytest.approx([NEW / 10] * 2)
    trained(optimizer, scheduler, 3)
    assert rates(optimizer) == pytest.approx([NEW / 100] * 2)


def test_a_plateau_that_lowers_the_rate_of_a_wrapped_optimizer_keeps_its_factor() -> None:
    from accelerate import Accelerator

    def make(lr: float) -> tuple[Any, Any]:
        wrapped = Accelerator(cpu=True).prepare_optimizer(optimizer_of(lr=lr))
        return wrapped, lr_scheduler.ReduceLROnPlateau(wrapped, factor=0.1, patience=0)

    parent, its = make(OLD)
    with keep_hyperparameters(parent, its):
        pass  # a fresh start
    for _ in range(2):
        its.step(1.0)
    optimizer, scheduler = make(NEW)
    with keep_hyperparameters(optimizer, scheduler):
        optimizer.load_state_dict(parent.state_dict())
        scheduler.load_state_dict(its.state_dict())
    assert rates(optimizer) == pytest.approx([NEW / 10] * 2)


class Partitioned:
    """An optimizer of DeepSpeed with ZeRO, as far as it can be seen: no `Optimizer`, but one of PyTorch in it."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)


@pytest.mark.parametrize("wrappers", [1, 2])
def test_an_optimizer_in_that_of_deepspeed_keeps_its_rate_and_its_schedule(wrappers: int) -> None:
    parent = optimizer_of(AdamW)
    its = SCHEDULERS["StepLR"](parent)
    trained(parent, its, 5)
    inner = optimizer_of(AdamW, NEW)
    scheduler = SCHEDULERS["StepLR"](inner)
    optimizer: Any = inner
    for _ in range(wrappers):  # Accelerate wraps DeepSpeed's once more.
        optimizer = Partitioned(optimizer)
    with keep_hyperparameters(optimizer, scheduler):
        optimizer.load_state_dict(parent.state_dict())
        scheduler.load_state_dict(its.state_dict())
    assert rates(inner) == pytest.approx([NEW / 10] * 2)
    assert inner.state_dict()["state"].keys() == parent.state_dict()["state"].keys()
