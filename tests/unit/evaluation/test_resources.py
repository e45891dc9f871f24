"""What an eval task may ask of a worker, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

import phyla
from command_line import Phyla
from phyla.errors import ConfigurationError


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"gpus": -1}, 'say how many GPUs it needs, as in {"gpus": 2}'),
        ({"gpus": 1.5}, "say how many GPUs"),
        ({"gpus": True}, "say how many GPUs"),
        ({"gpus": "2"}, "say how many GPUs"),
        ({"tpus": 1}, "there is no resource 'tpus'; did you mean 'gpus'? the names are 'gpus', 'label'"),
        ({"labels": "a100"}, "there is no resource 'labels'; did you mean 'label'?"),
        ({"label": ""}, "'' is not a label"),
        (
            {"label": "a 100"},
            "'a 100' is not a label: use up to 100 letters, digits, '_', '-' and '.', as in 'a100'",
        ),
        ({"label": "a100,nvlink"}, "is not a label"),
        ({"label": "a" * 101}, "is not a label"),
        ({"label": ["a100"]}, "['a100'] is not a label"),
        ({"label": None}, "None is not a label"),
        (2, 'say what it needs, as in {"gpus": 2, "label": "a100"}'),
    ],
)
def test_what_a_task_cannot_ask_for_is_refused(resources: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        phyla.EvalTask("t", command="true", resources=resources)
    assert str(caught.value).startswith(f"EvalTask('t', resources={resources!r}): ")
    assert message in str(caught.value)


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
        with pytest.raises(ConfigurationError, match="is not a label"):
            study.work(labels=labels)
    (tmp_path / "suites.toml").write_text('[[suite]]\nname = "s"\ntasks = [{ name = "t", command = "true" }]')
    words = (tmp_path / "suites.toml", "--labels", "a100,,b", "--home", tmp_path)
    for command in ("worker", "up"):
        assert "--labels a100,,b: '' is not a label" in cli(command, *words, code=2)
    assert not (tmp_path / "pools").exists()
