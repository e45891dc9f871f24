"""What the documentation shows of study files can be read."""

import json
import re
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest

from phyla.study.files.load import load_studies
from study_files import DOCS, blocks, edited

PAGES = ["how-to/study-files.md", "how-to/commands.md", "coming-from/wandb-sweeps.md"]
SCHEMA = json.loads((DOCS / "study.schema.json").read_text())
WHOLE = [(page, name, text) for page in PAGES for name, text in blocks(page, "toml") if name]
PARTS = [text for page in PAGES for name, text in blocks(page, "toml") if not name]


def check(file: Path, text: str) -> None:
    file.write_text(text)
    (study,) = load_studies(file)
    assert study.train is not None
    jsonschema.Draft7Validator(SCHEMA).validate(tomllib.loads(text))


@pytest.mark.parametrize(("page", "name", "text"), WHOLE, ids=[name for _, name, _ in WHOLE])
def test_a_study_file_of_the_documentation_is_one(page: str, name: str, text: str, tmp_path: Path) -> None:
    check(tmp_path / name, text)


@pytest.mark.parametrize("part", PARTS, ids=[text.splitlines()[0][:30] for text in PARTS])
def test_a_part_of_a_study_file_can_be_put_into_one(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "rules.py").write_text("def small_enough(params):\n    return True\n")
    whole = dict(blocks(PAGES[0], "toml"))["study.toml"]
    if "[space.opt]" in part:
        whole = whole.replace('"{lr}"', '"{opt/lr}"')
    text = edited(whole, part)
    assert all(line in text for line in part.splitlines())
    check(tmp_path / "study.toml", text)


@pytest.mark.parametrize("value", ["1.387", "'1.387'"], ids=["transformers 4", "transformers 5"])
def test_the_documented_pattern_reads_what_the_trainer_prints(value: str) -> None:
    (part,) = (part for part in PARTS if "eval_loss" in part)
    pattern = tomllib.loads(part)["metrics"]["eval_loss"]
    logged = f"{{'eval_loss': {value}, 'epoch': {value}}}", f"{{'epoch': {value}, 'eval_loss': {value}}}"
    for line in (*logged, "  eval_loss               =      1.387"):
        match = re.search(pattern, line)
        assert match is not None
        assert float(match[1]) == 1.387
    assert re.search(pattern, f"{{'loss': {value}, 'train_loss': {value}}}") is None


def test_there_are_study_files_in_the_documentation() -> None:
    assert len(WHOLE) >= 3
    assert len(PARTS) >= 6
