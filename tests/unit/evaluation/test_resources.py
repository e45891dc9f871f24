"""What an eval task may ask of a worker, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

import phyla
from command_line import Phyla
from facts import check_facts, raises
from phyla.errors import ConfigurationError


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"gpus": -1}, '{"gpus" 2}'),
        ({"gpus": 1.5}, "EvalTask('t', resources={'gpus':"),
        ({"gpus": True}, "EvalTask('t', resources={'gpus':"),
        ({"gpus": "2"}, "EvalTask('t', resources={'gpus':"),
        ({"tpus": 1}, "tpus gpus label"),
        ({"labels": "a100"}, "labels label"),
        ({"label": ""}, "{'label': ''} 100"),
        ({"label": "a 100"}, "a 100 _ - a100"),
        ({"label": "a100,nvlink"}, "100 a100"),
        ({"label": "a" * 101}, "100 a100"),
        ({"label": ["a100"]}, "a100"),
        ({"label": None}, "None"),
        (2, '{"gpus" 2 "a100"}'),
    ],
)
def test_what_a_task_cannot_ask_for_is_refused(resources: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        phyla.EvalTask("t", command="true", resources=resources)
    assert str(caught.value).startswith(f"EvalTask('t', resources={resources!r}): ")
    check_facts(str(caught.value), *message.split())


def test_labels_of_workers_that_are_none_are_refused(tmp_path: Path, cli: Phyla) -> None:
    task = phyla.EvalTask("t", command="true", resources={"gpus": 2, "label": "a100"})
    study = phyla.Study(
        "labelled",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2),
        lambda trial: None,
        suites=[phyla.Suite("s", [task])],
        home=tmp_path,
    )
    for labels in (["a100", ""], ["a 100"], ["a100,nvlink"], ""):
        with raises(ConfigurationError, "labels", "a100"):
            study.work(labels=labels)
    (tmp_path / "suites.toml").write_text('[[suite]]\nname = "s"\ntasks = [{ name = "t", command = "true" }]')
    words = (tmp_path / "suites.toml", "--labels", "a100,,b", "--home", tmp_path)
    for command in ("worker", "up"):
        check_facts(cli(command, *words, code=2), "--labels a100,,b", "''")
    assert not (tmp_path / "pools").exists()
