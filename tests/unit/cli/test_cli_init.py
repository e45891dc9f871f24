"""`phyla init`: a study file for a script, from its source alone."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phyla
from command_line import Phyla
from facts import check_facts
from phyla.study.files.load import load_studies

ARGPARSE = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("-b", "--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=1e-3, help="\\d")
parser.add_argument("--weight-decay", default=0.0, type=float)
parser.add_argument("--hidden", type=int, default=128)
parser.add_argument("--max-steps", type=int, default=20_000)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--resume-from", type=str)
parser.add_argument("--output-dir", default="runs")
parser.add_argument("--seed", type=int, default=0)
raise SystemExit("it ran")
"""
CLICK = """
import click

@click.command()
@click.option("--learning-rate", "-l", default=0.01, show_default=True)
@click.option("--amp/--no-amp", default=False)
@click.option("--checkpoint", type=click.Path())
def main(**options): ...
raise SystemExit("it ran")
"""
TYRO = """
import tyro
from dataclasses import dataclass

@dataclass
class Args:
    seed: int = 1
    clip_coef: float = 0.2
    dropout: float = 0.1
    num_envs: int = 4
    total_timesteps: int = 500000

raise SystemExit("it ran")
"""
NESTED = """
import tyro
from dataclasses import dataclass, field

@dataclass
class Opt:
    lr: float = 1e-3

@dataclass
class Model:
    dropout: float = 0.1
    opt: "Opt" = field(default_factory=Opt)

@dataclass
class Args:
    model: Model = field(default_factory=Model)

raise SystemExit("it ran")
"""
HYDRA = """
import hydra

@hydra.main(config_path="conf", config_name="config", version_base=None)
def main(config): ...
raise SystemExit("it ran")
"""
SCRIPTS = {
    "argparse_one.py": (ARGPARSE, ["batch_size", "lr", "weight_decay"]),
    "click_one.py": (CLICK, ["learning_rate"]),
    "tyro_one.py": (TYRO, ["clip_coef", "dropout"]),
    "hydra_one.py": (HYDRA, ["lr"]),
    "train.sh": ("echo $1", ["lr"]),
    "odd name!\n.jl": ("x", ["lr"]),
    "compiled": ("\x7fELF", ["lr"]),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_written_is_a_study_that_can_be_read(cli: Phyla, tmp_path: Path, name: str) -> None:
    source, parameters = SCRIPTS[name]
    (tmp_path / "code").mkdir()
    script, output = tmp_path / "code" / name, tmp_path / "study.toml"
    script.write_text(source)
    check_facts(cli("init", script, "--output", output), "TODO")
    (study,) = load_studies(output)
    assert sorted(study.rules.space.parameters) == parameters
    assert isinstance(study.train, phyla.Command)
    study.train.check_space(study.rules.space)
    assert f"code/{name}" in str(study.train)


def test_options_become_arguments_and_ranges(cli: Phyla, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ARGPARSE)
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    assert study.rules.space == phyla.Space(
        batch_size=phyla.Ordinal([32, 64, 128]),
        lr=phyla.Float(1e-4, 1e-2, log=True),
        weight_decay=phyla.Float(0.0, 1e-2),
    )
    assert isinstance(study.train, phyla.Command)
    options = "--batch-size {batch_size} --lr {lr} --weight-decay {weight_decay} TODO --resume-from {source}"
    rest = "--output-dir {save_to} --max-steps {end_step} --seed {seed}"
    assert str(study.train) == f"python train.py {options} {rest}"
    assert ("--resume-from", "{source}") in study.train.arguments
    text = (tmp_path / "s.toml").read_text()
    assert "# Other options: --hidden 128, --resume\n" in text
    assert "steps_per_trial = 1000 " in text
    assert "total_steps = 20000 " in text


def test_options_of_nested_dataclasses_have_the_names_of_their_fields(cli: Phyla, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NESTED)
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    assert isinstance(study.train, phyla.Command)
    assert str(study.train).startswith("python train.py --model.opt.lr {lr} --model.dropout {dropout}")


def test_the_length_of_a_schedule_is_not_that_of_a_trial(cli: Phyla, tmp_path: Path) -> None:
    epochs = "parser.add_argument('--epochs', type=int, default=90)\n"
    for name, source in {"one": epochs, "two": f"{epochs}parser.add_argument('--stop-epoch', type=int)\n"}.items():
        (tmp_path / f"{name}.py").write_text(f"{source}print(f'epoch {{e}} loss {{x}}')\n")
        cli("init", tmp_path / f"{name}.py", "--output", tmp_path / f"{name}.toml")
    one, two = ((tmp_path / f"{name}.toml").read_text() for name in ("one", "two"))
    check_facts(one, "--epochs")
    assert 'with: "--stop-epoch", "{end_step}", "--epochs", "90", the total_steps\n' in one
    assert '"--epochs", "{end_step}",\n' in one
    # With both options there is nothing to decide.
    assert '"--stop-epoch", "{end_step}",\n    "--epochs", "90",  # as long as the study' in two
    assert "Other options" not in two
    assert "every trial" not in two
    assert "total_steps = 90 " in one
    assert "total_steps = 90 " in two
    assert "step = '(?i)\\bepoch" in two


def test_what_is_missing_is_said_in_the_scripts_own_way(cli: Phyla, tmp_path: Path) -> None:
    for name, example in (
        ("hydra_one.py", '["++resume={source}"],'),
        ("click_one.py", '"--output-dir", "{save_to}",'),
    ):
        (tmp_path / name).write_text(SCRIPTS[name][0])
        cli("init", tmp_path / name, "--output", tmp_path / f"{name}.toml")
        check_facts((tmp_path / f"{name}.toml").read_text(), example)


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("'--save', default='model.pt'", "--save {save_to}/model.pt"),
        ("'--save-path', default='out/model-{epoch}.pt'", "--save-path {save_to}/model-{{epoch}}.pt"),
        ("'--save', default='runs'", "--save {save_to}"),
        ("'--save-dir', default='runs/v1.0'", "--save-dir {save_to}"),
    ],
)
def test_a_script_that_saves_a_file_saves_it_in_the_checkpoint(
    cli: Phyla, tmp_path: Path, option: str, given: str
) -> None:
    (tmp_path / "train.py").write_text(f"parser.add_argument({option})")
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    assert f" {given} " in f"{study.train} "


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        (
            ("'--checkpoint', default='model.joblib'", "'--load', default=None"),
            "--load {source} --checkpoint {save_to}/model.joblib",
        ),
        (("'--checkpoint', default='model.joblib'", "'--resume', action='store_true'"), "--checkpoint {source}"),
        (
            ("'--checkpoint'", "'--resume-from'", "'--output', default='x.pt'"),
            "--resume-from {source} --output {save_to}/x.pt",
        ),
        (("'--ckpt_path'", "'--default_root_dir'"), "--ckpt_path {source} --default_root_dir {save_to}"),
        (("'--checkpoint_path'",), "--checkpoint_path {source}"),
    ],
)
def test_a_checkpoint_to_save_is_told_from_one_to_load(
    cli: Phyla, tmp_path: Path, declared: tuple[str, ...], given: str
) -> None:
    (tmp_path / "train.py").write_text("\n".join(f"parser.add_argument({one})" for one in declared))
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    assert str(study.train).endswith(f" {given}")
    ending = ".joblib" if "joblib" in given else ".pt"
    check_facts((tmp_path / "s.toml").read_text(), f"{{source:*{ending}}}")


REQUIRED = """
parser.add_argument("out_dir")
parser.add_argument("data-set", nargs="+")
parser.add_argument("files", nargs="*")
parser.add_argument("rest", nargs=argparse.REMAINDER)
parser.add_argument("--model-name", required=True)
parser.add_argument("--checkpoint", required=True)
parser.add_argument("--lr", type=float, default=0.1, required=True)
parser.add_argument("--note")
@click.argument("config")
@click.argument("extra", required=False)
@click.argument("more", nargs=-1)
def main(): ...
"""


def test_what_the_script_requires_is_given(cli: Phyla, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REQUIRED)
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    words = str(study.train).split()
    options = [word for word in words if word.startswith("--")]
    assert sorted(options) == ["--checkpoint", "--lr", "--model-name"]
    assert [words[words.index(option) + 1] for option in sorted(options)] == ["TODO", "{lr}", "TODO"]
    text = (tmp_path / "s.toml").read_text()
    assert text.index('"{save_to}",') < text.index('"TODO",  # TODO: train.py requires data_set')
    assert '"--model-name", "TODO",  # TODO: train.py requires --model-name\n' in text
    assert '"TODO",  # TODO: train.py requires config\n' in text
    assert words.count("TODO") == 4


ABSL = """
from absl import flags
flags.DEFINE_float("learning_rate", 1e-3, "x", lower_bound=0.0)
flags.DEFINE_integer("num_train_steps", 500, "x")
flags.DEFINE_string("workdir", None, "x")
flags.DEFINE_string("data", default=None, help="x", required=True)
flags.DEFINE_string("table", None, "x")
flags.DEFINE_bool("use_ema", False, "x")
flags.mark_flags_as_required(["workdir", "table"])
"""
CLICK_GROUP = """
import click
@click.group()
@click.option("--gamma", default=0.9)
def cli(): ...
@cli.command("evaluate")
@click.option("--checkpoint", required=True)
@click.option("--batch-size", default=8)
def evaluate(checkpoint, batch_size): ...
@cli.command()
@click.option("--lr", default=1e-3)
@click.option("--out", required=True)
@click.argument("data")
def train_model(lr, out, data): ...
"""
TYPER = """
import typer
app = typer.Typer()
@app.command()
def train(
    data: Path,
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o")],
    lr: float = 1e-3,
    weight_decay: float = typer.Option(0.01, "--wd", "-w"),
    note: str = typer.Argument("x"),
    *,
    max_steps: int = 500,
    resume_from: Path | None = None,
    amp: bool = True,
): ...
"""
FUNCTION = """
def train(data, lr: float = 1e-3, out_dir: str = "runs", epochs=5, resume=None, *, amp: bool = True): ...
def other(gamma=0.9): ...
"""
HF = """
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class Model:
    lora_dropout: float = 0.1
"""
PLACED = "TODO --lr {lr} --out_dir {save_to} --epochs {end_step} --resume {source}"
FLAGGED = f"--data {PLACED}"


@pytest.mark.parametrize(
    ("source", "given"),
    [
        (
            ABSL,
            "--num_train_steps {end_step} --workdir {save_to} --data TODO --table TODO",
        ),
        (CLICK_GROUP, "train-model --lr {lr} --out {save_to} TODO"),
        (
            TYPER,
            "TODO --wd {weight_decay} --output-dir {save_to} --max-steps {end_step} --resume-from {source}",
        ),
        (
            f"{TYPER}@app.command('eval')\ndef e(gamma: float = 0.9): ...",
            "train TODO --lr {lr} --wd {weight_decay}",
        ),
        (f"import typer{FUNCTION}typer.run(train)", PLACED.replace("_dir {", "-dir {")),
        (f"import fire{FUNCTION}fire.Fire(train)", FLAGGED),
        (f"import fire{FUNCTION}fire.Fire({{'go': other, 'pretrain': train}})", f"pretrain {FLAGGED}"),
        (f"import tyro{FUNCTION}tyro.cli(train)", FLAGGED),
        (f"from jsonargparse import auto_cli{FUNCTION}auto_cli(train)", PLACED),
        (f"from jsonargparse import CLI{FUNCTION}CLI([other, train])", f"train {PLACED}"),
        ("parser.add_argument('--lr', type=eval, default='1e-3')", "--lr {lr}"),
        ("OmegaConf.merge(OmegaConf.load('c.yaml'), OmegaConf.from_cli())", "lr={lr}"),
        (
            HF,
            "--lora_dropout {lora_dropout} --learning_rate {learning_rate} --resume_from_checkpoint {source}",
        ),
    ],
)
def test_scripts_of_other_libraries_get_their_options(cli: Phyla, tmp_path: Path, source: str, given: str) -> None:
    (tmp_path / "train.py").write_text(source)
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    assert isinstance(study.train, phyla.Command)
    study.train.check_space(study.rules.space)
    words = str(study.train).split()[2:]
    subcommand = {"train-model", "train", "pretrain"} & {given.split()[0]}
    assert words[: len(subcommand)] == [*subcommand]
    # The order is that of what each option is for.
    assert not [pair for pair in pairs(given.split()) if pair not in pairs(words)], words
    assert "gamma" not in str(study.train)
    assert words.count("TODO") == given.split().count("TODO"), words


def pairs(words: list[str]) -> list[tuple[str, ...]]:
    """Return each option with its value, and what stands alone."""
    return [
        (word,) if not word.startswith("-") else (word, after)
        for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False)
        if word.startswith("-") or not before.startswith("-")
    ]


def test_hydras_options_have_the_names_of_their_groups(cli: Phyla, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        NESTED.replace("import tyro", "import hydra\nfrom hydra.core.config_store import ConfigStore")
        + "@hydra.main(config_name='config', version_base=None)\ndef main(config): ...\n"
    )
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    # Not `++lr=`, which would add a key that nothing reads.
    assert sorted(study.rules.space.parameters) == ["model/dropout", "model/opt/lr"]


@pytest.mark.parametrize(
    ("name", "source", "command"),
    [
        ("t.sh", "#!/bin/bash\na=(1 2)", "bash t.sh --lr {lr}"),
        ("t.sh", "#!/usr/bin/env bash\n", "bash t.sh --lr {lr}"),
        ("t.sh", "#!/bin/bash -e\n", "bash -e t.sh --lr {lr}"),
        ("t.sh", "#!\n", "sh t.sh --lr {lr}"),
        ("t.sh", "echo", "sh t.sh --lr {lr}"),
        ("t.py", "#!/usr/bin/env python2\n", "python t.py --lr {lr}"),
        ("pk/deep/t.py", "from . import a", "python -m pk.deep.t --lr {lr}"),
        ("pk/deep/t.py", "import a", "python pk/deep/t.py --lr {lr}"),
        ("t.py", "s.add_parser('eval')\ns.add_parser('pretrain')", "python t.py pretrain --lr {lr}"),
    ],
)
def test_a_script_is_started_as_people_start_it(
    cli: Phyla, tmp_path: Path, name: str, source: str, command: str
) -> None:
    script = tmp_path / name
    script.parent.mkdir(parents=True, exist_ok=True)
    for package in (tmp_path / "pk", tmp_path / "pk" / "deep"):
        if package.exists():
            (package / "__init__.py").touch()
    script.write_text(source)
    cli("init", script, "-o", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    assert str(study.train) == command
    text = (tmp_path / "s.toml").read_text()
    assert ("which of the subcommands? eval, pretrain" in text) == ("add_parser" in source)


@pytest.mark.parametrize(("variables", "options"), [(("a", "b"), ""), (("a", "a"), " --checkpoint TODO")])
def test_options_of_another_subcommand_are_left_out(
    cli: Phyla, tmp_path: Path, variables: tuple[str, str], options: str
) -> None:
    evaluate, train = variables
    (tmp_path / "train.py").write_text(
        f"{evaluate} = commands.add_parser('eval')\n"
        f"{evaluate}.add_argument('--checkpoint', required=True)\n"
        f"{train} = commands.add_parser('train')\n"
        f"{train}.add_argument('--lr', default=0.1)\n"
        "parser.add_argument('--momentum', default=0.9)\n"
    )
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    # Where one variable holds both parsers, an option may belong to either.
    assert str(study.train) == f"python train.py train --lr {{lr}} --momentum {{momentum}}{options}"


def test_a_required_learning_rate_is_given_once(cli: Phyla, tmp_path: Path) -> None:
    declared = ("'--lr', type=float", "'--sizes', default=[1]")
    (tmp_path / "train.py").write_text("\n".join(f"parser.add_argument({one}, required=True)" for one in declared))
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    assert str(study.train) == "python train.py --lr {lr} --sizes TODO"


@pytest.mark.parametrize(("default", "steps", "total"), [(1, 1, 1), (3, 1, 3), (10, 1, 10), (-1, 50, 1000)])
def test_the_length_of_a_study_is_the_default_of_the_script(
    cli: Phyla, tmp_path: Path, default: int, steps: int, total: int
) -> None:
    (tmp_path / "train.py").write_text(ARGPARSE.replace("20_000", str(default)))
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    text = (tmp_path / "s.toml").read_text()
    assert f"steps_per_trial = {steps} " in text
    assert f"total_steps = {total} " in text
    load_studies(tmp_path / "s.toml")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("loss = 0.25", "0.25"),
        ("Epoch 3 - Loss: 1.e-05, train_loss: 2", "1.e-05"),
        ('{"step": 3, "loss": NaN}', "NaN"),
        ("loss=-inf", "-inf"),
        ("loss: .5.", ".5"),
        ("loss: -3.", "-3"),
        ("train_loss=0.123 val_loss=nan", None),
        ("train/loss 0.1", None),
        ("Computing the loss...", None),
        ("mean loss each epoch", None),
        ("loss information", None),
        ("loss: 12,345.6", None),
        ("loss 0,25", None),
        ("loss 0.25, 7", "0.25"),
    ],
)
def test_the_drafted_pattern_finds_numbers_and_no_words(
    cli: Phyla, tmp_path: Path, line: str, found: str | None
) -> None:
    (tmp_path / "train.py").write_text(ARGPARSE)
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    assert isinstance(study.train, phyla.Command)
    match = re.search(study.train.metrics["loss"], line)
    assert (match and match[1]) == found


@pytest.mark.parametrize(
    ("line", "printed", "objective", "metrics"),
    [
        (
            'print(f"epoch {e+1} train_loss={a:.4f} val_loss={b:.4f} val_acc={c:.4f}")',
            "epoch 3 train_loss=0.5000 val_loss=0.4000 val_acc=0.9000",
            "minimize val_loss",
            {"train_loss": "0.5000", "val_loss": "0.4000", "val_acc": "0.9000", "step": "3"},
        ),
        (
            'print("Epoch", e, "Accuracy: %.4f" % a)',
            "Epoch 3 Accuracy: 0.9000",
            "maximize accuracy",
            {"accuracy": "0.9000", "step": "3"},
        ),
        (
            'print("step {:d}: train loss {:.3f}, val loss {:.3f}".format(e, a, b))',
            "step 3: train loss 0.500, val loss 0.400",
            "minimize val_loss",
            {"train_loss": "0.500", "val_loss": "0.400"},
        ),
        (
            'logging.info("epoch %d val_loss=%.6f", e, a)',
            "INFO:root:epoch 3 val_loss=0.400000",
            "minimize val_loss",
            {"val_loss": "0.400000", "step": "3"},
        ),
        (
            'logger.info("epoch {} | accuracy {:.2%}", e, a)',
            "2026-01-01 10:00:00.000 | INFO | __main__:<module>:7 - epoch 3 | accuracy 0.90",
            "maximize accuracy",
            {"accuracy": "0.90", "step": "3"},
        ),
        (
            'log.info(f"val acc: {a:.3f}")',
            "[10:00:00] INFO val acc: 0.900",
            "maximize val_acc",
            {"val_acc": "0.900"},
        ),
        (
            'print(f"epoch {e} accuracy {a}"); self.log("val_loss", loss, prog_bar=True)',
            "epoch 2.0 val_loss: 2.815 accuracy 1",
            "minimize val_loss",
            {"accuracy": "1", "val_loss": "2.815", "step": "2"},
        ),
        ("TrainingArguments", "{'eval_loss': '0.3', 'epoch': '0.5'}", "minimize eval_loss", {"eval_loss": "0.3"}),
    ],
)
def test_what_the_script_prints_or_logs_is_read(
    cli: Phyla, tmp_path: Path, line: str, printed: str, objective: str, metrics: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(f"parser.add_argument('--epochs', type=int, default=20)\n{line}\n")
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    assert f'objective = "{objective}"' in (tmp_path / "s.toml").read_text()
    assert isinstance(study.train, phyla.Command)
    found = {name: re.search(pattern, printed) for name, pattern in study.train.metrics.items()}
    assert {name: match and match[1] for name, match in found.items()} == metrics


def test_defaults_lie_within_the_ranges(cli: Phyla, tmp_path: Path) -> None:
    defaults = {"momentum": 0.9, "gamma": 0.99, "dropout": 0.5, "eta0": 0.01, "alpha": 1e-4}
    lines = (f"parser.add_argument('--{name}', default={value})" for name, value in defaults.items())
    (tmp_path / "train.py").write_text("\n".join(lines))
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    ranges: Any = study.rules.space.parameters
    assert set(ranges) == set(defaults)
    assert all(ranges[name].low < value < ranges[name].high for name, value in defaults.items())


def test_what_is_near_1_is_drafted_by_its_distance_from_1(cli: Phyla, tmp_path: Path) -> None:
    near = {"momentum": 0.9, "beta2": 0.999, "ema_decay": 0.9999, "gae_lambda": 0.95, "lam": 0.97, "beta": 0.9}
    others = {"gamma": 0.1, "weight_decay": 0.01, "discount": 0.5}
    lines = (f"parser.add_argument('--{name}', default={value})" for name, value in {**near, **others}.items())
    (tmp_path / "train.py").write_text("\n".join(lines))
    cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml")
    (study,) = load_studies(tmp_path / "s.toml")
    ranges: Any = study.rules.space.parameters
    assert {name: ranges[name].log for name in near} == dict.fromkeys(near, "1-x")
    assert all(ranges[name].low < value < ranges[name].high for name, value in near.items())
    assert {name: ranges[name].log for name in others} == {"gamma": False, "weight_decay": True, "discount": False}
    rng, space = np.random.default_rng(0), study.rules.space
    found = [space.perturb(space.sample(rng), rng)[0] for _ in range(100)]
    assert all(len({one[name] for one in found}) > 50 for name in near)


def test_nothing_is_overwritten(cli: Phyla, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ARGPARSE)
    (tmp_path / "study.toml").write_text("mine")
    words = ("init", tmp_path / "train.py", "--output")
    assert "--output" in cli(*words, tmp_path / "study.toml", code=2)
    assert (tmp_path / "study.toml").read_text() == "mine"
    assert "ends in .toml" in cli(*words, tmp_path / "study.py", code=2)
    assert "No such file" in cli(*words, tmp_path / "nowhere" / "study.toml", code=2)


def test_a_script_that_cannot_be_read(cli: Phyla, tmp_path: Path) -> None:
    output = ("--output", tmp_path / "study.toml")
    check_facts(cli("init", tmp_path / "nothing.py", *output, code=2), "nothing.py")
    assert "Is a directory" in cli("init", tmp_path, *output, code=2)
    assert "phyla init train.py" in cli("init", *output, code=2)
    assert not (tmp_path / "study.toml").exists()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import sys\nprint 'of python 2'\n", r"cannot parse it: .*\(train.py, line 2\)"),
        ("x = 1\0", "cannot parse it: .*null bytes"),
        ("(" * 100_000, "cannot parse it: "),
    ],
    ids=["old", "null", "deep"],
)
def test_a_script_that_is_no_python_is_refused(cli: Phyla, tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "train.py").write_text(source)
    assert re.search(words, cli("init", tmp_path / "train.py", "--output", tmp_path / "s.toml", code=2))
    assert not (tmp_path / "s.toml").exists()


def test_the_schema_is_printed(cli: Phyla) -> None:
    assert json.loads(cli("init", "--schema"))["required"] == ["name", "command", "space", "objective"]
