"""Open a study in its store: create it, or compare it with the stored one."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from phyla import queries, settings
from phyla.checkpoints import import_checkpoint, import_name
from phyla.client import Client, claim_checkpoints, open_checkpoints
from phyla.configuration import (
    check_extension,
    command_differences,
    differences,
    edited_code,
    format_setting,
    suite_differences,
)
from phyla.controller import changes_of, records_of, sightings_of
from phyla.errors import (
    CheckpointError,
    CheckpointsAbsent,
    CheckpointsNotOurs,
    StateError,
    StudyChanged,
    UsageError,
)
from phyla.formatting import join_names
from phyla.machine import Imported, awaits_imports
from phyla.records import JsonObject, StartFrom, StudyRecord, StudyState
from phyla.space import Space
from phyla.store import Store, hold_on, open_store
from phyla.store.retry import repeatable
from phyla.study.declaration import Declared, check_sources
from phyla.study.maintaining.recover import resume_study
from phyla.study.places import ROOT, find_population, find_study
from phyla.study.results.given_up import list_given_up
from phyla.study.results.progress import lease_s
from phyla.study.results.results import ConfigChange, Results

LOG = logging.getLogger("phyla")


def open_study(declared: Declared, config: JsonObject, *, works: bool, store: Store | None = None) -> Client:
    """Make a study in its store, which may be open already, or compare it with the one that exists there.

    Where it is only looked at (`works` is False), its checkpoints may be elsewhere.
    """
    if store is None:
        store = open_store(declared.places.storage)
    record = find_population(store, declared.name)
    place = declared.places.checkpoints(declared.name, None if record is None else record.config)
    repository = open_checkpoints(store, record or declared.name, place)
    # Both raise before anything is stored: nothing is decided where the checkpoints are not to be seen.
    if works:
        claim_checkpoints(store, record, repository)
    if record is None:
        check_sources(declared)
    if works or record is None:
        config = {**config, **declared.places.remembered()}
    before = store.create_study(declared.name, config, declared.seed, declared.rules.strategy.population_size)
    # Raises if another process was quicker, with another place.
    declared.places.checkpoints(declared.name, before.config)
    if works and record is None:
        claim_checkpoints(store, before, repository)
    record = reconcile(store, before, config, declared)
    if not list_given_up(store, before):
        _say_if_edited(before, declared.name, config["code"])
    client = Client(store, record, declared.rules, repository)
    if declared.rules.suites or before.config.get("suites"):
        # Fills in what suites have gained.
        sightings_of(store, record, declared.rules.suites).backfill()
    if works and declared.start_from and client.store.look(client.record.id, awaits_imports):
        _start_from(declared.start_from, client, declared.rules.space)
    return client


def _start_from(entries: Sequence[StartFrom], client: Client, space: Space) -> None:
    """Bring checkpoints in from elsewhere and let every member start from one, all in one transaction.

    A process that dies before leaves copies that `Client.recover` removes.
    """
    imports = []
    try:
        for number, entry in enumerate(entries):
            # No two processes may write under one name.
            name, now = import_name(client.repository.prefix, number), settings.system_clock()
            committed = import_checkpoint(
                client.repository, Path(entry.path), name, step=entry.step, now=now, digest=entry.digest
            )
            imported = Imported(
                name=name,
                origin=str(entry.path),
                step=committed.step,
                params=space.check_part(entry.params),
                index=entry.index,
                digest=committed.digest,
                size_bytes=committed.size_bytes,
            )
            imports.append(imported)
    except CheckpointError:
        # Another process may have been quicker, and have removed our draft.
        if client.store.look(client.record.id, awaits_imports):
            raise
        return
    records_of(client.store, client.record.id).import_checkpoints(imports)


@repeatable
def claim(client: Client) -> None:
    """Make sure, before anything is decided, that the checkpoint directory is there and the study's."""
    hold_on(client.store)
    unknown = claim_checkpoints(client.store, client.record, client.repository)
    if unknown:
        name = client.record.name
        warnings.warn(
            f"{len(unknown)} directories among the checkpoints of study {name!r} are not known to this store, and "
            f"are left alone; phyla doctor {name} lists them",
            stacklevel=2,
        )


def join_study(declared: Declared, config: JsonObject) -> tuple[Declared, Client]:
    """Open a study that exists to add workers to it, and return it with the leases of its run; changes nothing."""
    store, record = find_study(declared.name, declared.places, patient=True)
    new_config = {**config, ROOT: record.config.get(ROOT)}
    comparisons = (differences, suite_differences, command_differences)
    changed = {
        name: values for compare in comparisons for name, values in compare(record.config, new_config).items()
    }
    try:
        if changed:
            raise StudyChanged(
                f"study {declared.name!r} in {store.url} is not the one that the study file defines:\n"
                f"{_listed(changed)}\n"
                "A worker changes nothing: use the file that the study is run with, or give the study these "
                "settings with: phyla change FILE"
            )
        if record.state in (StudyState.STOPPED, StudyState.FAILED):
            why = (record.message or "").rstrip(".")
            raise StateError(
                f"study {declared.name!r} is {record.state}: {why}. Resume it first with: "
                f"phyla run FILE, or phyla change {declared.name}"
            )
    except (StudyChanged, StateError):
        store.close()
        raise
    joined = replace(declared, rules=replace(declared.rules, lease_s=lease_s(record.config)))
    repository = open_checkpoints(store, record, declared.places.checkpoints(declared.name, record.config))
    new_config = {**new_config, "lease_s": joined.rules.lease_s}
    return joined, Client(store, replace(record, config=new_config), joined.rules, repository, joins=True)


def change(
    declared: Declared, config: JsonObject, client: Client | None, newcomers: Literal["best", "fresh"]
) -> list[ConfigChange]:
    """Give a study that exists, and may be open already, other settings; see `Study.change`."""
    if client is None:
        store, record = find_study(declared.name, declared.places)
    else:
        store, record = client.store, client.study()
    results = Results(store, record, declared.places)
    before = len(results.changes())
    try:
        try:
            place = declared.places.checkpoints(declared.name, record.config)
            open_checkpoints(store, record, place).check_owner()
        except CheckpointsNotOurs:
            raise
        except CheckpointsAbsent:
            pass  # A machine that does not see them may change a study that others run.
        reconcile(store, record, config, declared, newcomers=newcomers)
        resume_study(store, record)
        return results.changes()[before:]
    finally:
        if client is None:
            store.close()


def reconcile(
    store: Store,
    record: StudyRecord,
    config: JsonObject,
    declared: Declared,
    *,
    newcomers: Literal["best", "fresh"] | None = None,
) -> StudyRecord:
    """Compare a study with its stored settings, store permitted changes, and return the stored study.

    With `newcomers`, settings may change, and it says how members start that join; else they must not differ.
    """
    changed = differences(record.config, config)
    if changed and newcomers is None:
        how = "To give it these settings, run first: phyla change FILE (in Python: study.change())."
        try:
            check_extension(changed, record.config, config, declared.rules.strategy)
        except UsageError as error:
            how = f"It cannot take them: {error}"
        raise StudyChanged(
            f"study {declared.name!r} exists in {store.url} with other settings:\n{_listed(changed)}\n{how}\n"
            "To keep it as it is, restore its settings, or give this study another name."
        )
    stored: Any = record.config
    config = {**config, "changes": stored.get("changes", [])}
    if config["final"] is None:
        # One that was held, or begun, is not taken back.
        config["final"] = stored.get("final")
    if stored.get("replicate"):
        config.setdefault("replicate", stored["replicate"])
    if ROOT in stored:
        config[ROOT] = stored[ROOT]
    if declared.train is None:
        # Ask/tell keeps the stored functions.
        config.update({name: stored.get(name) for name in ("train", "setup", "code")})
    elif record.state is StudyState.COMPLETED and not changed and not list_given_up(store, record):
        # An edited function trains nothing of a study that is complete.
        config["code"] = stored.get("code")
    code: Any = config["code"]
    # While no trial is complete, no checkpoint comes from the code that is stored.
    if stored.get("code") and code and store.look(record.id, queries.summary).newest is not None:
        config["code"] = {**code, "began": {**code["now"], **stored["code"]["began"]}}
    if changed:
        check_extension(changed, stored, config, declared.rules.strategy)
        changes = changes_of(store, record.id, declared.rules)
        return changes.change(config, changed, before=stored, fresh=newcomers == "fresh")
    if config != stored:
        records_of(store, record.id).store_config(config, stored)
    return replace(record, config=config)


def _listed(changed: dict[str, Any]) -> str:
    """Return settings that differ, one a line."""
    return "\n".join(
        f"  {name}: stored {format_setting(old)}, given {format_setting(new)}"
        for name, (old, new) in changed.items()
    )


def _say_if_edited(record: StudyRecord, name: str, code: Any) -> None:
    """Warn if a completed study was trained with a different function."""
    known: Any = record.config.get("code")
    # Where training continues, the change is a finding of the study.
    if record.state is not StudyState.COMPLETED or not known or not code:
        return
    edited = join_names(edited_code(code, known["began"], code["now"]))
    if not edited:
        return
    LOG.warning(
        "warning: the code of %s was edited since study %r was trained. The study is complete, so this is the "
        "stored result of the earlier code. To start from scratch, which deletes what is stored: "
        "study.run(overwrite=True), on the command line --overwrite %s. To keep it, give the study another name",
        *(edited, name, name),
    )
