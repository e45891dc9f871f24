"""What only SQLite has: one file, turns to write, and all that can be wrong with a file."""

import errno
import fcntl
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from facts import raises
from forked import HELPERS, Forked
from phyla.controller import Controller
from phyla.errors import ConfigurationError, StoreBusy, StoreError, StoreUnavailable
from phyla.records import Role, Token
from phyla.store import Store, StoreIdentity, open_store
from phyla.store.sql import sqlite
from phyla.store.sql.sqlite import SqliteBackend
from phyla.store.sql.store import SqlStore
from phyla.system import file_systems
from phyla.system.file_systems import network_file_system
from storing import VirtualClock, completion, pbt, rules
from waiting import until

WORK = """
import sys
from storing import completion, pbt, rules
from phyla.controller import Controller
from phyla.store import open_store
store = open_store(sys.argv[1])
controller = Controller(store, 1, rules(pbt(6)))
while claims := controller.claim(sys.argv[2])[0]:
    (answer,), _, _ = controller.complete([completion(claims[0])])
    print(claims[0].trial.id)
"""


def _children(url: str, workers: int, code: str = WORK) -> list[list[int]]:
    env = os.environ | {"PYTHONPATH": HELPERS}
    running = [Forked(["-c", code, url, f"w{number}"], env=env) for number in range(workers)]
    outputs = [process.communicate(timeout=180)[0] for process in running]
    assert [process.returncode for process in running] == [0] * workers
    return [[int(line) for line in output.split()] for output in outputs]


def test_processes_share_a_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    store = open_store(url)
    store.create_study("s", {}, 1, 6)
    done = sorted(trial for trials in _children(url, 3) for trial in trials)
    assert done == list(range(1, 6 * 6 + 1))
    with store.reader(1) as reader:
        assert reader.counts() == {"completed": 36}
    store.close()


def test_threads_take_turns(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/s.db")
    store.create_study("s", {}, 1, 6)
    done: list[int] = []

    def work(worker: str) -> None:
        controller = Controller(store, 1, rules(pbt(6)))
        while claims := controller.claim(worker)[0]:
            controller.complete([completion(claims[0])])
            done.append(claims[0].trial.id)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert sorted(done) == list(range(1, 37))
    store.close()


def test_a_look_sees_one_state_while_others_write(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/s.db")
    store.create_study("s", {}, 1, 2)
    controller = Controller(store, 1, rules(pbt(2)))
    with store.reader(1) as reader:
        assert not reader.unfinished()
        controller.claim("w")
        assert not reader.unfinished()
    store.close()


def test_a_foreign_program_that_holds_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqlStore(SqliteBackend(f"sqlite:///{path}", VirtualClock(), busy_timeout_s=0.05))
    store.create_study("s", {}, 1, 1)
    shell = sqlite3.connect(path, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with raises(StoreBusy, "s.db", "0.05"):
        store.create_study("t", {}, 1, 1)
    shell.execute("ROLLBACK")
    shell.close()
    assert store.create_study("t", {}, 1, 1).id == 2
    store.close()


def test_the_folder_is_made_and_the_url_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///a/b c/s.db")
    assert store.url == f"sqlite:///{tmp_path}/a/b c/s.db"
    store.create_study("s", {}, 1, 1)
    again = open_store(store.url)
    assert again.find_study("s") is not None
    store.close()
    again.close()


def test_commits_are_flushed(tmp_path: Path) -> None:
    backend = SqliteBackend(f"sqlite:///{tmp_path}/s.db", VirtualClock())
    with backend.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    backend.engine.dispose()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "memory://"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///x.db?cache=1", "%3F"),
        ("mysql://host/database", "sqlite:///file.db postgresql://"),
        ("nothing", "sqlite:///file.db postgresql://"),
        ("postgresq://me:SECRET@host/d", "postgresq://me:***@host/d"),
        ("postgresql+psycopg2://me:SECRET@host/d", "psycopg2://me:***@host/d'"),
        ("postgresql://me:SECRET@more@host/d", "//me:***@host/d %40"),
        ("postgresql://me:SEC/RET@host:port/d", "where the port is a number"),
        ("http://me:SECRET@host:8470", "//me:***@host:8470"),
    ],
)
def test_a_url_that_makes_no_sense_is_explained(url: str, message: str) -> None:
    with raises(ConfigurationError, *message.split()) as refused:
        open_store(url)
    assert "SEC" not in str(refused.value)


def test_a_file_that_is_no_database_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_text("not a database" * 100)
    with raises(StoreUnavailable, "s.db"):
        open_store(f"sqlite:///{path}")


def test_a_file_that_seems_damaged_is_not_given_up_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = open_store(f"sqlite:///{path}")
    store.create_study("s", {}, 1, 2)
    store.close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))
    with pytest.raises(StoreUnavailable, match=r"malformed; the disk failed, or .* run this again; .* \.recover"):
        open_store(f"sqlite:///{path}").create_study("t", {}, 1, 2)
    path.write_bytes(content)
    assert open_store(f"sqlite:///{path}").find_study("s") is not None


def test_a_path_that_cannot_be_opened_is_explained(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreUnavailable, match="unable to open database file; check that the path is right"):
        open_store(f"sqlite:///{tmp_path}/folder")
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="cannot make the folder"):
        open_store(f"sqlite:///{tmp_path}/file/s.db")


def _limited(tmp_path: Path, pragma: str) -> tuple[Store, Callable[[], object]]:
    backend = SqliteBackend(f"sqlite:///{tmp_path}/s.db", VirtualClock())
    store = SqlStore(backend)
    store.create_study("s", {}, 1, 2)
    session = backend.begin(write=False)
    session.cursor.execute(pragma)
    session.commit()
    return store, lambda: store.create_study("t", {"much": "x" * 10_000_000}, 1, 2)


@pytest.mark.parametrize(
    ("pragma", "message"),
    [
        ("PRAGMA max_page_count = 1", "the disk is full free some space"),
        (
            "PRAGMA query_only = ON",
            "is read-only or the disk is full so it can only be looked at make both writable",
        ),
    ],
)
def test_a_disk_that_takes_nothing_is_explained(tmp_path: Path, pragma: str, message: str) -> None:
    store, write = _limited(tmp_path, pragma)
    with raises(StoreUnavailable, *message.split()):
        write()
    assert store.find_study("t") is None
    store.close()


def test_a_file_that_cannot_be_looked_at_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object) -> bool:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(tmp_path / "s.db"))

    monkeypatch.setattr(Path, "is_file", look)
    with raises(StoreUnavailable, tmp_path / "s.db", os.strerror(errno.ESTALE)):
        open_store(f"sqlite:///{tmp_path}/s.db")


def test_network_file_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    shared = tmp_path / "a b"
    shared.mkdir()
    escaped = str(shared).replace(" ", "\\040")
    mounts.write_text(
        f"/dev/vda / ext4 rw 0 0\nserver:/x {escaped} nfs4 rw 0 0\n/dev/vdb {escaped}/local xfs rw 0 0\n"
    )
    assert network_file_system(shared / "s.db", mounts) == "nfs4"
    assert network_file_system(shared / "local" / "s.db", mounts) is None
    assert network_file_system(tmp_path / "s.db", mounts) is None
    assert network_file_system(tmp_path / "s.db", tmp_path / "missing") is None
    monkeypatch.setattr(sqlite, "network_file_system", lambda path: network_file_system(path, mounts))
    with raises(ConfigurationError, "nfs4", "postgresql://"):
        open_store(f"sqlite:///{shared}/s.db")
    assert not list(shared.iterdir())
    assert file_systems.MOUNTS.name == "mounts"


def test_a_network_file_system_is_seen_through_symbolic_links(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    shared = tmp_path / "shared"
    shared.mkdir()
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {shared} nfs4 rw 0 0\n")
    (tmp_path / "runs").symlink_to(shared)
    (tmp_path / "later").symlink_to(shared / "not" / "made" / "yet")
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "s.db").symlink_to(shared / "s.db")
    (shared / "back").symlink_to(tmp_path / "local")
    for path in ("runs/s.db", "runs/new/folder/s.db", "later/s.db", "local/s.db", "local/../runs/s.db"):
        assert network_file_system(tmp_path / path, mounts) == "nfs4", path
    assert network_file_system(shared / "back" / "t.db", mounts) is None


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        (b"a b", rb"a\040b"),
        (b"tab\tline\n", rb"tab\011line\012"),
        (b"a\\040b", rb"a\134040b"),
        (b"a#b", rb"a\043b"),
        (b"\x0b\x0c\x1c\xc2\x85\xe2\x80\xa8", b"\x0b\x0c\x1c\xc2\x85\xe2\x80\xa8"),
        (b"\xff", b"\xff"),
    ],
)
def test_mount_points_are_read_whatever_their_name(tmp_path: Path, name: bytes, escaped: bytes) -> None:
    mounts, shared = tmp_path / "mounts", tmp_path / os.fsdecode(name)
    shared.mkdir()
    mounts.write_bytes(b"/dev/vda / ext4 rw 0 0\nserver:/x %s/%s nfs4 rw 0 0\n" % (os.fsencode(tmp_path), escaped))
    assert network_file_system(shared / "s.db", mounts) == "nfs4"
    assert network_file_system(tmp_path / "s.db", mounts) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_child_uses_connections_of_its_own(tmp_path: Path) -> None:
    code = """
import os, sys
from phyla.store import open_store
store = open_store(sys.argv[1])
store.create_study("a", {}, 1, 1)
child = os.fork()
if child == 0:
    store.create_study("b", {}, 1, 1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
store.create_study("c", {}, 1, 1)
print(len(store.studies()))
"""
    assert _children(f"sqlite:///{tmp_path}/s.db", 1, code) == [[3]]


def test_a_copied_file_is_another_store_and_a_moved_one_is_not(tmp_path: Path) -> None:
    def identity(name: str) -> StoreIdentity:
        store = open_store(f"sqlite:///{tmp_path / name}")
        try:
            return store.identity()
        finally:
            store.close()

    first = identity("first.db")
    shutil.copy(tmp_path / "first.db", tmp_path / "copy.db")
    copied = identity("copy.db")
    assert copied.id != first.id
    assert copied.copied_from == first.id
    (tmp_path / "first.db").rename(tmp_path / "moved.db")
    assert identity("moved.db") == first


def test_processes_that_ask_at_once_get_one_identity(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    together = threading.Barrier(4)

    def identity(_: int) -> str:
        store = open_store(url)
        together.wait(180)
        try:
            return store.identity().id
        finally:
            store.close()

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(identity, range(4)))) == 1


def test_who_opens_a_new_file_waits_for_another_that_makes_it_ready(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with (
        open(f"{path}.lock", "w") as now,
        open(f"{path}.turn", "w") as next_one,
        ThreadPoolExecutor(1) as pool,
    ):
        fcntl.flock(now, fcntl.LOCK_EX)
        opening = pool.submit(open_store, f"sqlite:///{path}")

        def waits() -> bool:
            try:
                fcntl.flock(next_one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            fcntl.flock(next_one, fcntl.LOCK_UN)
            return opening.done()

        until(waits, "the thread waits or has opened the file")
        # SQLite would not wait: of two that change the journal of a new file at once, it refuses one.
        size = path.stat().st_size
        fcntl.flock(now, fcntl.LOCK_UN)
        opening.result(180).close()
        assert size == 0


def test_one_process_alone_keeps_a_file_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phyla.system.file_systems.network_file_system", lambda path: "nfs4")
    url = f"sqlite:///{tmp_path}/new/phyla.db"
    store = open_store(url, alone=True)
    made = store.create_study("study", {}, 1, 2)
    identity = store.identity()
    # Nothing is shared with other processes, and none may open it.
    assert not (tmp_path / "new" / "phyla.db-shm").exists()
    with pytest.raises(StoreUnavailable, match="does another service have it"):
        open_store(url, alone=True)
    store.close()
    again = open_store(url, alone=True)
    assert again.find_study("study") == made
    assert again.identity() == identity
    again.close()


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o022, 0o644), (0o077, 0o600)])
def test_a_database_may_be_written_by_whom_the_umask_allows(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with closing(open_store(f"sqlite:///{tmp_path}/s.db")) as store:
            store.studies()
            found = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert dict.fromkeys(("s.db", "s.db-wal", "s.db-shm", "s.db.lock", "s.db.turn"), mode) == found


def test_who_may_only_read_sees_what_is_committed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with closing(open_store(url)) as store:
        store.studies()
    with monkeypatch.context() as patched:
        # Root may write everything.
        patched.setattr(os, "access", lambda *_: False)
        reader = open_store(url)
    with closing(reader):
        assert not reader.tokens()
        for name in ("one", "two"):
            with closing(open_store(url)) as store:
                store.add_token(Token(name=name, role=Role.VIEWER, digest=name, created_at=0.0))
                while_open = [token.name for token in reader.tokens()]
            assert while_open == [token.name for token in reader.tokens()]
            assert name in while_open
        assert not list(tmp_path.glob("s.db-*"))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_moved_or_replaced_is_not_written_to(tmp_path: Path, replaced: bool) -> None:
    file, kept = tmp_path / "phyla.db", tmp_path / "kept.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.create_study("s", {})
        file.rename(kept)
        if replaced:
            file.write_bytes(kept.read_bytes())
        with raises(StoreError, "phyla.db"):
            store.create_study("t", {})
        with pytest.raises(StoreError, match="moved"):
            store.studies()
        kept.replace(file)
        assert [study.name for study in store.studies()] == ["s"]
