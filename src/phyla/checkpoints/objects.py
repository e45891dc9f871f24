"""The objects below one URL of an object store, read and written by way of fsspec."""

import errno
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar, final

from phyla.errors import (
    CheckpointError,
    CheckpointsAbsent,
    CheckpointStorageFailed,
    ConfigurationError,
    advice_on,
    is_storage_error,
)
from phyla.system import patience

LOG = logging.getLogger("phyla")

T = TypeVar("T")
Item = TypeVar("Item")

AT_ONCE = 8
"""Files that are moved at the same time."""
PARTS_AT_ONCE = 4
PART_BYTES = 2**24
SILENT_S = 15.0
"""Seconds after which a warning names a request that still waits; s3fs retries a silent store for minutes."""

_CREDENTIALS = re.compile("Credential|Token|Profile|SSO")
_OUT_OF_REACH = {
    "ConnectionError",
    "HTTPClientError",
    "TimeoutError",
    "ClientConnectionError",
    "ClientPayloadError",
}
_BUSY = {getattr(errno, "EREMOTEIO", errno.EIO), errno.EBUSY}
_RIGHTS = "list, read, write and delete objects, and abort uploads,"


@final
class Objects:
    """Objects below a URL such as `s3://bucket/prefix`, by keys relative to it.

    Calls may come from any threads. They raise FileNotFoundError for a missing object, CheckpointsAbsent if the
    store is unreachable or has no such bucket, and CheckpointStorageFailed if it denies the request. Messages name
    the fix, and ask for write permission unless `writes=False`. Requests to an unreachable store are retried for
    `patience_s`, by default for `phyla.system.patience.PATIENCE_S` once it was reached.
    """

    def __init__(self, url: str, *, writes: bool = True, patience_s: float | None = None) -> None:
        self.url = url
        self._writes = writes
        self._patience_s = patience_s
        self._protocol, _, self._root = url.partition("://")
        self._is_s3 = self._protocol in ("s3", "s3a")
        self._made: tuple[int, Any] = (0, None)
        self._reached = False
        self._slow = False

    def _files(self) -> Any:
        """Return the file system, which threads share, and processes do not."""
        if self._made[0] != os.getpid():
            self._made = (os.getpid(), self._file_system())
        return self._made[1]

    def _file_system(self) -> Any:
        how: dict[str, Any] = {"use_listings_cache": False}
        try:
            import fsspec

            if self._is_s3:
                custom = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
                usual = {"retries": {"mode": "standard", "max_attempts": 3}, "max_pool_connections": 50}
                how |= {"config_kwargs": {**usual, **custom}}
                how |= {"max_concurrency": PARTS_AT_ONCE, "default_block_size": PART_BYTES}
            return fsspec.filesystem(self._protocol, **how)
        except ImportError as error:
            needs = 'pip install "phyla[s3]"' if self._is_s3 else str(error)
            raise ConfigurationError(f"{self.url} needs a library that is missing: {needs}") from None
        except ValueError as error:
            raise ConfigurationError(f"checkpoints={self.url!r}: {error}; give s3://bucket/prefix") from None

    def _call(self, doing: str, key: str, call: Callable[[Any, str], T]) -> T:
        with self._noticed(doing, key):
            return self._patient(doing, key, call)

    @contextmanager
    def _noticed(self, doing: str, key: str) -> Iterator[None]:
        """Warn once if a request takes long, until one is quick again."""
        slow = False

        def notice() -> None:
            nonlocal slow
            slow = True
            if not self._slow:
                self._slow = True
                where = f"{self.url}/{key}".rstrip("/")
                LOG.warning(
                    "still waiting for the store: it takes more than %g s to %s %s", SILENT_S, doing, where
                )

        timer = Timer(SILENT_S, notice)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._slow &= slow

    def _patient(self, doing: str, key: str, call: Callable[[Any, str], T]) -> T:
        files, usual_s = self._files(), patience.PATIENCE_S if self._reached else 0.0
        waiting = patience.Patience(lambda: usual_s if self._patience_s is None else self._patience_s)
        while True:
            try:
                answer = call(files, f"{self._root}/{key}".rstrip("/"))
                self._reached = True
                return answer
            except (FileNotFoundError, FileExistsError):
                self._reached = True
                raise
            except Exception as error:  # each library below raises its own errors
                if not _is_out_of_reach(error) or waiting.over:
                    raise _failure(error, doing, f"{self.url}/{key}".rstrip("/"), self._writes) from error
            waiting.pause()

    def sizes(self, below: str = "") -> dict[str, int]:
        """Return the sizes in bytes of all objects below a key, by their keys."""
        return {key: int(info["size"]) for key, info in self.infos(below).items()}

    def infos(self, below: str = "") -> dict[str, dict[str, Any]]:
        """Return the store's listing of all objects below a key, by their keys."""
        path = f"{self._root}/{below}".rstrip("/")
        # For an empty prefix, s3fs sends no further request.
        path, how = (self._root, {"prefix": f"{below}/"}) if below and self._is_s3 else (path, {})
        try:
            infos = self._call("list", "", lambda files, _: files.find(path, detail=True, **how))
        except FileNotFoundError as error:
            bucket = self._root.partition("/")[0]
            raise CheckpointsAbsent(f"there is no bucket {bucket!r} for {self.url}: {error}") from error
        start = f"{self._root}/"
        within = f"{start}{below}/" if below else start
        infos.pop(within, None)
        return {path.removeprefix(start): info for path, info in infos.items() if path.startswith(within)}

    def info(self, key: str) -> dict[str, Any]:
        """Return the store's information on one object."""
        return dict(self._call("look at", key, lambda files, path: files.info(path)))

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return a small object, or a range of bytes of one."""
        how = {"start": start, "end": end} | ({"max_concurrency": 1} if self._is_s3 else {})
        return bytes(self._call("read", key, lambda files, path: files.cat_file(path, **how)))

    def write(self, key: str, data: bytes) -> None:
        """Write a small object, replacing an old one."""
        self._call("write", key, lambda files, path: files.pipe_file(path, data))

    def create(self, key: str, data: bytes) -> bool:
        """Write a small object unless it exists; return whether the object has the given content.

        A store without conditional writes replaces an object written at the very same moment.
        """

        def make(files: Any, path: str) -> None:
            try:
                files.pipe_file(path, data, mode="create")
            except (OSError, NotImplementedError) as error:
                if not isinstance(error, NotImplementedError) and error.errno != errno.ENOSYS:
                    raise
                if files.exists(path):
                    raise FileExistsError(path) from None
                files.pipe_file(path, data)

        try:
            self._call("write", key, make)
        except FileExistsError:
            # Perhaps our own: a response may have been lost, and the request repeated.
            return self.read(key) == data
        return True

    def put(self, local: Path, key: str) -> None:
        """Write a file as an object."""
        how = {"chunksize": PART_BYTES} if self._is_s3 else {}
        self._patient("write", key, lambda files, path: files.put_file(str(local), path, **how))

    def get(self, key: str, local: Path) -> None:
        """Write an object into a file."""
        self._patient("read", key, lambda files, path: files.get_file(path, str(local)))

    def remove(self, keys: Collection[str]) -> None:
        """Remove objects; missing ones are ignored."""

        def remove(key: str) -> None:
            try:
                self._call("delete", key, lambda files, path: files.rm_file(path))
            except FileNotFoundError:
                return

        run_each(remove, keys)

    def uploads(self, below: str = "") -> list[tuple[str, str]]:
        """Return key and id of multipart uploads that were begun below a key and never completed.

        Empty if the store has no such uploads, or denies the listing.
        """
        if not self._is_s3:
            return []
        bucket, _, root = self._root.partition("/")
        start = f"{root}/".lstrip("/")
        uploads: list[tuple[str, str]] = []

        def look(files: Any, path: str) -> None:
            more: dict[str, Any] = {}
            while True:
                page = files.call_s3(
                    "list_multipart_uploads", Bucket=bucket, Prefix=start + (f"{below}/" if below else ""), **more
                )
                uploads.extend(
                    (upload["Key"].removeprefix(start), upload["UploadId"]) for upload in page.get("Uploads", [])
                )
                if not page.get("IsTruncated"):
                    return
                more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

        self._tolerant(below, look)
        return uploads

    def abort(self, uploads: Iterable[tuple[str, str]]) -> None:
        """Abort multipart uploads to free the space of their parts."""
        bucket = self._root.partition("/")[0]
        for key, upload in uploads:

            def stop(files: Any, path: str, upload: str = upload) -> None:
                files.abort_mpu(bucket, path.partition("/")[2], upload)

            self._tolerant(key, stop)

    def _tolerant(self, key: str, call: Callable[[Any, str], object]) -> None:
        # Leftover uploads only take space; the right to list them is often missing.
        try:
            self._call("look at uploads to", key, call)
        except (FileNotFoundError, CheckpointStorageFailed):
            return


def run_each(call: Callable[[Item], object], items: Collection[Item]) -> None:
    """Call a function for each item, several in parallel; after an error no more calls start."""
    if len(items) == 1:
        call(next(iter(items)))
        return
    with ThreadPoolExecutor(AT_ONCE, "phyla-objects") as pool:
        calls = [pool.submit(call, item) for item in items]
        try:
            for done in calls:
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _status(error: BaseException) -> int:
    """Return the HTTP status behind an error; 0 without one."""
    answer: Any = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    try:
        return int(answer["ResponseMetadata"]["HTTPStatusCode"])
    except (TypeError, KeyError):
        return 0


def _is_out_of_reach(error: Exception) -> bool:
    """Return whether a retry may help."""
    busy = isinstance(error, OSError) and error.errno in _BUSY
    # 501 means that the store does not support the request.
    busy |= _status(error) >= 500 and _status(error) != 501
    return busy or any(base.__name__ in _OUT_OF_REACH for base in type(error).__mro__)


def _failure(error: Exception, doing: str, url: str, writes: bool) -> CheckpointError:
    detail = (str(error).strip() or type(error).__name__).splitlines()[0]
    if _is_out_of_reach(error):
        advice = "check the network, and AWS_ENDPOINT_URL if the store is not Amazon's"
        advice += "; then run the study again" if writes else ""
        return CheckpointsAbsent(f"cannot {doing} {url}, the store is unreachable: {detail}; {advice}")
    if isinstance(error, PermissionError) or _status(error) in (401, 403):
        advice = f"these credentials need permission to {_RIGHTS if writes else 'list and read objects'} there"
    elif _CREDENTIALS.search(type(error).__name__):
        advice = "give this machine credentials, such as AWS_PROFILE, a file ~/.aws/credentials, or a role"
    elif isinstance(error, OSError) and not _status(error) and is_storage_error(error):
        advice = advice_on(error)
    else:
        advice = "correct the URL, or check the store's health"
    return CheckpointStorageFailed(f"cannot {doing} {url}: {detail}; {advice}")
