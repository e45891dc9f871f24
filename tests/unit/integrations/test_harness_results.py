"""Tables as lm-evaluation-harness prints them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from phyla.evaluation.paired import ModelScore
from phyla.integrations.harness_results import COLUMNS, ModelResults, read_harness, to_harness, to_markdown


@pytest.mark.parametrize("name", ["a|b", "a\nb", "a\\|b", "|", "a\r\nb|c"])
def test_no_name_breaks_a_row_of_a_table(name: str) -> None:
    table = to_markdown(ModelResults(name="step_10", scores={name: {name: ModelScore(value=0.5)}}))
    lines = table.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("|")
        assert len(re.findall(r"((?:\\.|[^|])*)\|", line[1:])) == len(COLUMNS), line


@pytest.mark.parametrize("n", [None, 40])
def test_a_number_of_documents_that_is_unknown_is_left_out(n: int | None) -> None:
    results: Any = to_harness(
        ModelResults(name="step_10", scores={}, groups={"both": {"acc": ModelScore(value=1.0, n=n)}})
    )
    assert results["groups"]["both"].get("sample_len") == n


def test_a_task_with_other_characters_is_found_in_a_file_of_the_harness(tmp_path: Path) -> None:
    rows = [{"doc_id": 0, "filter": "none", "metrics": ["acc"], "acc": 1.0}]
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps({"results": {"of us:a b": {"acc,none": 1.0}}, "samples": {"of us:a b": rows}}))
    read = read_harness(file)
    assert read.scores["of-us-a-b"]["acc"].samples == {"0": 1.0}
    assert [*read.samples] == ["of-us-a-b"]
