"""The states of the random number generators of Python, NumPy and PyTorch."""

from collections.abc import Mapping
from typing import Any


def random_state() -> dict[str, Any]:
    """Return the states of all random number generators, in types that `torch.load` reads with `weights_only`."""
    import random  # noqa: TID251  # the user's code may draw from it

    import numpy as np
    import torch

    name, keys, *rest = np.random.get_state()  # noqa: NPY002  # the user's code may draw from it
    used = torch.cuda.is_initialized()
    cuda = torch.cuda.get_rng_state_all() if used else []
    numpy = (name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest)
    return {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state(), "cuda": cuda}


def restore_random(state: Mapping[str, Any]) -> None:
    """Set all random number generators to what `random_state` returned."""
    import random  # noqa: TID251

    import numpy as np
    import torch

    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy(), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
