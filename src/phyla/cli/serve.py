"""The service, the dashboard, and the tokens that open them."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from phyla.cli import options
from phyla.cli.options import seconds
from phyla.cli.output import print_json, print_table
from phyla.errors import ConfigurationError, UsageError
from phyla.terminal import show as print


def serve(
    ctx: Context,
    host: Annotated[
        str | None,
        Option(
            help="Address to listen on; beyond this machine, the service requires tokens.",
            show_default="127.0.0.1; with --publish, every one",
        ),
    ] = None,
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8470,
    name: Annotated[
        list[str] | None,
        Option("--allow-host", metavar="NAME", help="A host name that requests may use; repeatable."),
    ] = None,
    publish: Annotated[
        bool, Option("--publish", help="Write service.json and a token in the home, where workers find them.")
    ] = False,
) -> None:
    """Serve studies over HTTP, to workers that cannot reach the database. Ctrl-C stops it; it keeps no state."""
    _check_installed("serve")
    from phyla.dashboard import dashboard_of
    from phyla.service.serving import serve_store

    places = options.database(ctx)
    host = host or ("0.0.0.0" if publish else "127.0.0.1")
    home = places.home if publish else None
    pages = dashboard_of(places)
    serve_store(places.storage, host, port, names=name or (), publish=home, pages=pages, say=print)


def dashboard(
    ctx: Context,
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8480,
) -> None:
    """Show studies and watched runs in a browser, on this machine only, while they run. Ctrl-C stops it."""
    _check_installed("dashboard")
    from phyla.dashboard import dashboard_of
    from phyla.service.serving import serve_store

    places, where = options.database(ctx), options.where(ctx)
    file = places.sqlite_file
    if file is not None and not file.exists() and (where["home"] or where["storage"]):
        raise UsageError(f"no studies: {file} does not exist; is it misspelled?")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    serve_store(places.storage, "127.0.0.1", port, work=False, pages=dashboard_of(places), say=print)


def _check_installed(command: str) -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f'phyla {command} needs {error.name}: pip install "phyla[server]"') from error


def token(
    ctx: Context,
    action: Annotated[str, Argument(metavar="create|list|revoke", help="What to do.")],
    name: Annotated[str | None, Argument(metavar="[NAME]", help="Name of the token.")] = None,
    role: Annotated[
        str, Option(help="viewer reads; worker also works; operator also changes studies.")
    ] = "worker",
    expires: Annotated[
        object,
        Option(parser=seconds, metavar="TIME", help="How long it is valid, such as 30d.", show_default="forever"),
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            callback=options.output_name,
            help="Write it to this new file, mode 0600, instead of printing it.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Create, list and revoke the tokens of a service; the store has only their hashes."""
    from phyla.records import Role
    from phyla.service.tokens import PUBLISHED_TOKEN, create, list_tokens
    from phyla.study.places import open_existing

    if action not in ("create", "list", "revoke") or (name is None) != (action == "list"):
        raise UsageError(
            "give: phyla token create NAME [--role ROLE], phyla token list, or phyla token revoke NAME"
        )
    if as_json and action != "list":
        raise UsageError(f"--json is for phyla token list; leave it out: phyla token {action} {name}")
    if role not in [*Role]:
        raise UsageError(f"--role {role}: choose one of: {', '.join(Role)}")
    if action == "create" and name == PUBLISHED_TOKEN:
        raise UsageError(
            f"token {name!r}: phyla serve --publish creates and replaces the token with this name; choose another"
        )
    places = options.database(ctx)
    if places.sqlite_file is not None:
        places.home.mkdir(parents=True, exist_ok=True)
    from phyla.store import RemoteStore, open_store

    store = open_store(places.storage) if action == "create" else open_existing("token", places)
    if isinstance(store, RemoteStore):
        raise ConfigurationError(
            "create tokens on the machine of the database, not through the service: name the database with "
            "--storage, or its home with --home"
        )
    if action == "list":
        rows = list_tokens(store)
        if as_json:
            print_json(rows)
        elif rows:
            print_table(("name", "role", "created", "expires"), [tuple(row.values()) for row in rows])
        else:
            print("no tokens; create one with: phyla token create NAME")
    elif action == "revoke":
        assert name is not None
        store.revoke_token(name)
        print(f"token {name!r} is revoked; running services reject it within seconds")
    else:
        assert name is not None
        secret = create(store, name, Role(role), expires if isinstance(expires, float) else None, out)
        if out is None:
            print(secret)
            print(
                f"This token has the role {role} and is shown only once; pass it in PHYLA_TOKEN", file=sys.stderr
            )
        else:
            print(f"{out} has a token with the role {role}; pass its path in PHYLA_TOKEN_FILE")
