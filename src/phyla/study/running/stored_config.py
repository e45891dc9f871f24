"""The configuration of a study, as it is stored."""

import inspect
from collections.abc import Callable
from dataclasses import asdict

from phyla import plugins
from phyla.configuration import (
    to_config,
)
from phyla.errors import (
    NotImportable,
)
from phyla.records import JsonObject
from phyla.study.declaration import Declared
from phyla.system.code_digest import code_digest
from phyla.worker import Command
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
    code = None
    if isinstance(train, Command):
        digest = train.digest()
        code = {"name": f"the command {train}", "began": digest, "now": digest}
    elif train is not None:
        digest = code_digest(train)
        called = f"{getattr(train, '__name__', 'train')}()"
        code = {"name": called, "file": _file_of(train), "began": digest, "now": digest}
    replicate = declared.replicate_of
    return {**config, "code": code, **({} if replicate is None else {"replicate": asdict(replicate)})}


def _file_of(function: Callable[..., object]) -> str:
    try:
        return inspect.getsourcefile(inspect.unwrap(function)) or "?"
    except TypeError:
        return "?"
