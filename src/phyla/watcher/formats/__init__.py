"""The formats of checkpoints that phyla recognizes, by name."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType

from phyla.errors import ConfigurationError
from phyla.watcher.formats.auto import Auto
from phyla.watcher.formats.dcp import Distributed
from phyla.watcher.formats.huggingface import HuggingFace
from phyla.watcher.formats.marker import Marker
from phyla.watcher.formats.orbax import Orbax
from phyla.watcher.formats.quiet import Quiet
from phyla.watcher.formats.safetensors import Safetensors
from phyla.watcher.formats.templates import Steps
from phyla.watcher.formats.torch import TorchFiles
from phyla.watcher.found import CheckpointFormat
from phyla.watcher.step import StepFrom

FORMATS: Mapping[str, Callable[..., CheckpointFormat]] = MappingProxyType(
    {
        "auto": Auto,
        "dcp": Distributed,
        "huggingface": HuggingFace,
        "marker": Marker,
        "orbax": Orbax,
        "quiet": Quiet,
        "safetensors": Safetensors,
        "steps": Steps,
        "torch": TorchFiles,
    }
)
"""What makes each format, by its name."""


def get_format(name: str, *, step: StepFrom | str | None = None, **options: object) -> CheckpointFormat:
    """Return a format by its name.

    Args:
        name: one of `FORMATS`.
        step: where steps come from, also as the text that `StepFrom.parse` reads.
        options: what else that format takes: `quiet_s` for all, `marker` for marker, `templates` for steps.

    Raises:
        ConfigurationError: there is no such format, or it does not take such an option.
    """
    make = FORMATS.get(name)
    if make is None:
        raise ConfigurationError(f"no checkpoint format is called {name!r}; choose one of: {', '.join(FORMATS)}")
    if step is not None:
        options["step"] = StepFrom.parse(step) if isinstance(step, str) else step
    accepted = inspect.signature(make).parameters
    unknown = [option for option in options if option not in accepted]
    if unknown:
        others = [
            other for other, maker in FORMATS.items() if {*options} <= {*inspect.signature(maker).parameters}
        ]
        elsewhere = f"; {' and '.join(others)} does: name that format" if others else ""
        raise ConfigurationError(
            f"format {name} does not take {', '.join(unknown)}, only {', '.join(accepted)}{elsewhere}"
        )
    return make(**options)


def step_rule(kind: CheckpointFormat, name: str) -> str:
    """Say in words where the step of a checkpoint comes from.

    Args:
        kind: what checkpoints look like.
        name: of the checkpoint.
    """
    if isinstance(kind, Steps) and kind.step == StepFrom():
        return "the digits where its template has {step}"
    return kind.step.rule(name)


__all__ = [
    "FORMATS",
    "Auto",
    "Distributed",
    "HuggingFace",
    "Marker",
    "Orbax",
    "Quiet",
    "Safetensors",
    "Steps",
    "TorchFiles",
    "get_format",
    "step_rule",
]
