"""A sharded checkpoint of `torch.distributed.checkpoint` that becomes a Hugging Face folder for all eval tasks."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import forked
from forked import SUPPORT
from watching import Look, command

pytestmark = pytest.mark.xdist_group("frameworks")

TINY = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 16, "n_positions": 8}
SUITES = """
import json
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import phyla

HERE = Path(__file__).parent


def to_hugging_face(checkpoint, into):
    model = GPT2LMHeadModel(GPT2Config(**json.loads((HERE / "tiny.json").read_text())))
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=checkpoint.path)
    model.load_state_dict(state["model"])
    model.save_pretrained(into)


@phyla.eval_task
def logits(evaluation):
    assert (evaluation.checkpoint.path / "model.safetensors").exists()
    assert len(list(evaluation.checkpoint.original.glob("*.distcp"))) == 2
    model = AutoModelForCausalLM.from_pretrained(evaluation.checkpoint.path).eval()
    with torch.no_grad():
        now = model(torch.arange(4)[None]).logits.numpy()
    evaluation.record(largest=np.abs(now).max(), difference=np.abs(now - np.load(HERE / "logits.npy")).max())


suite = phyla.Suite("tiny", [logits], prepare=to_hugging_face)
"""


def test_shards_of_two_ranks_become_one_model_with_the_same_logits(tmp_path: Path) -> None:
    env = {**os.environ, **forked.SMALL_MODELS}
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    program = SUPPORT / "studies" / "dcp_ranks.py"
    ranks = [
        forked.Forked([program, tmp_path], env={**env, "RANK": str(rank)}, frameworks=True, merged=True)
        for rank in range(2)
    ]
    for rank in ranks:
        output, _ = rank.communicate(timeout=180)
        assert rank.returncode == 0, output
    assert len(list((tmp_path / "ckpt" / "step_7").glob("*.distcp"))) == 2
    (tmp_path / "suites.py").write_text(SUITES)
    words = ["watch", "ckpt", "--suite", "suites.py:suite", "--name", "job", "--workers", 0, "--once"]
    done = forked.run(command(*words), cwd=tmp_path, env=env, frameworks=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    ((entry,),) = Look(tmp_path).results.values()
    recorded: dict[str, Any] = dict(entry.statistics)
    assert recorded["difference"]["state"]["mean"] < 1e-6
    assert recorded["largest"]["state"]["mean"] > 1e-3
