"""Suites of lm-evaluation-harness give what the harness gives, on a tiny model and tasks of local files."""

import errno
import itertools
import json
import math
import os
import random
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jsonschema
import pytest

import forked
from effort import rarely
from facts import check_facts, raises
from phyla.errors import EvaluationError
from phyla.evaluation import EvalTask
from phyla.integrations import lm_eval
from phyla.integrations.lm_eval.evaluation import Loaded, describe_machine_once
from study_files import DOCS, blocks

LIMIT_S = 600
"""For imports of torch and the harness where all cores are busy."""
pytestmark = [pytest.mark.xdist_group("frameworks"), pytest.mark.timeout(4 * LIMIT_S)]

MODEL = """
import string, sys
from pathlib import Path
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

letters = [*string.ascii_lowercase, *" .,=?", "<end>"]
vocabulary = {letter: index for index, letter in enumerate(letters)}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<end>"))
tokenizer.decoder = decoders.Fuse()
ends = dict.fromkeys(("eos_token", "pad_token", "unk_token"), "<end>")
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)
for step in (10, 20):
    torch.manual_seed(step)
    config = GPT2Config(vocab_size=len(letters), n_positions=128, n_embd=16, n_layer=1, n_head=1)
    GPT2LMHeadModel(config).save_pretrained(f"runs/step_{step}")
    fast.save_pretrained(f"runs/step_{step}")
"""
CHOICE = """output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
TASKS = {
    "many": CHOICE,
    "few": CHOICE,
    "shots": f"{CHOICE}num_fewshot: 2\nfewshot_split: test\n",
    "rolling": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
    "say": """output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{gold}}"
generation_kwargs: {until: ["."], max_gen_toks: 3, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
filter_list:
  - {name: first, filter: [{function: take_first}]}
  - {name: strict, filter: [{function: regex, regex_pattern: "([z])", fallback: "1"}, {function: take_first}]}
""",
}
GROUP = """group: both
task: [many, few]
aggregate_metric_list:
  - {metric: acc, weight_by_size: true}
  - {metric: acc_norm, weight_by_size: false, filter_list: none}
"""
HARNESS = """
from functools import partial
import lm_eval.tasks
from lm_eval.__main__ import cli_evaluate

lm_eval.tasks.TaskManager = partial(lm_eval.tasks.TaskManager, include_defaults=False)
cli_evaluate()
"""
"""The harness's own command, which does not read its thousands of tasks."""
ENVIRONMENT = forked.SMALL_MODELS
NAMES = "both,shots,rolling,say"
SUITE = """[[suite]]
lm_eval = ["both", "shots", "rolling", "say"]
include_path = "../tasks"
batch_size = 8
shards = 2
cluster = "passage"
"""
STUDY = """name = "selected"
command = ["cp", "-r", "../runs/step_10/.", "{save_to}"]
objective = "maximize acc_mean"

[space]
lr = { low = 0.1, high = 1.0 }

[pbt]
population_size = 2
steps_per_trial = 10
total_steps = 10
fitness = { name = "from-suite", suite = "lm-eval" }

[[eval]]
lm_eval = ["many"]
include_path = "../tasks"
batch_size = 8
"""


class Evaluated(NamedTuple):
    """A folder with two evaluated checkpoints, and what the harness itself says of the first."""

    folder: Path
    harness: dict[str, Any]
    file: Path

    def write(self, name: str, text: str) -> str:
        """Write a file into another directory than that of the checkpoints; return its path."""
        path = self.folder / "files" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return f"files/{name}"

    def run(self, *words: object, check: bool = True) -> str:
        done = phyla(self.folder, *words)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout + done.stderr)


def phyla(folder: Path, *words: object) -> Any:
    return forked.run(["-m", "phyla.cli", *words], cwd=folder, frameworks=True, timeout=LIMIT_S, env=environment())


def environment() -> dict[str, str]:
    return {**os.environ, **ENVIRONMENT, "COLUMNS": "160", "HF_DATASETS_CACHE": "datasets"}


def write_tasks(folder: Path) -> None:
    rng = random.Random(0)

    def word() -> str:
        return "".join(rng.choices("abcdefghij", k=rng.randint(2, 6)))

    for name, count in (("many", 24), ("few", 7)):
        rows = [
            {
                "question": f"{word()} = ",
                "choices": [word(), word()],
                "gold": rng.randrange(2),
                "text": " ".join(word() for _ in range(5)),
                "passage": index // 3,
            }
            for index in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, body in TASKS.items():
        data = folder / ("many.jsonl" if name == "many" else "few.jsonl")
        place = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\n"
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{place}{body}metadata: {{version: 2.0}}\n")
    (folder / "both.yaml").write_text(GROUP)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    folder = tmp_path_factory.mktemp("lm")
    (folder / "tasks").mkdir()
    write_tasks(folder / "tasks")
    forked.run(["-c", MODEL], cwd=folder, frameworks=True, check=True, env=environment())
    own = [
        *("-c", HARNESS, "run", "--model", "hf", "--model_args", "pretrained=runs/step_10", "--device", "cpu"),
        *("--tasks", *NAMES.split(","), "--include_path", "tasks", "--batch_size", "8", "--log_samples"),
        *("--output_path", "harness"),
    ]
    forked.run(own, cwd=folder, frameworks=True, check=True, timeout=LIMIT_S, env=environment())
    (file,) = (folder / "harness").rglob("results_*.json")
    settings = ("include_path=tasks", "batch_size=8", "shards=2", "cluster=passage")
    options = [word for setting in settings for word in ("--lm-eval-option", setting)]
    done = phyla(folder, "watch", "runs", "--lm-eval", NAMES, *options, "--workers", 0, "--once")
    assert done.returncode == 0, done.stdout + done.stderr
    return Evaluated(folder, json.loads(file.read_text()), file)


def test_numbers_are_those_of_the_harness(evaluated: Evaluated) -> None:
    results = json.loads(evaluated.run("evaluations", "runs", "--format", "json", "--checkpoint", 10))
    assert results["results"].keys() == evaluated.harness["results"].keys()
    compared = 0
    for task, values in evaluated.harness["results"].items():
        for key, value in values.items():
            if "," in key:
                assert results["results"][task][key] == pytest.approx(value), f"{task} {key}"
                compared += 1
    assert compared == 2 * (2 * 6)  # two values with their errors, or two filters, of five tasks and a group
    assert results["results"]["rolling"]["word_perplexity_stderr,none"] == "N/A"
    assert 0 < results["results"]["many"]["acc,none"] < 1
    assert results["results"]["say"]["exact_match,strict"] > 0
    for name in ("versions", "n-shot", "higher_is_better"):
        assert results[name].items() <= evaluated.harness[name].items(), name
    assert results["n-samples"]["many"] == {"original": 24, "effective": 24}


def test_tasks_are_split_only_where_their_documents_are_independent(evaluated: Evaluated) -> None:
    cells = json.loads(evaluated.run("evaluations", "runs", "--json"))["cells"]
    shards = {cell["task"]: cell["shards"] for cell in cells}
    assert shards == {"many": 2, "few": 2, "shots": 1, "rolling": 1, "say": 2}


def test_every_document_is_kept_and_compared(evaluated: Evaluated) -> None:
    compared = json.loads(evaluated.run("evaluations", "runs", "--against", 10, "--json"))
    assert (compared["name"], compared["against"]) == ("step_20", "step_10")
    many, few, shots, rolling, _ = compared["differences"]
    assert (many["paired"], many["groups"], few["paired"], few["groups"], shots["paired"]) == (24, 8, 7, 3, 7)
    assert (rolling["paired"], rolling["p"]) == (0, None)
    # What was saved, and the harness's own files, give the same.
    own = json.loads(evaluated.run("evaluations", "runs", "--against", evaluated.file, "--json"))
    names = ("task", "value", "reference", "difference", "paired")
    assert [[row[name] for name in names] for row in own["differences"]] == [
        [row[name] for name in names] for row in compared["differences"]
    ]
    base = evaluated.folder / "base.json"
    base.write_text(evaluated.run("evaluations", "runs", "--format", "json", "--checkpoint", "step_10"))
    again = json.loads(evaluated.run("evaluations", "runs", "--against", base, "--json"))
    assert [row["paired"] for row in again["differences"]] == [24, 7, 7, 0, 7]
    table = evaluated.run("evaluations", "runs", "--against", 10)
    check_facts(table, "step_20 against step_10", "many", "acc")


def test_results_are_printed_as_the_harness_prints_them(evaluated: Evaluated) -> None:
    lines = evaluated.run("evaluations", "runs", "--format", "markdown", "--checkpoint", 10).splitlines()
    assert lines[0] == "|Tasks|Version|Filter|n-shot|Metric|Value|Stderr|"
    value = evaluated.harness["results"]["many"]
    assert f"|many|2.0|none|0|acc|{value['acc,none']:.4f}|{value['acc_stderr,none']:.4f}|" in lines
    rows = evaluated.run("evaluations", "runs", "--format", "csv", "--checkpoint", 10).splitlines()
    assert [row.split(",")[:2] for row in rows[1:3]] == [["many", "2.0"]] * 2
    assert len(rows) == len(lines) - 1


DIVERGED = """
import shutil
import torch
from transformers import GPT2LMHeadModel

for step, first in ((30, 12), (40, 0)):
    shutil.copytree("runs/step_10", f"diverged/step_{step}")
    model = GPT2LMHeadModel.from_pretrained("runs/step_10")
    with torch.no_grad():
        model.transformer.wpe.weight[first:] = torch.nan
    model.save_pretrained(f"diverged/step_{step}")
shutil.copytree("runs/step_10", "diverged/step_10")
"""


def test_what_a_diverged_model_guesses_counts_for_nothing(evaluated: Evaluated) -> None:
    forked.run(["-c", DIVERGED], cwd=evaluated.folder, frameworks=True, check=True, env=environment())
    settings = ("include_path=tasks", "batch_size=1", "shards=2", "objective=maximize acc_mean")
    options = [word for setting in settings for word in ("--lm-eval-option", setting)]
    told = evaluated.run(
        "watch", "diverged", "--lm-eval", "both,rolling", *options, "--workers", 0, "--once", "--alert"
    )
    assert "note" not in told
    check_facts(told, "regression: lm-eval/many acc", "step 30")
    for step in (30, 40):
        results = json.loads(evaluated.run("evaluations", "diverged", "--format", "json", "--checkpoint", step))
        for task, metric in (("many", "acc"), ("few", "acc_norm"), ("both", "acc"), ("rolling", "bits_per_byte")):
            assert math.isnan(float(results["results"][task][f"{metric},none"]))
        rows = results["samples"]["many"]
        unknown = [row for row in rows if "nan" in json.dumps(row["filtered_resps"]).lower()]
        assert [row for row in rows if math.isnan(float(row["acc"]))] == unknown
        assert 0 < len(unknown) < len(rows) if step == 30 else unknown == rows
    best = json.loads(evaluated.run("best", "diverged", "--json"))
    assert [row["checkpoint"]["step"] for row in best] == [10]


def test_the_machine_is_described_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.loggers.utils import add_env_info
    from torch.utils import collect_env

    counter = itertools.count()
    monkeypatch.setattr(collect_env, "get_pretty_env_info", lambda: f"description {next(counter)}")
    describe_machine_once.cache_clear()
    for _ in range(2):
        describe_machine_once()
        results: dict[str, Any] = {}
        add_env_info(results)
        assert results["pretty_env_info"] == "description 0"
    describe_machine_once.cache_clear()


def test_a_suite_without_a_best_checkpoint_is_named(evaluated: Evaluated) -> None:
    words = ("watch", "runs", "--lm-eval", "many,rolling", "--lm-eval-option", "include_path=tasks", "--plan")
    check_facts(evaluated.run(*words), "lm-eval", "objective", "--lm-eval-option 'objective=maximize acc_mean'")
    assert "objective" not in evaluated.run(*words[:3], "many", *words[4:])
    objective = "objective=maximize acc_mean"
    assert "note" not in evaluated.run(*words, "--lm-eval-option", objective)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("watch", "runs", "--lm-eval", "mani", "--lm-eval-option", "include_path=no"), ("/no'", "include_path")),
        (
            ("watch", "runs", "--lm-eval", "many", "--lm-eval-option", "shard=2"),
            ("'shard'", "--lm-eval-option", "'shards'"),
        ),
        (("watch", "runs", "--lm-eval-option", "shards=2"), ("--lm-eval TASKS",)),
        (("watch", "runs", "--lm-eval", "many", "--lm-eval-option", "shards"), ("NAME=VALUE",)),
        (("evaluations", "runs", "--against", "step_30"), ("step_30", "step_20")),
        (("evaluations", "runs", "--against", "tasks/both.yaml"), ("both.yaml", "lm-evaluation-harness")),
        (("evaluations", "runs", "--against", "step_20"), ("step_20", "--checkpoint")),
    ],
)
def test_mistakes_are_explained(evaluated: Evaluated, words: tuple[str, ...], facts: tuple[str, ...]) -> None:
    text = evaluated.run(*words, check=False)
    assert "Traceback" not in text
    check_facts(text, *facts)


WITHOUT_TOKENIZER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from transformers import AutoConfig, AutoModelForCausalLM
from phyla.errors import EvaluationError
from phyla.integrations.lm_eval import LoadModel

small = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=64)
for kind in ("gpt2", "gpt_neox", "qwen2", "opt"):
    path = Path(f"bare/{kind}")
    own = {} if kind != "opt" else {"word_embed_proj_dim": 16, "ffn_dim": 16}
    config = AutoConfig.for_model(kind, **small, **own, bos_token_id=0, eos_token_id=0, pad_token_id=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    try:
        LoadModel(device="cpu")(SimpleNamespace(path=path))
    except EvaluationError as error:
        print(kind, error)
    LoadModel(device="cpu", model_args={"tokenizer": sys.argv[1]})(SimpleNamespace(path=path))
"""


def test_a_checkpoint_without_a_tokenizer_is_not_evaluated(evaluated: Evaluated) -> None:
    tokenizer = evaluated.folder / "runs" / "step_10"
    done = forked.run(
        ["-c", WITHOUT_TOKENIZER, tokenizer], cwd=evaluated.folder, frameworks=True, env=environment()
    )
    assert done.returncode == 0, done.stderr
    for kind, line in zip(("gpt2", "gpt_neox", "qwen2", "opt"), done.stdout.splitlines(), strict=True):
        check_facts(line, kind, "tokenizer", "model_args")


INCOMPLETE = """
import errno, json, shutil, sys, warnings
from pathlib import Path
from types import SimpleNamespace
import lm_eval.api.registry
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from phyla.errors import EvaluationError
from phyla.integrations.lm_eval import LoadModel

own = PreTrainedModel.__dict__["from_pretrained"]

def load(folder):
    try:
        LoadModel(device="cpu")(SimpleNamespace(path=folder))
        print("complete")
    except EvaluationError as error:
        print(error)
    except OSError as error:
        print(repr(error))
    assert PreTrainedModel.__dict__["from_pretrained"] is own

whole = Path(sys.argv[1])
state = load_file(whole / "model.safetensors")
name = next(key for key in state if key.endswith("c_fc.weight"))
for kind, changed in {
    "whole": state,
    "wrapped": {f"_orig_mod.{key}": value for key, value in state.items()},
    "without": {key: value for key, value in state.items() if key != name},
}.items():
    shutil.copytree(whole, kind)
    save_file(changed, f"{kind}/model.safetensors", {"format": "pt"})
    load(Path(kind))

class Adapted:
    @classmethod
    def create_from_arg_obj(cls, arguments, settings):
        if arguments["pretrained"] == "moved":
            raise OSError("moved is not a local folder")
        if arguments["pretrained"] == "full":
            raise OSError(errno.ENOSPC, "full")
        warnings.warn("Careful. Found missing adapter keys while loading the checkpoint: ['lora_A.weight'].")

lm_eval.api.registry.get_model = lambda name: Adapted
for base in ("there", "moved", "full"):
    Path(base).mkdir()
    Path(base, "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    load(Path(base))
"""


def test_a_checkpoint_that_lacks_weights_is_not_evaluated(evaluated: Evaluated, tmp_path: Path) -> None:
    whole = evaluated.folder / "runs" / "step_10"
    done = forked.run(["-c", INCOMPLETE, whole], cwd=tmp_path, frameworks=True, env=environment())
    assert done.returncode == 0, done.stderr
    complete, wrapped, without, adapter, base, disk = done.stdout.splitlines()
    assert complete == "complete"
    check_facts(wrapped, "_orig_mod.", "prepare=")
    check_facts(without, "1", "c_fc.weight")
    check_facts(adapter, "adapter", "lora_A.weight")
    check_facts(base, "moved", str(tmp_path), 'model_args={"pretrained": "PATH"}')
    assert disk == repr(OSError(errno.ENOSPC, "full")), "the disk is at fault, not this checkpoint"


ADAPTERS = """
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
import lm_eval.api.registry
from phyla.errors import EvaluationError
from phyla.integrations.lm_eval import LoadModel

class Model:
    @classmethod
    def create_from_arg_obj(cls, arguments, settings):
        print(json.dumps(arguments))

lm_eval.api.registry.get_model = lambda name: Model

def load(name, model="hf", **arguments):
    try:
        LoadModel(model=model, device="cpu", model_args=arguments)(SimpleNamespace(path=Path(name)))
    except EvaluationError as error:
        print(error)

for name, base in (("adapter", "base"), ("nameless", None), ("whole", "base")):
    Path(name).mkdir()
    Path(name, "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
Path("adapter/tokenizer_config.json").touch()
Path("whole/config.json").touch()
load("adapter", dtype="float32")
load("adapter", pretrained="other", tokenizer="own")
load("nameless", pretrained="other")
load("nameless")
load("whole")
load("whole", pretrained="other")
load("adapter", model="vllm")
load("adapter", model="huggingface")
Path("model.safetensors").touch()
load("model.safetensors")
load("model.safetensors", model="vllm")
Path("shards").mkdir()
load("shards")
load("shards", gguf_file="model.gguf")
"""


def test_an_adapter_is_loaded_on_its_base_model(tmp_path: Path) -> None:
    done = forked.run(["-c", ADAPTERS], cwd=tmp_path, frameworks=True, env=environment())
    assert done.returncode == 0, done.stderr
    usual, chosen, named, nameless, whole, replaced, other, long_name, *more = done.stdout.splitlines()
    adapter = {"pretrained": "base", "peft": "adapter", "tokenizer": "adapter"}
    assert json.loads(usual) == {**adapter, "dtype": "float32"}
    assert json.loads(chosen) == {**adapter, "pretrained": "other", "tokenizer": "own"}
    assert json.loads(named) == {"pretrained": "other", "peft": "nameless"}
    check_facts(nameless, "adapter_config.json", 'model_args={"pretrained": "PATH"}')
    assert json.loads(whole) == {"pretrained": "whole"}
    check_facts(replaced, "'pretrained'", "each checkpoint")
    assert json.loads(other) == {"pretrained": "adapter"}
    assert json.loads(long_name) == adapter
    file, file_of_other, shards, gguf = more
    for lacking in (file, shards):
        check_facts(lacking, "config.json", "save_pretrained", "prepare=")
    assert json.loads(file_of_other) == {"pretrained": "model.safetensors"}
    assert json.loads(gguf) == {"pretrained": "shards", "gguf_file": "model.gguf"}


def test_a_suite_in_toml_is_the_same_suite(evaluated: Evaluated) -> None:
    file = evaluated.write("suite.toml", SUITE)
    check_facts(evaluated.run("watch", "runs", "--suite", file, "--plan"), "many", "0 shards would be computed")
    more = evaluated.write("more.toml", SUITE.replace('"both"', '"both", "say_again"'))
    again = TASKS["say"].replace("max_gen_toks: 3", "max_gen_toks: 2")
    tasks = evaluated.folder / "tasks"
    whole = (tasks / "say.yaml").read_text().replace(TASKS["say"], again)
    (tasks / "say_again.yaml").write_text(whole.replace("task: say", "task: say_again"))
    check_facts(
        evaluated.run("watch", "runs", "--suite", more, "--plan"), "say_again", "4 shards would be computed"
    )


def test_a_task_whose_file_was_edited_is_evaluated_again(evaluated: Evaluated) -> None:
    file, task = evaluated.write("suite.toml", SUITE), evaluated.folder / "tasks" / "few.yaml"
    text = task.read_text()
    task.write_text(f'{text}description: "Choose. "\n')
    plan = evaluated.run("watch", "runs", "--suite", file, "--plan")
    task.write_text(text)
    check_facts(plan, "few", "4 shards would be computed")


def test_results_of_a_task_belong_to_its_functions_and_its_members_wherever_they_are(tmp_path: Path) -> None:
    many = f"task: many\n{CHOICE}"

    def digests(folder: str, **edited: str) -> dict[str, object]:
        files = {"utils.py": "def ask(doc): return doc['q']\n", "plain.yaml": many, **edited}
        files["asks.yaml"] = "include: plain.yaml\ntask: asks\ndoc_to_text: !function utils.ask\n"
        files["over.yaml"] = "group: over\ntask: [{task: many, num_fewshot: 1}, asks]\n"
        for name, text in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        suite = lm_eval.suite(["many", "asks", "over"], include_path=tmp_path / folder)
        return {task.name: task.config["digest"] for task in suite.tasks}

    first = digests("first")
    assert digests("moved") == first
    for edited, same in (
        ({"utils.py": "def ask(doc): return doc['q'].upper()\n"}, {"many"}),
        ({"plain.yaml": many + 'description: "Choose. "\n'}, set()),
    ):
        again = digests(f"edited_{len(same)}", **edited)
        assert {name for name in first if again[name] == first[name]} == same


@pytest.mark.parametrize(
    "place",
    [
        "dataset_path: json\ndataset_kwargs: {data_files: {test: FOLDER/a.jsonl, train: [FOLDER/b.jsonl]}}",
        "dataset_path: json\ndataset_kwargs: {data_files: 'FOLDER/*.jsonl'}",
        "dataset_path: json\ndataset_kwargs: {data_dir: FOLDER, data_files: {test: [a.jsonl, b.jsonl]}}",
        "dataset_path: json\ndataset_kwargs: {data_dir: FOLDER}",
        "dataset_path: FOLDER\ndataset_kwargs: {data_files: '**'}",
        "dataset_path: FOLDER",
    ],
)
def test_results_of_a_task_belong_to_its_local_documents(place: str, tmp_path: Path) -> None:
    folder, tasks = tmp_path / "documents", tmp_path / "tasks"
    folder.mkdir()
    tasks.mkdir()
    (tasks / "many.yaml").write_text(f"task: many\n{place.replace('FOLDER', str(folder))}\n{CHOICE}")

    def task(**edited: str) -> EvalTask:
        for name, text in {"a": "1", "b": "2", **edited}.items():
            (folder / f"{name}.jsonl").write_text(text)
        (read,) = lm_eval.suite(["many"], include_path=tasks).tasks
        return read

    first = task()
    running: Any = SimpleNamespace(config=first.config, shard=None, loaded=Loaded(None, {}, str(tasks)))
    for edited in ({"a": "an edit"}, {"b": "an edit"}):
        assert task(**edited).config["digest"] != first.config["digest"]
        with raises(EvaluationError, "many", str(tasks), "edited", "restart"):
            first(running)
    assert task().config["digest"] == first.config["digest"]


def test_documents_elsewhere_are_known_by_their_names(tmp_path: Path) -> None:
    place = "dataset_path: json\ndataset_kwargs: {data_files: {test: ['hf://datasets/a/b.jsonl', '**x']}}"
    for split in ("a", "b"):
        (tmp_path / f"{split}.yaml").write_text(f"task: {split}\n{place.replace('a/b', f'a/{split}')}\n{CHOICE}")
    first, second = (task.config["digest"] for task in lm_eval.suite(["a", "b"], include_path=tmp_path).tasks)
    assert first != second


@pytest.mark.thorough  # test_evaluated_study.py: any suite may select
def test_a_study_file_selects_by_tasks_of_the_harness(evaluated: Evaluated) -> None:
    file = evaluated.write("study.toml", STUDY)
    evaluated.run("check", file)
    evaluated.run("run", file, "--workers", 0)
    best = json.loads(evaluated.run("best", "selected", "--json"))
    assert best["fitness"] == pytest.approx(evaluated.harness["results"]["many"]["acc,none"])


@pytest.mark.thorough
def test_the_documented_suite_has_tasks_that_the_harness_has(evaluated: Evaluated) -> None:
    (text,) = (text for name, text in blocks("how-to/language-models.md", "toml") if name == "benchmarks.toml")
    plan = evaluated.run("watch", "runs", "--suite", evaluated.write("benchmarks.toml", text), "--plan")
    check_facts(plan, "arc_easy", "mmlu_anatomy")
    own = tomllib.loads(evaluated.folder.joinpath(evaluated.write("suite.toml", SUITE)).read_text())
    definitions = json.loads((DOCS / "study.schema.json").read_text())["definitions"]
    schema = {"definitions": definitions, "$ref": "#/definitions/lm_eval"}
    for suite in (*tomllib.loads(text)["suite"], *own["suite"]):
        jsonschema.Draft7Validator(schema).validate(suite)


@pytest.mark.parametrize(
    ("old", "new", "facts"),
    [
        # The harness reads 13,000 files before it knows that it has no such task.
        rarely('"shots"', '"shosts"', ("suite.toml, suite[0]", "'shosts'", "did you mean 'shots'")),
        ("batch_size", "batchsize", ("suite.toml, suite[0]", "'batchsize'", "did you mean 'batch_size'")),
        ("lm_eval", "lm-eval", ("suite.toml, suite[0]", "'lm-eval'", "did you mean 'lm_eval'")),
        ("shards = 2", "shards = true", ("suite.toml, suite[0].shards", "an integer", "true")),
        ('"../tasks"', '"../task"', ("suite.toml, suite[0]", "include_path", "files/../task'")),
        ('["both", "shots", "rolling", "say"]', "[]", ("suite.toml, suite[0]", "at least one task")),
    ],
)
def test_mistakes_in_toml_are_explained(evaluated: Evaluated, old: str, new: str, facts: tuple[str, ...]) -> None:
    assert old in SUITE
    file = evaluated.write("suite.toml", SUITE.replace(old, new))
    text = evaluated.run("watch", "runs", "--suite", file, "--plan", check=False)
    assert "Traceback" not in text
    check_facts(text, *facts)


def test_only_suites_of_the_harness_need_it(tmp_path: Path) -> None:
    (tmp_path / "harness.toml").write_text(SUITE)
    (tmp_path / "other.toml").write_text(
        '[[suite]]\nname = "own"\ntasks = [{ name = "x", command = "x {results}" }]'
    )
    program = """
import sys
from phyla.study import load_suites
print(load_suites("other.toml")[0].name, "lm_eval" in sys.modules)
sys.modules["lm_eval"] = None
load_suites("harness.toml")
"""
    done = forked.run(["-c", program], cwd=tmp_path)
    assert done.stdout == "own False\n"
    check_facts(done.stderr, "UsageError", "harness.toml, suite[0]", "pip install 'phyla[lm-eval]'")
