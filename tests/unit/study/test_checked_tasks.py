"""What is said of eval tasks that ask for more GPUs than there are."""

import pytest

from phyla import EvalTask, Suite
from phyla.errors import ConfigurationError
from phyla.study.validation import check_tasks


@pytest.mark.parametrize(
    ("gpus", "pool", "words"),
    [
        (1, (), "asks for 1 GPU, and there are none for evaluation, so"),
        (2, ("6",), "asks for 2 GPUs, and there is 1 for evaluation (6), so"),
        (4, ("6", "7"), "asks for 4 GPUs, and there are 2 for evaluation (6, 7), so"),
    ],
)
def test_an_eval_task_without_enough_gpus_is_refused(gpus: int, pool: tuple[str, ...], words: str) -> None:
    task = EvalTask("task", print, resources={"gpus": gpus})
    with pytest.raises(ConfigurationError) as caught:
        check_tasks([Suite("suite", [task])], pool)
    assert words in str(caught.value)
