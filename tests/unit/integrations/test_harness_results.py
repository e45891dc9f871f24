"""Tables as lm-evaluation-harness prints them."""

import re

import pytest

from phyla.evaluation.paired import ModelScore
from phyla.integrations.harness_results import COLUMNS, ModelResults, to_markdown


@pytest.mark.parametrize("name", ["a|b", "a\nb", "a\\|b", "|", "a\r\nb|c"])
def test_no_name_breaks_a_row_of_a_table(name: str) -> None:
    table = to_markdown(ModelResults(name="step_10", scores={name: {name: ModelScore(value=0.5)}}))
    lines = table.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("|")
        assert len(re.findall(r"((?:\\.|[^|])*)\|", line[1:])) == len(COLUMNS), line
