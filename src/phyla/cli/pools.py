"""`phyla up`, `phyla down` and `phyla workers`: pools of workers that a launcher places."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Context, Option

from phyla.cli import options
from phyla.cli.output import print_json, print_table
from phyla.cli.output import show as print
from phyla.cli.worker import worker_command
from phyla.errors import LauncherFailed, UsageError
from phyla.words import counted, masked

if TYPE_CHECKING:
    from phyla.launchers import Pool
    from phyla.study import Places

MEMORY_MB = {"M": 1, "G": 1024, "T": 1024**2}


def up(
    ctx: Context,
    files: Annotated[
        list[Path], Argument(metavar="FILE...", help="The study files, whose studies they work for.")
    ],
    launcher: Annotated[str, Option(metavar="NAME", help="Where the workers run: local or slurm.")] = "local",
    launcher_option: options.LauncherOptions = None,
    workers: Annotated[int, Option(min=1, help="How many workers there are to be.")] = 2,
    name: Annotated[str | None, Option(help="Name of the pool.", show_default="that of the first file")] = None,
    kinds: options.Kinds = options.BOTH,
    gpus_per_worker: options.Gpus = "auto",
    time_limit: options.TimeLimit = None,
    save_every: options.SaveEvery = None,
) -> None:
    """Start a pool of workers for the studies of some files; given again, start those that are missing.

    They work for one study after the other, wait for those that are absent or stopped, and end when all are
    completed.
    """
    from phyla.launchers import launcher_named
    from phyla.launchers.pools import start_pool
    from phyla.study.files import load_studies

    places = options.places(ctx)
    for file in files:
        if not load_studies(file):
            raise UsageError(f"{file} defines no study")
    pool = pool_of(
        files,
        places,
        name=name or files[0].stem,
        workers=workers,
        launcher=launcher,
        launcher_options=launcher_option,
        kinds=kinds,
        gpus_per_worker=gpus_per_worker,
        time_limit=time_limit,
        save_every=save_every,
        where=_absolute(options.where(ctx)),
    )
    start_pool(pool)
    where = launcher_named(launcher)
    print(f"pool {pool.name}: {where.alive(pool)} of {counted(workers, 'worker')} alive; logs: {where.logs(pool)}")
    print(f"stop it with: {options.command('down', pool.name, places)}")


def down(
    ctx: Context,
    pool: Annotated[str, Argument(metavar="POOL", help="Name of the pool.")],
    grace: Annotated[
        Any,
        Option(parser=options.seconds, metavar="TIME", help="Time to save, after which workers are ended."),
    ] = "60s",
) -> None:
    """Stop the workers of a pool: what they are at goes back to the queue. Studies stay as they are."""
    from phyla.launchers.pools import stop_pool

    (found,) = _found(options.places(ctx), pool)
    stop_pool(found, grace)
    print(f"pool {pool} is stopped; its logs stay in {found.folder}")


def workers(
    ctx: Context,
    pool: Annotated[str | None, Argument(metavar="[POOL]", help="Name of a pool.", show_default="all")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List pools of workers: where they run, how many are alive, for which files, and where their logs are."""
    from phyla.launchers import launcher_named

    rows: list[dict[str, Any]] = []
    for each in _found(options.places(ctx), pool):
        launcher, why = launcher_named(each.launcher), None
        try:
            alive = launcher.alive(each)
        except LauncherFailed as error:
            alive, why = None, str(error)
        rows.append(
            {
                "pool": each.name,
                "launcher": each.launcher,
                "alive": alive,
                "workers": each.workers,
                "files": list(each.files),
                "logs": launcher.logs(each),
                "error": why,
            }
        )
    if as_json:
        print_json(rows)
        return
    print_table(
        ("pool", "launcher", ">alive", "~files", "~logs"),
        (
            (
                row["pool"],
                row["launcher"],
                f"{'?' if row['alive'] is None else row['alive']}/{row['workers']}",
                " ".join(row["files"]),
                row["error"] or row["logs"],
            )
            for row in rows
        ),
    )


def pool_of(
    files: Sequence[Path],
    places: "Places",
    *,
    name: str,
    workers: int,
    launcher: str,
    launcher_options: Sequence[str] | None,
    kinds: str,
    gpus_per_worker: float | str,
    time_limit: float | None,
    save_every: float | None,
    study: str | None = None,
    where: Mapping[str, Any] | None = None,
) -> "Pool":
    """Return the pool that the options describe: workers of one study, or of all studies of the files in turn."""
    from phyla.launchers import Pool, launcher_named
    from phyla.study.places import NAME

    launcher_named(launcher)
    if not NAME.fullmatch(name):
        raise UsageError(
            f"pool name {name!r}: use up to 100 letters, digits, '_', '-' and '.'; give it with --name"
        )
    if not workers:
        raise UsageError("--workers 0: with --launcher, at least 1")
    further = dict(_option(each) for each in launcher_options or ())
    where = _where(places) if where is None else where
    storage = where.get("storage")
    if storage and masked(storage) != storage:
        raise UsageError(
            f"the URL of the store, {masked(storage)}, has a password in it, which the list of processes and the "
            "folder of the pool would show; leave it out, and put it into ~/.pgpass or the variable PGPASSWORD"
        )
    gpus = 0.0 if gpus_per_worker == "auto" else float(gpus_per_worker)
    shown = gpus_per_worker if gpus >= 1 else "auto"
    saving = None if save_every is None else f"{save_every:g}s"
    given = {"--study": study, "--kinds": kinds, "--gpus-per-worker": shown, "--save-every": saving}
    paths = [str(file.absolute()) for file in files]
    cpus, memory = further.pop("cpus", None), further.pop("memory", None)
    return Pool(
        name=name,
        launcher=launcher,
        command=worker_command(paths, where, given, wait=study is None),
        workers=workers,
        files=paths,
        gpus=gpus,
        cpus=None if cpus is None else _number("cpus", cpus),
        memory_mb=None if memory is None else _memory_mb(memory),
        time_limit_s=time_limit,
        options=further,
        folder=places.pools / name,
    )


def _where(places: "Places") -> dict[str, str | None]:
    """Return the options that lead another process to the same places."""
    usual = type(places).of(places.home)
    return {
        "home": str(places.home),
        "storage": None if places.storage == usual.storage else places.storage,
        "checkpoints": str(places.checkpoint_root),
    }


def _absolute(where: Mapping[str, Any]) -> dict[str, Any]:
    paths = ("home", "checkpoints")
    return {
        name: value if value is None or name not in paths else Path(value).absolute()
        for name, value in where.items()
    }


def _option(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name or not value:
        raise BadParameter(f"--launcher-option {text!r}: write NAME=VALUE, as in partition=gpu")
    return name, value


def _number(name: str, text: str) -> float:
    if not re.fullmatch(r"\d+\.?\d*", text) or float(text) <= 0:
        raise BadParameter(f"--launcher-option {name}={text}: give a number above 0")
    return float(text)


def _memory_mb(text: str) -> int:
    parts = re.fullmatch(r"(\d+)([MGT])", text)
    if parts is None:
        raise BadParameter(f"--launcher-option memory={text}: give it as 500M, 16G or 1T")
    return int(parts[1]) * MEMORY_MB[parts[2]]


def _found(places: "Places", name: str | None) -> "list[Pool]":
    from phyla.launchers.pools import pools_in

    found = pools_in(places.pools)
    chosen = [pool for pool in found if name in (None, pool.name)]
    if name is not None and not chosen:
        names = ", ".join(pool.name for pool in found) or "none"
        raise UsageError(f"there is no pool {name!r} in {places.pools}; there are: {names}")
    return chosen
