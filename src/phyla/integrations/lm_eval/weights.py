"""Loads models of Hugging Face, but none with weights that its checkpoint lacks."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from phyla.errors import EvaluationError

_OF_ADAPTER = r"(?s).*Found missing adapter keys"
"""What PEFT warns of; it leaves such an adapter as if it was never trained."""
_SHOWN = 300


@contextmanager
def complete_weights() -> Iterator[None]:
    """Raise EvaluationError where a checkpoint lacks weights; libraries would make some up, and only warn."""
    from transformers import PreTrainedModel

    own = PreTrainedModel.__dict__["from_pretrained"]

    def from_pretrained(cls: Any, *arguments: Any, **settings: Any) -> Any:
        model, info = own.__func__(cls, *arguments, **{**settings, "output_loading_info": True})
        # Buffers do not come from training.
        lacking = sorted(dict(model.named_parameters()).keys() & info["missing_keys"])
        if lacking:
            raise EvaluationError(_explain(f"weights of its model ({len(lacking)}, such as {lacking[0]!r})"))
        return (model, info) if settings.get("output_loading_info") else model

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", _OF_ADAPTER, UserWarning)
            yield
    except UserWarning as warning:
        raise EvaluationError(_explain(f"weights of its adapter ({str(warning)[:_SHOWN]})")) from warning
    finally:
        PreTrainedModel.from_pretrained = own


def _explain(what: str) -> str:
    return (
        f"this checkpoint lacks {what}, so untrained ones would be evaluated: let training save the state of the "
        "model itself, not of what wraps it (whose names begin with 'module.' or '_orig_mod.'), or convert it: "
        "prepare="
    )
