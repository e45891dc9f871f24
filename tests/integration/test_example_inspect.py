"""The example with Inspect: its numbers are those of Inspect, on models that always give one answer."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import forked
import phyla
from facts import check_facts

pytestmark = pytest.mark.xdist_group("frameworks")

EXAMPLE = Path(__file__).parents[2] / "examples" / "language_models"
MODELS = """
import string
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

letters = [*string.ascii_letters, *" .,:=?\\n", "<end>"]
vocabulary = {letter: at for at, letter in enumerate(letters)}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<end>"))
tokenizer.decoder = decoders.Fuse()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict.fromkeys(("eos_token", "pad_token"), "<end>"))
for step, answer in ((10, "d"), (20, "e")):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(letters), n_positions=128, n_embd=64, n_layer=1, n_head=1))
    normalization, embedding = model.transformer.ln_f, model.transformer.wte.weight
    with torch.no_grad():
        normalization.weight.zero_()
        normalization.bias.copy_(1e4 * embedding[letters.index(answer)])
    model.save_pretrained(f"runs/step_{step}")
    fast.save_pretrained(f"runs/step_{step}")
"""
TARGETS = ("d", "d", "d", "e")


def test_every_checkpoint_answers_the_questions_of_a_task(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "inspect_suite.py", tmp_path)
    questions = [{"id": f"q{at}", "input": "abc", "target": target} for at, target in enumerate(TARGETS)]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(question)}\n" for question in questions))
    own: Any = {"cwd": tmp_path, "frameworks": True, "timeout": 240, "env": {**os.environ, **forked.SMALL_MODELS}}
    forked.run(["-c", MODELS], check=True, **own)
    watch = ["-m", "phyla.cli", "watch", "runs", "--suite", "inspect_suite.py", "--once", "--workers", 0]
    done = forked.run(watch, **own)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = phyla.load_evaluations("runs", home=tmp_path / ".phyla").cells()
    estimates = {cell.seen.step: cell.values["accuracy"] for cell in cells}
    assert {step: estimate.value for step, estimate in estimates.items()} == {10: 0.75, 20: 0.25}
    assert [estimate.stderr for estimate in estimates.values()] == pytest.approx([0.25, 0.25])
    compared = forked.run(["-m", "phyla.cli", "evaluations", "runs", "--against", 10], **own)
    check_facts(compared.stdout, "step_20 against step_10", "capitals", "accuracy", "-0.50 ±0.50")
