"""Placeholders of commands: what is filled in, what is left out, and what is refused before anything runs."""

import argparse
import dataclasses
import glob
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import phyla
from facts import raises
from phyla.checkpoints import MANIFEST_NAME
from phyla.errors import ConfigurationError, WrongArgument
from phyla.worker.commands.placeholders import (
    Absent,
    dump,
    fill,
    fill_arguments,
    hydra_overrides,
    name_placeholders,
    text_of,
)

SPACE = phyla.Space(
    {
        "lr": phyla.Float(1e-4, 1.0),
        "opt/beta": phyla.Float(0.0, 1.0),
        "kind": phyla.Choice(["a", "b"]),
        "depth": phyla.Int(1, 3, when={"kind": "a"}),
    }
)


def made(arguments: Any, **settings: Any) -> phyla.Study:
    command = phyla.Command(arguments, **settings)
    strategy = phyla.PBT(population_size=2, steps_per_trial=1, total_steps=1)
    return phyla.Study("s", SPACE, phyla.Minimize("loss"), strategy, command)


def test_words_of_training_functions_become_placeholders() -> None:
    said = (
        "use trial.params['opt/lr'], load from trial.source.path, save into trial.checkpoint_dir by trial.end_step"
    )
    assert name_placeholders(said) == "use {opt/lr}, load from {source}, save into {save_to} by {end_step}"
    assert name_placeholders("if trial.measuring, load") == "if {steps} is 0, load"


def test_arguments_are_filled_in_one_by_one() -> None:
    values = {"lr": "0.1", "a b": "x", "source": None, "save_to": "/a;b"}
    arguments = [
        "run",
        "--lr={lr}",
        "{save_to}",
        "{{lr}}",
        ["--from", "{source}", ["{lr}"]],
        [["{source}"], "{a b}"],
    ]
    assert fill_arguments(arguments, values, {}) == ["run", "--lr=0.1", "/a;b", "{lr}", "x"]
    with raises(Absent, "{source}"):
        fill("x{source}", values)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (3, "3"),
        (1e-5, "1.0e-05"),
        ("a b", "a b"),
        (None, None),
        (0.1 + 0.2, None),
    ],
)
def test_values_are_written_so_that_they_read_the_same(value: Any, text: str | None) -> None:
    if text is None and value is not None:
        assert float(str(text_of(value))) == value
    else:
        assert text_of(value) == text


@pytest.mark.parametrize("value", [-1, -1e-05, -1.5e-12, -7.08498e-06, -0.1, -1e300])
def test_argparse_takes_no_negative_number_for_an_option(value: float) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--x", type=float)
    parser.add_argument("-e", action="store_true")
    assert parser.parse_args(["--x", str(text_of(value))]).x == value


@pytest.mark.parametrize("value", [1e-5, 1.5e-5, 1e22, 1.25e300, 0.1, 3, True, "1e-05", 'a"1e-05', "\\", "x1e5"])
def test_values_are_the_same_in_json_and_in_yaml(value: Any) -> None:
    values = {"opt": {"1e-5": value}, "last": 2e-7}
    assert json.loads(dump(values)) == yaml.safe_load(dump(values)) == values
    text = str(text_of(value))
    assert text == value if isinstance(value, str) else yaml.safe_load(text) == value


def test_the_newest_file_that_matches_is_the_source(tmp_path: Path) -> None:
    for at, name in enumerate(["b.pth", "a.pth", "c.txt", MANIFEST_NAME]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at, at))
    (tmp_path / "d.pth").mkdir()
    values = {"source": str(tmp_path)}
    assert fill("--from={source:*.pth}", values) == f"--from={tmp_path / 'a.pth'}"
    assert fill("{source:*}", values) == str(tmp_path / "c.txt")
    with raises(ConfigurationError, "{source:*.bin}", "a.pth", "b.pth", "c.txt", "d.pth"):
        fill("{source:*.bin}", values)


def test_a_directory_that_matches_is_the_source_if_no_file_does(tmp_path: Path) -> None:
    for name in ("checkpoint-5", "checkpoint-10"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (5, 5))
    (tmp_path / "README.md").touch()
    (tmp_path / "checkpoint-last").symlink_to("checkpoint-15")
    values = {"source": str(tmp_path)}
    assert fill("{source:checkpoint-*}", values) == str(tmp_path / "checkpoint-10")
    assert fill("{source:*}", values) == str(tmp_path / "README.md")
    with raises(ConfigurationError, "checkpoint-10"):
        fill("{source:*-last}", values)


def test_a_directory_is_as_old_as_the_newest_file_in_it(tmp_path: Path) -> None:
    for at, (name, file) in enumerate([("new", "deep/er/w"), ("old", "w")]):
        path = tmp_path / name / file
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (9 - at, 9 - at))
        (tmp_path / name).joinpath("empty").mkdir()
        os.utime(tmp_path / name, (at, at))
    assert fill("{source:*}", {"source": str(tmp_path)}) == str(tmp_path / "new")


def parsed(override: str) -> tuple[str, Any]:
    # Only the processes that run these tests import it.
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    found = OverridesParser.create().parse_override(override)
    return found.key_or_group, OmegaConf.create({"a": found.value()}).a


AWKWARD = ["'", "\\", "${x}", "\\${x}", "a\\", "\\'", "1", "null", "TRUE", "1e3", "inf", "a,b", "a=b", " a "]


@settings(max_examples=40)
@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12) | st.sampled_from(AWKWARD))
def test_texts_come_through_hydras_grammar_as_they_are(text: str) -> None:
    (override, directory) = hydra_overrides({"opt/name": text}, text)
    assert override.startswith("++opt.name=")
    assert parsed(override) == ("opt.name", text)
    assert parsed(directory) == ("hydra.run.dir", text)


@pytest.mark.parametrize("value", [True, False, None, 3, -1, 1e-05, 1e300, 0.1 + 0.2])
def test_numbers_come_through_hydras_grammar_as_they_are(value: Any) -> None:
    found = parsed(hydra_overrides({"a": value}, "x")[0])[1]
    assert found == value
    assert type(found) is type(value)
    assert math.isnan(parsed("a=nan")[1])


def test_hydra_becomes_several_arguments() -> None:
    done = fill_arguments(
        ["train.py", "{hydra}", ["{lr}"]], {"lr": "1", "working_dir": "/w"}, {"opt/lr": 1e-4, "n": "a b"}
    )
    assert done == ["train.py", "++opt.lr=0.0001", "++n='a b'", "hydra.run.dir='/w'", "1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x", "{lrr}"], "{lrr} lr"),
        (["x", "{beta}"], "{beta} opt/beta"),
        (["x", "{checkpoint}"], "{checkpoint}"),
        (["x", ["{savee_to}"]], "save_to"),
        (["x", "{source}"], "{source} ['--resume',"),
        (["x", "--a={source:*.pth}"], "{source:*.pth} ['--resume',"),
        (["x", "{depth}"], "{depth}"),
        (["x", "{"], "Single '{'"),
        (["x", "a}"], "Single '}'"),
        (["x", "{lr:*.pth}"], "{source:PATTERN}"),
        (["x", ["{source!r}"]], "{source:PATTERN}"),
        (["x", "a={hydra}"], "{hydra} a={hydra}"),
        (["x", 3], "3 '3'"),
        (["x", b"a"], "b'a'"),
        (["x", ["{lr}", None]], "None"),
        ("sh train.sh", "Command( ['python', '{lr}']"),
        ([], "Command( ['python', '{lr}']"),
        ([["x"]], "['x']"),
        ([""], "Command(...) ''"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: Any, words: str) -> None:
    with raises(ConfigurationError, *words.split()):
        made(arguments)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"timeout": 3}, "timeout_s"),
        ({"timeout_s": 0}, "timeout_s=0 inf"),
        ({"timeout_s": True}, "timeout_s=True"),
        ({"grace_s": -1}, "grace_s=-1 [0 inf"),
        ({"grace_s": "3"}, "grace_s= 3"),
        ({"metrics": ["loss"]}, "Command(metrics=['loss'])"),
        ({"metrics": {"loss": "("}}, "unterminated"),
        ({"metrics": {"loss": "loss"}}, "loss 0 groups"),
        ({"metrics": {"loss": "(a)(b)"}}, "(a)(b) 2 groups"),
        ({"metrics": {"loss": 3}}, "'loss': 3}) r'loss="),
        ({"tensorboard": {"loss": "x"}}, "Command(tensorboard={'loss': eval/loss"),
        ({"tensorboard": {"loss": ("{nope}", "tag")}}, "{nope}"),
        ({"env": {"A": 3}}, "Command(env={'A': 3}) '3'"),
        ({"env": {"PHYLA_SEED": "3"}}, "PHYLA_SEED PHYLA_*"),
        ({"env": {"A": "{hydra}"}}, "Command(...) {hydra}"),
        ({"env": {"A": "{nope}"}}, "{nope}"),
        ({"cwd": "{nope}"}, "{nope}"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: Any, words: str) -> None:
    with raises((ConfigurationError, WrongArgument), *words.split()):
        made(["x"], **settings)


def test_a_hyperparameter_cannot_have_the_name_of_a_placeholder() -> None:
    with raises(ConfigurationError, "{seed}"):
        phyla.Command(["x"]).check_space(phyla.Space(seed=phyla.Float(0, 1)))


def test_an_edited_command_or_script_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("a")

    def digest(*arguments: str, **settings: Any) -> str:
        return phyla.Command(["sh", *arguments], cwd=tmp_path, **settings).digest()

    first = digest("train.sh", "{lr}")
    assert digest("train.sh", "{lr}") == first
    others = {
        digest("train.sh", "-x", "{lr}"),
        digest("train.sh", "{lr}", env={"A": "1"}),
        digest("{lr}", "train.sh"),
    }
    (tmp_path / "train.sh").write_text("b")
    assert len({*others, first, digest("train.sh", "{lr}")}) == 5


@pytest.mark.parametrize("name", ["{lr}", "{nope}", "a {{b}} {", "}"])
def test_braces_in_the_name_of_a_directory_are_no_placeholders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / name
    (folder / "sub").mkdir(parents=True)
    (folder / "train.sh").write_text("a")
    monkeypatch.chdir(folder)
    command = phyla.Command(["sh", "train.sh"])
    command.check_space(SPACE)
    command.check_program()
    places = [command, phyla.Command(["sh"], cwd=folder), dataclasses.replace(command)]
    assert [fill(str(one.cwd), {"lr": "0.1"}) for one in places] == [str(folder)] * 3
    for text, place in (("sub/{lr}", "sub/0.1"), ("{{lr}}/{lr}", "{lr}/0.1")):
        assert fill(str(phyla.Command(["sh"], cwd=text).cwd), {"lr": "0.1"}) == str(folder / place)
    before = command.digest()
    (folder / "train.sh").write_text("b")
    assert command.digest() != before


def test_values_are_no_patterns_in_a_glob(tmp_path: Path) -> None:
    folder = tmp_path / "runs [1] *"
    folder.mkdir()
    (folder / "a.json").touch()
    values = {"working_dir": str(folder), "source": str(folder)}
    for text in ("{working_dir}/*.json", "{source:*.json}"):
        pattern = fill(text, values, glob.escape)
        assert [*Path("/").glob(pattern.lstrip("/"))] == [folder / "a.json"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("./missing.sh", "missing.sh"),
        ("./text.sh", "text.sh"),
        ("text.sh", "PATH ./text.sh"),
        ("no-such-program", "no-such-program PATH"),
    ],
)
def test_a_program_that_cannot_run_is_refused_before_anything_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.sh").touch()
    with raises(ConfigurationError, *words.split()):
        made([program]).run()
    assert not (tmp_path / ".phyla").exists()
    with raises(ConfigurationError, tmp_path / "gone"):
        made(["sh"], cwd="gone").run()
