"""What is said of eval tasks that ask for more GPUs than there are."""

import pytest

from facts import check_facts
from phyla import EvalTask, Suite
from phyla.errors import ConfigurationError
from phyla.study.validation import check_tasks


@pytest.mark.parametrize(
    ("gpus", "pool", "words"),
    [
        (1, (), "1 GPU"),
        (2, ("6",), "2 GPUs 1 6"),
        (4, ("6", "7"), "4 GPUs 2 6 7"),
    ],
)
def test_an_eval_task_without_enough_gpus_is_refused(gpus: int, pool: tuple[str, ...], words: str) -> None:
    task = EvalTask("task", print, resources={"gpus": gpus})
    with pytest.raises(ConfigurationError) as caught:
        check_tasks([Suite("suite", [task])], pool)
    check_facts(str(caught.value), *words.split())
