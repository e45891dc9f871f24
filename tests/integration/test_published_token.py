"""The token that a service publishes in its home."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from phyla.records import token_digest
from phyla.service import serving
from phyla.service.tokens import create
from phyla.store import open_store
from phyla.system import file_locks
from waiting import until


def test_two_services_that_start_at_once_in_one_home_use_one_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, real_create, real_wait = threading.Event(), create, file_locks.wait_for
    others: list[Future[None]] = []

    def wait_for(descriptor: int, *, shared: bool) -> None:
        if threading.current_thread() is not threading.main_thread():
            waits.set()
        real_wait(descriptor, shared=shared)

    def create_while_another_starts(*words: Any, **how: Any) -> str:
        monkeypatch.setattr(serving, "create", real_create)
        others.append(pool.submit(serving._published_token, store, tmp_path))
        until(lambda: waits.is_set() or others[0].done(), "the second service waits or is ready")
        return real_create(*words, **how)

    with closing(open_store(f"sqlite:///{tmp_path}/s.db")) as store, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(serving, "create", create_while_another_starts)
        monkeypatch.setattr(file_locks, "wait_for", wait_for)
        serving._published_token(store, tmp_path)
        others[0].result(180)
        (token,) = store.tokens()
    assert token.digest == token_digest((tmp_path / "service.token").read_text().strip())
