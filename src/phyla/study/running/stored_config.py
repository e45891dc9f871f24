"""The configuration of a study, as it is stored."""

import inspect
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from phyla import plugins
from phyla.configuration import (
    to_config,
)
from phyla.errors import (
    NotImportable,
)
from phyla.records import JsonObject
from phyla.study.declaration import Declared
from phyla.worker import Command
from phyla.worker.make import digest_code
from phyla.worker.pinned import Pinned


def stored_config(declared: Declared, *, portable: bool) -> JsonObject:
    """Return a study's configuration as JSON; see `Study.config`."""

    def name(function: Callable[..., object] | None) -> str | None:
        try:
            return None if function is None else plugins.reference(function)
        except NotImportable:
            if portable:
                raise
            return None

    train = declared.train
    # What runs in this process only need not be found again by name.
    name_of = plugins.reference if portable else plugins.reference_here
    config = to_config(
        declared.rules,
        declared.seed,
        plugins.encode(train, name_of) if isinstance(train, Command | Pinned) else name(train),
        name(declared.setup),
        start_from=declared.start_from,
        name_of=name_of,
    )
    code: Any = None
    if train is not None:
        command = isinstance(train, Command)
        called = f"the command {train}" if command else f"{getattr(train, '__name__', 'train')}()"
        file = {} if command else {"file": _file_of(train)}
        digests = digest_code(train, declared.rules)
        code = {"name": called, **file, "began": digests, "now": digests}
    replicate = declared.replicate_of
    return {**config, "code": code, **({} if replicate is None else {"replicate": asdict(replicate)})}


def _file_of(function: Callable[..., object]) -> str:
    try:
        return inspect.getsourcefile(inspect.unwrap(function)) or "?"
    except TypeError:
        return "?"
