"""A study as it is given, and as it is stored: what is written down, and what may differ."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from phyla import plugins
from phyla.controller import Controller, check_extension, check_unchanged, differences, to_config
from phyla.errors import NotImportable, StudyChanged
from phyla.machine import SetConfig
from phyla.records import JsonObject, StudyRecord, StudyState
from phyla.study.replicates import replicate_of
from phyla.study.source_digest import code_digest, source_file

if TYPE_CHECKING:
    from phyla.store import Store
    from phyla.study.study import Study


def stored_config(study: "Study", references: tuple[str | None, str | None]) -> JsonObject:
    """Return a study's configuration as JSON; see `Study.config`."""
    named = references[0] is not None
    config = to_config(
        study.rules,
        study.seed,
        *(references if named else (_name(study.train), _name(study.setup))),
        start_from=study.start_from,
        # What runs in this process only need not be found again by name.
        name_of=plugins.reference if named else plugins.reference_here,
    )
    config = {**config, "code": None if study.train is None else _code(study.train)}
    return config if study.replicate_of is None else {**config, "replicate": study.replicate_of.to_json()}


def reconcile(
    store: "Store",
    record: StudyRecord,
    config: JsonObject,
    study: "Study",
    *,
    newcomers: Literal["best", "fresh"] | None = None,
) -> StudyRecord:
    """Compare a study with what is stored, and store what may change; return it as it is stored then.

    With `newcomers`, settings may change, and it says how members start that join; else they must not differ.

    Raises:
        StudyChanged: it decides differently, and is not to be changed; or another process changed it meanwhile.
        ConfigurationError: an existing study cannot take a change.
    """
    changed = differences(record.config, config)
    if changed and newcomers is None:
        listing = "\n".join(f"  {name}: it has {old!r}, given {new!r}" for name, (old, new) in changed.items())
        raise StudyChanged(
            f"study {study.name!r} exists in {store.url} with other settings:\n{listing}\n"
            "To give it these settings, run first: phyla change FILE.py (in Python: study.change()). To keep it "
            "as it is, restore its settings, or give this study another name."
        )
    known = replicate_of(record.config)
    if known is not None and "replicate" not in config:
        config = {**config, "replicate": known.to_json()}
    kept: tuple[str, ...] = ()
    if study.train is None:
        # Ask/tell keeps the stored functions.
        kept = ("train", "setup", "code")
    elif record.state is StudyState.COMPLETED and not changed:
        # An edited function trains nothing of a study that is complete.
        kept = ("code",)
    config = {**config, **{name: record.config.get(name) for name in kept}}
    began: Any = record.config.get("code")
    code: Any = config.get("code")
    if began and code:
        config = {**config, "code": {**code, "began": began["began"]}}
    if changed:
        check_extension(changed, record.config, config)
        controller = Controller(store, record.id, study.rules, config)
        return controller.change(config, changed, before=record.config, fresh=newcomers == "fresh")
    config = {**config, "changes": record.config.get("changes", [])}
    if config != record.config:
        with store.transaction(record.id, exclusive=True, alone=True) as tx:
            check_unchanged(tx.study(), record.config)
            tx.apply([SetConfig(config)])
        return replace(record, config=config)
    return record


def _code(function: Callable[..., object]) -> JsonObject:
    """Return what the training code is, to notice later that it changed."""
    digest = code_digest(function)
    return {
        "name": getattr(function, "__name__", "train"),
        "file": source_file(function),
        "began": digest,
        "now": digest,
    }


def _name(function: Callable[..., object] | None) -> str | None:
    """Return the name under which a replay can find a function; None if there is none."""
    try:
        return None if function is None else plugins.reference(function)
    except NotImportable:
        return None
