"""A study that is open in its store: made there, or found and compared with what is stored."""

import ast
import functools
import hashlib
import inspect
import logging
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal

from phyla import plugins, settings
from phyla.checkpoints import import_checkpoint, import_name, look_at_source
from phyla.client import Client, claim_checkpoints, open_checkpoints
from phyla.configuration import (
    check_extension,
    command_differences,
    differences,
    said,
    suite_differences,
    to_config,
)
from phyla.controller import controller_of, housekeeping_of, sightings_of
from phyla.errors import (
    CheckpointError,
    CheckpointsAbsent,
    CheckpointsNotOurs,
    ConfigurationError,
    NotImportable,
    StateError,
    StudyChanged,
    UsageError,
)
from phyla.machine import Imported
from phyla.records import JsonObject, StartFrom, StudyRecord, StudyState
from phyla.space import Space
from phyla.store import Store, hold_on, open_store
from phyla.store.retry import repeatable
from phyla.study.maintaining.maintain import gave_up, let_go_on
from phyla.study.places import ROOT, find_population, find_study
from phyla.study.results.progress import lease_s
from phyla.study.results.results import ConfigChange, Results
from phyla.worker import Command
from phyla.worker.pinned import Pinned

if TYPE_CHECKING:
    from phyla.study.study import Study

LOG = logging.getLogger("phyla")


def open_study(study: "Study", *, portable: bool, works: bool, store: Store | None = None) -> Client:
    """Make a study in its store, which may be open already, or compare it with the one that exists there.

    With `portable`, worker processes can import its functions. Where it is only looked at (`works` is False), its
    checkpoints may be elsewhere.
    """
    config = study.config(portable=portable)
    if store is None:
        store = open_store(study.places.storage)
    found = find_population(store, study.name)
    place = study.places.checkpoints(study.name, None if found is None else found.config)
    repository = open_checkpoints(store, study.name, place)
    # Both raise before anything is stored: nothing is decided where the checkpoints are not to be seen.
    if works:
        claim_checkpoints(store, found, repository)
    entries, members = study.start_from, study.rules.strategy.population_size
    if found is None:
        if len(entries) > members:
            raise ConfigurationError(
                f"start_from has {len(entries)} entries for a population of {members}: the last "
                f"{len(entries) - members} would never be used; leave them out, or use more members"
            )
        for entry in entries:
            look_at_source(Path(entry.path))
    if works or found is None:
        config = {**config, **study.places.remembered()}
    before = store.create_study(study.name, config, study.seed, members)
    study.places.checkpoints(study.name, before.config)  # raises if somebody was quicker, with another place
    record = reconcile(store, before, config, study)
    if not gave_up(store, before):
        _say_if_edited(before, study.name, config["code"])
    client = Client(store, record, study.rules, repository)
    if study.rules.suites or before.config.get("suites"):
        # Fills in what suites have gained.
        sightings_of(store, record, study.rules.suites).backfill()
    if works and entries and client.controller.awaits_imports():
        _start_from(entries, client, study.rules.space)
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
        # Somebody else may have been quicker, and have removed what we were writing.
        if client.controller.awaits_imports():
            raise
        return
    client.controller.import_checkpoints(imports)


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


def join_study(study: "Study", *, portable: bool) -> Client:
    """Open a study that exists to add workers to it; creates and changes nothing."""
    store, record = find_study(study.name, study.places, patient=True)
    given = {**study.config(portable=portable), ROOT: record.config.get(ROOT)}
    compare = (differences, suite_differences, command_differences)
    changed = {name: values for each in compare for name, values in each(record.config, given).items()}
    try:
        if changed:
            raise StudyChanged(
                f"study {study.name!r} in {store.url} is not the one that the study file defines:\n"
                f"{_listed(changed)}\n"
                "A worker changes nothing: use the file that the study is run with, or give the study these "
                "settings with: phyla change FILE"
            )
        if record.state in (StudyState.STOPPED, StudyState.FAILED):
            raise StateError(
                f"study {study.name!r} is {record.state}: {record.message}. Let it go on first with: "
                f"phyla run FILE, or phyla change {study.name}"
            )
    except (StudyChanged, StateError):
        store.close()
        raise
    # Workers that join keep their leases as long as those of the run.
    study.rules = replace(study.rules, lease_s=lease_s(record.config))
    repository = open_checkpoints(store, study.name, study.places.checkpoints(study.name, record.config))
    return Client(store, replace(record, config=given), study.rules, repository, joins=True)


def change(study: "Study", client: Client | None, newcomers: Literal["best", "fresh"]) -> list[ConfigChange]:
    """Give a study that exists, and may be open already, other settings; see `Study.change`."""
    if client is None:
        store, record = find_study(study.name, study.places)
    else:
        store, record = client.store, client.study()
    results = Results(store, record, study.places)
    before = len(results.changes())
    try:
        try:
            open_checkpoints(store, study.name, study.places.checkpoints(study.name, record.config)).check_owner()
        except CheckpointsNotOurs:
            raise
        except CheckpointsAbsent:
            pass  # A machine that does not see them may change a study that others run.
        reconcile(store, record, study.config(), study, newcomers=newcomers)
        let_go_on(store, record)
        return results.changes()[before:]
    finally:
        if client is None:
            store.close()


def stored_config(study: "Study", *, portable: bool) -> JsonObject:
    """Return a study's configuration as JSON; see `Study.config`."""

    def name(function: Callable[..., object] | None) -> str | None:
        try:
            return None if function is None else plugins.reference(function)
        except NotImportable:
            if portable:
                raise
            return None

    train = study.train
    # What runs in this process only need not be found again by name.
    name_of = plugins.reference if portable else plugins.reference_here
    config = to_config(
        study.rules,
        study.seed,
        plugins.encode(train, name_of) if isinstance(train, Command | Pinned) else name(train),
        name(study.setup),
        start_from=study.start_from,
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
    replicate = study.replicate_of
    return {**config, "code": code, **({} if replicate is None else {"replicate": asdict(replicate)})}


def reconcile(
    store: Store,
    record: StudyRecord,
    config: JsonObject,
    study: "Study",
    *,
    newcomers: Literal["best", "fresh"] | None = None,
) -> StudyRecord:
    """Compare a study with what is stored, and store what may change; return it as it is stored then.

    With `newcomers`, settings may change, and it says how members start that join; else they must not differ.
    """
    changed = differences(record.config, config)
    if changed and newcomers is None:
        how = "To give it these settings, run first: phyla change FILE (in Python: study.change())."
        try:
            check_extension(changed, record.config, config)
        except UsageError as error:
            how = f"It cannot take them: {error}"
        raise StudyChanged(
            f"study {study.name!r} exists in {store.url} with other settings:\n{_listed(changed)}\n{how}\n"
            "To keep it as it is, restore its settings, or give this study another name."
        )
    stored: Any = record.config
    config = {**config, "changes": stored.get("changes", [])}
    if stored.get("replicate"):
        config.setdefault("replicate", stored["replicate"])
    if ROOT in stored:
        config[ROOT] = stored[ROOT]
    if study.train is None:
        # Ask/tell keeps the stored functions.
        config.update({name: stored.get(name) for name in ("train", "setup", "code")})
    elif record.state is StudyState.COMPLETED and not changed and not gave_up(store, record):
        # An edited function trains nothing of a study that is complete.
        config["code"] = stored.get("code")
    code: Any = config["code"]
    if stored.get("code") and code:
        with store.reader(record.id) as reader:
            # What completed nothing trained nothing that is left.
            trained = bool(reader.last_completed(1))
        if trained:
            config["code"] = {**code, "began": stored["code"]["began"]}
    if changed:
        check_extension(changed, stored, config)
        controller = controller_of(store, record.id, study.rules)
        return controller.change(config, changed, before=stored, fresh=newcomers == "fresh")
    if config != stored:
        housekeeping_of(store, record.id).store_config(config, stored)
    return replace(record, config=config)


def _listed(changed: dict[str, Any]) -> str:
    """Return settings that differ, one a line."""
    return "\n".join(f"  {name}: it has {said(old)}, given {said(new)}" for name, (old, new) in changed.items())


def _say_if_edited(record: StudyRecord, name: str, code: Any) -> None:
    """Say that a study, as it was before it was opened, is complete and was trained with another function."""
    known: Any = record.config.get("code")
    # Where training goes on, the change is a finding of the study.
    if record.state is not StudyState.COMPLETED or not known or not code or known["began"] == code["now"]:
        return
    LOG.warning(
        "warning: %s was edited since study %r was trained. The study is complete, so this is the stored "
        "result of the earlier %s. To start anew, which deletes what is stored: study.run(overwrite=True), on "
        "the command line --overwrite %s. To keep it, give the study another name",
        *(code["name"], name, code["name"], name),
    )


def code_digest(function: Callable[..., object]) -> str:
    """Return a digest of a function and of all that it uses of its own file, by which an edit is noticed.

    Comments, and what the function does not use, make no difference. Of a function whose source nobody can find,
    the compiled code counts.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__
    text = _source(function)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _source(function: Callable[..., object]) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        code = getattr(inspect.unwrap(function), "__code__", None)
        return _compiled(code) if isinstance(code, CodeType) else f"{function.__module__}:{function.__qualname__}"
    try:
        own = ast.parse(text)
        module = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return text
    named = {name: node for node in module.body for name in _defined(node)}
    used: dict[str, ast.AST] = {"": own}
    wanted = _names(own, ast.expr_context)
    while wanted:
        name = wanted.pop()
        if name in named and name not in used:
            used[name] = named[name]
            wanted += _names(named[name], ast.expr_context)
    return "\n".join(ast.unparse(used[name]) for name in sorted(used))


def _compiled(code: CodeType) -> str:
    constants = [
        _compiled(one)
        if isinstance(one, CodeType)
        # The order of a set differs from process to process.
        else repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one)
        for one in code.co_consts
    ]
    return repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants))


def _names(node: ast.AST, context: type[ast.expr_context]) -> list[str]:
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, context)]


def _defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top level of a file gives a meaning to."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    return [] if isinstance(node, (ast.Import, ast.ImportFrom)) else _names(node, ast.Store)


def _file_of(function: Callable[..., object]) -> str:
    try:
        return inspect.getsourcefile(inspect.unwrap(function)) or "?"
    except TypeError:
        return "?"
