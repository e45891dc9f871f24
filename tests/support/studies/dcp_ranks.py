"""One of two ranks that save a tiny model as one sharded checkpoint, and its logits.

Argument: a directory with `tiny.json`, the configuration of a GPT-2. `ckpt/step_7` and `logits.npy` go there.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import GPT2Config, GPT2LMHeadModel

FOLDER = Path(sys.argv[1])

dist.init_process_group("gloo", f"file://{FOLDER / 'rendezvous'}", rank=int(os.environ["RANK"]), world_size=2)
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(**json.loads((FOLDER / "tiny.json").read_text()))).eval()
mesh = init_device_mesh("cpu", (2,))
state = {name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in model.state_dict().items()}
save({"model": state}, checkpoint_id=FOLDER / "ckpt" / "step_7")
if dist.get_rank() == 0:
    with torch.no_grad():
        np.save(FOLDER / "logits.npy", model(torch.arange(4)[None]).logits.numpy())
dist.destroy_process_group()
