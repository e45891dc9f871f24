"""The checkpoint formats that are built in, one a file, each an entry point in the group `phyla.formats`."""

from dataclasses import fields
from typing import Any

from phyla import plugins
from phyla.errors import ConfigurationError
from phyla.watcher.format import CheckpointFormat
from phyla.watcher.step import StepFrom

GROUP = "phyla.formats"


def format_names() -> list[str]:
    """Return the names of all formats that are installed, sorted."""
    return sorted(plugins.of_group(GROUP))


def get_format(name: str, *, step: StepFrom | str | None = None, **options: Any) -> CheckpointFormat:
    """Return a format by its name.

    Args:
        name: one of `format_names()`.
        step: where steps come from, also as the text that `StepFrom.parse` reads.
        options: what else that format takes: `quiet_s` for all, `marker` for marker, `templates` for steps.

    Raises:
        ConfigurationError: there is no such format, or it does not take such an option.
    """
    found = plugins.of_group(GROUP)
    if name not in found:
        raise ConfigurationError(
            f"no checkpoint format is called {name!r}; choose one of: {', '.join(format_names())}"
        )
    make: type[CheckpointFormat] = found[name].load()
    if step is not None:
        options["step"] = StepFrom.parse(step) if isinstance(step, str) else step
    accepted = _options(make)
    unknown = [option for option in options if option not in accepted]
    if unknown:
        others = [other for other in format_names() if {*options} <= {*_options(found[other].load())}]
        elsewhere = f"; {' and '.join(others)} does: name that format" if others else ""
        raise ConfigurationError(
            f"format {name} does not take {', '.join(unknown)}, only {', '.join(accepted)}{elsewhere}"
        )
    return make(**options)


def _options(make: type[CheckpointFormat]) -> list[str]:
    return [each.name for each in fields(make)]
