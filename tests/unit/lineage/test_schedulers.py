"""Schedules in the schedulers of other libraries, and read back from a file."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phyla
from phyla.errors import UsageError
from phyla.lineage import LARGEST_COUNT, Schedule, Segment


def schedule(*values: Any, start: int = 0, length: int = 4) -> Schedule:
    bounds = itertools.pairwise(range(start, start + length * (len(values) + 1), length))
    return Schedule(
        tuple(
            Segment(first, last, {"lr": value, "kind": "sgd"}, trial=index, member=0)
            for index, ((first, last), value) in enumerate(zip(bounds, values, strict=True))
        )
    )


SCHEDULES = [schedule(0.5, 0.1, 0.1, 0.4), schedule(0.3, start=7), schedule(0.3, 0.6, 0.2, start=1000)]


@pytest.mark.parametrize("found", SCHEDULES, ids=range(3))
def test_torch_follows_it_step_by_step(found: Schedule) -> None:
    import torch

    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    start = found.segments[0].start_step
    optimizer = torch.optim.SGD([weight], lr=float(found(start)["lr"]))  # type: ignore[arg-type]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, found.lr_lambda("lr"))
    for step in range(start, start + found.steps + 3):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(found(step)["lr"], rel=1e-15)
        optimizer.step()
        scheduler.step()
    saved = scheduler.state_dict()
    again = torch.optim.lr_scheduler.LambdaLR(optimizer, found.lr_lambda("lr"))
    again.load_state_dict(saved)
    assert again.last_epoch == scheduler.last_epoch


@pytest.mark.parametrize("found", SCHEDULES, ids=range(3))
def test_optax_follows_it_inside_a_jitted_update(found: Schedule) -> None:
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = optax.sgd(found.optax("lr"))
    weights = jnp.zeros(())
    state = optimizer.init(weights)

    @jax.jit  # type: ignore[untyped-decorator]
    def update(weights: Any, state: Any) -> Any:
        updates, state = optimizer.update(jnp.ones(()), state)
        return optax.apply_updates(weights, updates), state

    start = found.segments[0].start_step
    for step in range(start, start + found.steps + 3):
        after, state = update(weights, state)
        assert float(weights - after) == pytest.approx(float(found(step)["lr"]), rel=1e-5)  # type: ignore[arg-type]
        weights = jnp.zeros(())
    plain = found.optax("lr")
    counts = jnp.arange(found.steps + 3)
    assert jnp.array_equal(jax.vmap(jax.jit(plain))(counts), jnp.stack([plain(count) for count in counts]))


@given(
    values=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=6),
    start=st.integers(0, 10**6),
    length=st.integers(1, 5),
)
def test_the_series_says_the_same_as_the_schedule(values: list[float], start: int, length: int) -> None:
    found = schedule(*values, start=start, length=length)
    series = dict(found.series("lr"))
    factor = found.lr_lambda("lr")
    value = math.nan
    for count in range(found.steps):
        value = series.get(count, value)
        assert value == found(start + count)["lr"]
        assert math.isclose(factor(count) * values[0], value, rel_tol=1e-15)
    assert all(before != after for before, after in itertools.pairwise(series.values()))


@pytest.mark.parametrize("method", ["lr_lambda", "optax", "series"])
def test_what_is_no_number_is_refused(method: str) -> None:
    for name, message in (("kind", "has kind='sgd', no number"), ("rate", "has no 'rate' .*it has lr, kind")):
        with pytest.raises(UsageError, match=message):
            getattr(schedule(0.1), method)(name)
    with pytest.raises(UsageError, match="lr='high', no number at step 4"):
        getattr(schedule(1, "high"), method)("lr")


def test_limits_of_the_libraries() -> None:
    with pytest.raises(UsageError, match="starts at 0"):
        schedule(0, 1).lr_lambda("lr")
    with pytest.raises(UsageError, match=f"counts of optax end at {LARGEST_COUNT}"):
        schedule(0.1, 0.2, length=LARGEST_COUNT + 1).optax("lr")


def test_a_schedule_is_read_from_the_file_that_was_exported(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(SCHEDULES[2].to_json()))
    assert phyla.load_schedule(path) == SCHEDULES[2]
    assert phyla.lineage.Schedule.from_json(json.loads(path.read_text())) == SCHEDULES[2]


def test_files_that_are_no_schedule(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the schedule"):
        phyla.load_schedule(tmp_path / "nowhere.json")
    path = tmp_path / "schedule.csv"
    path.write_text("start_step,end_step\n0,1\n")
    with pytest.raises(UsageError, match=r"is no JSON.*--format json"):
        phyla.load_schedule(path)
    for text in ("[]", '{"schema": 9}', '{"schema": 1, "segments": []}', '{"schema": 1, "segments": [1]}', "3"):
        path.write_text(text)
        with pytest.raises(UsageError):
            phyla.load_schedule(path)
