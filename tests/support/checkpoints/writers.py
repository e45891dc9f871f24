"""Programs that save checkpoints with real libraries, and load them again.

`python writers.py LIBRARY DIRECTORY STEPS [FIRST]` prints the number of each step once it is saved; before that,
it saves 4 steps to another directory.
`python writers.py load FIFO` reads lines of a library, a step and a path, and says of each whether it can be
loaded and is what was saved.
"""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZE = 300_000


def torch_state(step: int) -> dict[str, Any]:
    import torch

    values = torch.arange(SIZE, dtype=torch.float32) + step
    return {"weights": values, "bias": torch.full((7,), float(step)), "step": step}


def check_torch_state(state: dict[str, Any], step: int) -> None:
    import torch

    wanted = torch_state(step)
    assert state.keys() >= {"weights", "bias"}
    assert torch.equal(state["weights"], wanted["weights"])
    assert torch.equal(state["bias"], wanted["bias"])


def save_torch(root: Path, step: int) -> None:
    import torch

    torch.save(torch_state(step), root / f"model_{step}.pt")


def load_torch(path: Path, step: int) -> None:
    import torch

    check_torch_state(torch.load(path, weights_only=True), step)


def save_slowly(root: Path, step: int) -> None:
    """As over a slow network: whole content, a piece at a time."""
    import io

    import torch

    buffer = io.BytesIO()
    torch.save(torch_state(step), buffer)
    data = buffer.getvalue()
    with open(root / f"model_{step}.pt", "wb") as file:
        for start in range(0, len(data), 2**15):
            file.write(data[start : start + 2**15])
            file.flush()


def save_in_place(root: Path, step: int) -> None:
    """The same file again and again."""
    import torch

    torch.save(torch_state(step), root / "model.pt")


def load_any_step(path: Path, step: int) -> None:
    import torch

    state = torch.load(path, weights_only=True)
    check_torch_state(state, state["step"])


def save_dcp(root: Path, step: int) -> None:
    from torch.distributed import checkpoint as dcp

    dcp.state_dict_saver.save(torch_state(step), checkpoint_id=root / f"step-{step}", no_dist=True)


def save_dcp_in_place(root: Path, step: int) -> None:
    """Over the checkpoint before, in the same directory."""
    from torch.distributed import checkpoint as dcp

    dcp.state_dict_saver.save(torch_state(step), checkpoint_id=root / "step-0", no_dist=True)


def load_dcp(path: Path, step: int) -> None:
    import torch
    from torch.distributed import checkpoint as dcp

    state = {name: torch.zeros_like(value) for name, value in torch_state(step).items() if name != "step"}
    dcp.state_dict_loader.load(state, checkpoint_id=path, no_dist=True)
    check_torch_state(state, int(state["bias"][0]))


def save_safetensors(root: Path, step: int) -> None:
    from safetensors.torch import save_file

    state = {name: value for name, value in torch_state(step).items() if name != "step"}
    save_file(state, root / f"model_{step}.safetensors")


def load_safetensors(path: Path, step: int) -> None:
    from safetensors.torch import load_file

    check_torch_state(load_file(path), step)


def save_shards(root: Path, step: int) -> None:
    from huggingface_hub import save_torch_state_dict

    folder = root / f"step-{step}"
    folder.mkdir(exist_ok=True)
    state = {name: value for name, value in torch_state(step).items() if name != "step"}
    halves = dict(zip(("weights.0", "weights.1"), state.pop("weights").clone().split(SIZE // 2), strict=True))
    save_torch_state_dict(
        {**state, **{name: part.clone() for name, part in halves.items()}}, folder, max_shard_size=SIZE * 2
    )


def load_shards(path: Path, step: int) -> None:
    import json

    import torch
    from safetensors.torch import load_file

    mapping = json.loads((path / "model.safetensors.index.json").read_bytes())["weight_map"]
    state = {name: load_file(path / shard)[name] for name, shard in mapping.items()}
    state["weights"] = torch.cat([state["weights.0"], state["weights.1"]])
    check_torch_state(state, step)


def save_policy(root: Path, step: int) -> None:
    from stable_baselines3.common.save_util import save_to_zip_file

    path = root / f"rl_model_{step}_steps.zip"
    save_to_zip_file(path, data={"num_timesteps": step}, params={"policy": torch_state(step)})


def load_policy(path: Path, step: int) -> None:
    from stable_baselines3.common.save_util import load_from_zip_file

    parameters: Any = load_from_zip_file(path)[1]
    check_torch_state(parameters["policy"], step)


def _orbax(root: Path, steps: range, report: Callable[[int], None], **options: Any) -> None:
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions(**options)) as manager:
        for step in steps:
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.arange(SIZE, dtype="float32") + step}))
            manager.wait_until_finished()
            report(step)


def load_orbax(path: Path, step: int) -> None:
    import numpy as np
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        state = checkpointer.restore(path / "default")
    assert np.array_equal(np.asarray(state["w"]), np.arange(SIZE, dtype="float32") + step)


def _trainer(root: Path, steps: range, report: Callable[[int], None]) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    class Report(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            report(state.global_step)

    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    row = {"input_ids": list(range(8)), "labels": list(range(8))}
    Trainer(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir=str(root), max_steps=len(steps), save_steps=1, per_device_train_batch_size=1, report_to=[],
            save_total_limit=4, use_cpu=True, disable_tqdm=True, logging_steps=1000,
        ),
        train_dataset=[row] * 4,
        callbacks=[Report()],
    ).train()  # fmt: skip


def load_trainer(path: Path, step: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM, TrainerState

    AutoModelForCausalLM.from_pretrained(path)
    torch.load(path / "optimizer.pt", weights_only=True)
    assert TrainerState.load_from_json(str(path / "trainer_state.json")).global_step == step


SAVERS: dict[str, Callable[[Path, int], None]] = {
    "torch": save_torch,
    "slow": save_slowly,
    "in-place": save_in_place,
    "dcp": save_dcp,
    "dcp-in-place": save_dcp_in_place,
    "safetensors": save_safetensors,
    "shards": save_shards,
    "policy": save_policy,
}
LOADERS: dict[str, Callable[[Path, int], None]] = {
    "torch": load_torch,
    "slow": load_torch,
    "in-place": load_any_step,
    "dcp": load_dcp,
    "dcp-in-place": load_dcp,
    "safetensors": load_safetensors,
    "shards": load_shards,
    "policy": load_policy,
    "orbax": load_orbax,
    "orbax-commit-file": load_orbax,
    "huggingface": load_trainer,
}


def report(step: int) -> None:
    print(step, flush=True)


def run(library: str, root: Path, steps: range) -> None:
    root.mkdir(parents=True, exist_ok=True)
    if library == "huggingface":
        return _trainer(root, steps, report)
    if library == "orbax":
        return _orbax(root, steps, report, max_to_keep=4)
    if library == "orbax-commit-file":
        from orbax.checkpoint.path import atomicity

        return _orbax(root, steps, report, max_to_keep=4, temporary_path_class=atomicity.CommitFileTemporaryPath)
    for step in steps:
        SAVERS[library](root, step)
        report(step)
    return None


def load_as_asked(requests: str) -> None:
    """Answer each line `LIBRARY STEP PATH` with `ok`, or with what went wrong."""
    with open(requests) as lines:
        for line in lines:
            library, step, path = line.rstrip("\n").split(" ", 2)
            try:
                LOADERS[library](Path(path), int(step))
            except Exception as error:  # noqa: BLE001 -- the test wants to hear of every one
                print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
            else:
                print("ok", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if sys.argv[1] == "load":
        load_as_asked(sys.argv[2])
    else:
        for first in sys.argv[4:]:
            run(sys.argv[1], Path(first).absolute(), range(4))
        run(sys.argv[1], Path(sys.argv[2]).absolute(), range(int(sys.argv[3])))
