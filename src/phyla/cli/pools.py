"""`phyla up`, `phyla down` and `phyla workers`: pools of workers that a launcher places."""

import contextlib
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Context, Option

from phyla import settings
from phyla.cli import options
from phyla.cli.output import print_json, print_table
from phyla.errors import ConfigurationError, LauncherFailed, StoreBusy, StoreUnavailable, UsageError
from phyla.formatting import format_count, mask_password
from phyla.terminal import show as print
from phyla.validation import check_name

if TYPE_CHECKING:
    from phyla.launchers import Pool
    from phyla.study import Places

LOG = logging.getLogger("phyla")
INHERIT = ("local", "slurm")  # their workers inherit the variables of this process, including a token
MEMORY_MB = {"M": 1, "G": 1024, "T": 1024**2}


def up(
    ctx: Context,
    files: Annotated[
        list[Path],
        Argument(metavar="FILE...", help="The study files, or suite files of watched runs, to work for."),
    ],
    launcher: Annotated[
        str, Option(metavar="NAME", help="Where the workers run: local, slurm, ray or kubernetes.")
    ] = "local",
    launcher_option: options.LauncherOptions = None,
    workers: Annotated[int, Option(min=1, help="How many workers to run.")] = 2,
    name: Annotated[str | None, Option(help="Name of the pool.", show_default="that of the first file")] = None,
    kinds: options.Kinds = options.BOTH,
    gpus_per_worker: options.Gpus = "auto",
    labels: options.Labels = None,
    time_limit: options.TimeLimit = None,
    save_every: options.SaveEvery = None,
) -> None:
    """Start a pool of workers for the studies of some files; run again, it replaces missing workers.

    The workers take the studies and watched runs in turn, wait for those that are absent or stopped, and exit when
    all are completed.
    """
    from phyla.launchers import launcher_named
    from phyla.launchers.pools import list_reasons, start_pool

    for file in files:
        if not file.is_file():
            whole, colon, _ = str(file).rpartition(":")
            raise UsageError(f"no file {file}" + (f"; give the file alone: {whole}" if colon else ""))
    places = options.places(ctx)
    pool = pool_of(ctx.params, files, places, name=name or files[0].stem, where=options.where(ctx))
    _check_store(pool, places)
    if launcher == "kubernetes" and "output" in pool.options:
        from phyla.launchers.kubernetes import write_manifest

        print(write_manifest(pool))
        return
    start_pool(pool)
    where = launcher_named(launcher)
    queued = where.outcomes(pool).get("queued")
    alive = f"{where.alive(pool)} of {format_count(workers, 'worker')} alive"
    alive += f", {queued} of them queued{list_reasons(where.reasons(pool))}" if queued else ""
    print(f"pool {pool.name}: {alive}; logs: {where.logs(pool)}")
    print("if a study is absent, stopped or failed, the workers wait until phyla run or phyla watch starts it")
    print(f"stop it with: {places.command('down', pool.name)}")


def down(
    ctx: Context,
    pool: Annotated[str, Argument(metavar="POOL", help="Name of the pool.")],
    grace: Annotated[
        Any,
        Option(parser=options.seconds, metavar="TIME", help="Time to save before workers are killed."),
    ] = "60s",
    forget: Annotated[
        bool, Option("--forget", help="Only remove the pool from the list: its machines are gone.")
    ] = False,
) -> None:
    """Stop the workers of a pool; their trials go back to the queue. Studies do not change."""
    from phyla.launchers.pools import forget_pool, stop_pool

    places = options.places(ctx)
    chosen, folder = _find_pools(places, pool)[pool], places.pools / pool
    if forget:
        forget_pool(folder)
        print(f"pool {pool} is forgotten; its logs stay in {folder}")
        print("trials of workers that are gone go back to the queue when their leases end")
        return
    if isinstance(chosen, ConfigurationError):
        raise chosen
    stop_pool(chosen, grace)
    print(f"pool {pool} is stopped; its logs stay in {folder}")


def workers(
    ctx: Context,
    pool: Annotated[str | None, Argument(metavar="POOL", help="Name of a pool.", show_default="all")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List pools of workers: where they run, how many are alive, their files, and the last lines of their logs."""
    from phyla.launchers.pools import list_reasons

    places = options.places(ctx)
    rows = [_row(places.pools / name, placed) for name, placed in _find_pools(places, pool).items()]
    if as_json:
        print_json(rows)
        return
    if not rows:
        print(f"no pools in {places.pools}; phyla up starts one")
        return
    print_table(
        ("pool", "launcher", ">alive", "states", "~files", "~logs"),
        (
            (
                row["pool"],
                row["launcher"],
                "/".join("?" if row[count] is None else str(row[count]) for count in ("alive", "workers")),
                ", ".join(
                    f"{count} {state}" + (list_reasons(row["reasons"]) if state == "queued" else "")
                    for state, count in (row["states"] or {}).items()
                ),
                " ".join(row["files"]),
                row["error"] or row["logs"],
            )
            for row in rows
        ),
    )
    for row in rows:
        for log, line in row["last_lines"].items():
            print(f"{row['pool']} {log}: {line}")


def _row(folder: Path, pool: "Pool | ConfigurationError") -> dict[str, Any]:
    """Return what `phyla workers` shows of a pool; `error` says why its workers, or all of it, are unknown."""
    from phyla.launchers import Pool, launcher_named
    from phyla.launchers.pools import last_lines

    row: dict[str, Any] = {
        "pool": folder.name,
        **dict.fromkeys(("launcher", "alive", "workers", "states")),
        "reasons": {},
        "files": [],
        "logs": str(folder / "*.log"),
        "last_lines": last_lines(folder),
        "error": None,
    }
    try:
        if not isinstance(pool, Pool):
            raise pool
        row |= {"launcher": pool.launcher, "workers": pool.workers, "files": list(pool.files)}
        launcher = launcher_named(pool.launcher)
        row["logs"] = launcher.logs(pool)
        # Ray prints events of its nodes, which must not get into the JSON.
        with contextlib.redirect_stdout(sys.stderr):
            row |= {"alive": launcher.alive(pool), "states": launcher.outcomes(pool)}
            if row["states"].get("queued"):
                row["reasons"] = launcher.reasons(pool)
    except (ConfigurationError, LauncherFailed) as error:
        row["error"] = options.add_places(str(error), ("down",))
    return row


def _check_store(pool: "Pool", places: "Places") -> None:
    """Open the store as the workers will; raise errors that they would get, and warn if they have to wait."""
    from phyla.store import open_store

    if pool.launcher not in INHERIT or pool.only_here:
        return
    try:
        with closing(open_store(places.storage)) as store:
            store.studies()
    except (StoreBusy, StoreUnavailable) as error:
        LOG.warning("warning: %s. The workers wait for it", error)


def pool_of(
    params: Mapping[str, Any],
    files: Sequence[Path],
    places: "Places",
    *,
    name: str,
    study: str | None = None,
    where: Mapping[str, Any] | None = None,
    resources: Mapping[str, int] | None = None,
) -> "Pool":
    """Return the pool that options describe: workers for one study, or for all studies of the files in turn.

    Each has the machines and GPUs that `resources` of a study request.
    Its workers use the places of the study, or with `where` those of these options of `phyla`.
    """
    from phyla.launchers import Pool, launcher_named
    from phyla.study.places import absolute_path

    launcher_named(params["launcher"])
    check_name(f"pool name {name!r}", name, "; give it with --name")
    if not params["workers"]:
        raise UsageError("--workers 0: --launcher needs at least 1")
    if where is None:
        usual = places.storage == type(places).of(places.home).storage
        storage, root = None if usual else places.storage, places.checkpoint_root if places.named else None
        where = {"home": places.home, "storage": storage, "checkpoints": root}
    where = {key: value.absolute() if isinstance(value, Path) else value for key, value in where.items()}
    # Workers elsewhere do not see these variables. A file overrides it, and an option overrides the file.
    inherited = None if where["storage"] or where["home"] else settings.storage()
    storage = where["storage"] or inherited
    if storage and mask_password(storage) != storage:
        raise UsageError(
            f"the URL of the store, {mask_password(storage)}, has a password in it, which the process list and "
            "the folder of the pool would show; put it into ~/.pgpass or the variable PGPASSWORD instead"
        )
    environment = {"PHYLA_STORAGE": inherited} if inherited else {}
    if where["home"] is None and settings.is_home_named():
        environment["PHYLA_HOME"] = str(settings.home().absolute())
    at = type(places).of(where["home"], storage, where["checkpoints"])
    further = dict(_option(text) for text in params["launcher_option"] or ())
    nodes, cpus, memory = (_amount(name, further.pop(name, None)) for name in ("nodes", "cpus", "memory"))
    requested = resources or {}
    gpus = params["gpus_per_worker"]
    gpus = float(requested.get("gpus", 0)) if gpus == "auto" else float(gpus)
    return Pool(
        name=name,
        launcher=params["launcher"],
        command=worker_command(
            paths := [str(file.absolute()) for file in files],
            **where,
            study=study,
            kinds=params["kinds"],
            gpus_per_worker=params["gpus_per_worker"] if gpus >= 1 else "auto",
            labels=params.get("labels"),  # of `phyla up`
            save_every=params["save_every"],
            wait=study is None,
        ),
        workers=params["workers"],
        directory=absolute_path(Path()),
        files=paths,
        nodes=round(nodes or requested.get("nodes", 1)),
        gpus=gpus,
        cpus=cpus,
        memory_mb=None if memory is None else round(memory),
        time_limit_s=params["time_limit"],
        options=further,
        only_here="" if at.sqlite_file is None else str(at.sqlite_file),
        environment=environment,
        folder=places.pools / name,
    )


def _option(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise BadParameter(f"--launcher-option {text!r}: write NAME=VALUE, as in partition=gpu")
    return name, value


def _amount(name: str, text: str | None) -> float | None:
    """Parse a number above 0; memory is in MiB, and may have a unit, and nodes are whole."""
    patterns = {"memory": r"(\d+\.?\d*)([MGT])?", "nodes": r"(\d+)()"}
    parts = re.fullmatch(patterns.get(name, r"(\d+\.?\d*)()"), text or "0")
    if text is not None and (parts is None or not float(parts[1])):
        example = "16G" if name == "memory" else "4"
        raise BadParameter(f"--launcher-option {name}={text}: give it as {name}={example}")
    return float(parts[1]) * MEMORY_MB[parts[2] or "M"] if text and parts else None


def _find_pools(places: "Places", name: str | None) -> "dict[str, Pool | ConfigurationError]":
    from phyla.launchers.pools import pools_in

    pools = pools_in(places.pools)
    if name is None:
        return pools
    if name not in pools:
        raise UsageError(f"no pool {name!r} in {places.pools}; available: {', '.join(pools) or 'none'}")
    return {name: pools[name]}


def worker_command(files: Sequence[str], **values: Any) -> list[str]:
    """Return the command line of `phyla worker` with the options that have a value."""
    words = []
    for name, value in values.items():
        if value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return [
        sys.executable,
        "-P",
        "-m",
        "phyla.cli",
        "worker",
        *files,
        *words,
        *options.file_arguments(dashes=True),
    ]
