"""Which GPUs each worker sees."""

import logging
from pathlib import Path

import pytest

import phyla
from facts import check_facts, raises
from phyla.errors import ConfigurationError
from phyla.study.maintaining.doctor import examine
from phyla.study.places import Places
from phyla.study.running.run import Crew
from phyla.study.validation import check_gpus
from phyla.supervision.gpus import gpu_environments, visible_gpus


@pytest.fixture(autouse=True)
def _no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def machine(tmp_path: Path, count: int) -> None:
    """Let `nvidia-smi` list so many GPUs."""
    lines = "\n".join(f"GPU {index}: NVIDIA H100 (UUID: GPU-{index}f)" for index in range(count))
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{lines}\n  MIG 1g.10gb Device 0: (UUID: MIG-9)'\n")
    program.chmod(0o755)


def seen(workers: int, *how: object) -> list[str | None]:
    return [each.get("CUDA_VISIBLE_DEVICES") for each in gpu_environments(workers, *how)]  # type: ignore[arg-type]


def test_there_is_nothing_to_share_out_without_gpus() -> None:
    assert seen(2, "auto") == [None, None]


@pytest.mark.parametrize(
    ("named", "found"),
    [("-1", []), ("", []), ("1,-1,2", ["1"]), ("0,0", ["0"]), ("NoDevFiles", []), ("1,none", ["1"])],
)
def test_a_negative_number_or_a_word_hides_gpus_as_in_cuda(
    named: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == found


def test_each_worker_has_one_where_there_are_as_many(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine(tmp_path, 4)
    assert visible_gpus() == ["0", "1", "2", "3"]
    assert seen(4, "auto") == ["0", "1", "2", "3"]
    assert seen(2, "auto") == ["0", "1"]
    assert not caplog.messages


def test_more_workers_than_gpus_are_spread_over_all_of_them_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    with caplog.at_level(logging.WARNING, logger="phyla"):
        assert seen(8, "auto") == ["4", "5", "6", "7"] * 2
    (warning,) = caplog.messages
    check_facts(warning, "8 workers", "4 GPUs", "5", "6", "7", "2")
    assert "gpus_per_worker=0.5 " in warning
    # What it advises makes no further noise.
    caplog.clear()
    assert seen(8, 0.5) == ["4", "4", "5", "5", "6", "6", "7", "7"]
    assert not caplog.messages


def test_a_number_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for wrong in ("all", -1, 1.5, 0.3, True):
        with raises(ConfigurationError, "auto", "1/n"):
            gpu_environments(2, wrong)  # type: ignore[arg-type]
    with raises(ConfigurationError, "4 GPUs", "2", "0", "1"):
        gpu_environments(2, 2)


def test_zero_shows_every_worker_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert seen(2, 0) == [None, None]
    assert seen(2, 0, ["6", "7"]) == ["6,7", "6,7"]


def crew(**how: object) -> Crew:
    return Crew(**{"gpus_per_worker": "auto", "on_interrupt": lambda: None, **how})  # type: ignore[arg-type]


def test_evaluation_has_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    found = crew(workers=2, evaluators=2, eval_gpus=("1", "3")).environments
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["0", "2", "1", "3"]
    with raises(ConfigurationError, "eval_gpus=", "eval_gpus"):
        _ = crew(workers=2, evaluators=4, eval_gpus=("0", "1", "2", "3")).environments


def test_gpus_that_cannot_be_meant_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_gpus("gpus", [6, "7"]) == ("6", "7")
    for wrong in ([], [""], [1, 1]):
        with pytest.raises(ConfigurationError, match="name each GPU once"):
            check_gpus("gpus", wrong)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ConfigurationError, match=r"GPU 7 is not visible here; choose from 0, 1"):
        check_gpus("gpus", ["1", "7"])
    assert check_gpus("gpus", ["MIG-9"]) == ("MIG-9",)


def test_evaluators_are_as_many_as_their_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    study = phyla.Study(
        "s",
        {"x": phyla.Float(0.0, 1.0)},
        phyla.Minimize("x"),
        phyla.RandomSearch(members=1, total_steps=1),
        lambda trial: None,
        home=tmp_path,
    )
    with raises(ConfigurationError, "eval_gpus=", "suites="):
        study.run(workers=1, eval_gpus=["1"])


def test_the_doctor_counts_and_names_them(tmp_path: Path) -> None:
    machine(tmp_path, 2)
    found = {finding.about: finding.text for finding in examine(Places.of(tmp_path / "home"))}
    assert found["GPUs"] == "2 visible: 0, 1"
