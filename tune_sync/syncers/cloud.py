"""`CloudSyncer`: directories to and from a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tune_sync.buckets.bucket import Bucket
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.filters import matches
from tune_sync.syncers.base import SYNC_PERIOD_S, SYNC_TIMEOUT_S, BackgroundSyncer
from tune_sync.tree import scan

AT_ONCE_COUNT = 16
CHUNK_BYTES = 16 << 20


class CloudSyncer(BackgroundSyncer):
    """What `SyncConfig(upload_dir="s3://…")` uses. Remote directories are URLs.

    In a `SyncConfig` it says that every worker writes to the bucket itself. Its methods move plain
    directories: they publish nothing, and delete at once.

    Args:
        storage_options: See `SyncConfig`, which has precedence if it has some too.
        sync_period: See `Syncer`.
        sync_timeout: See `Syncer`.
    """

    def __init__(
        self, storage_options: Mapping[str, Any] | None = None,
        sync_period: float = SYNC_PERIOD_S, sync_timeout: float = SYNC_TIMEOUT_S,
    ) -> None:  # fmt: skip
        super().__init__(sync_period, sync_timeout)
        self._options = dict(storage_options or {})

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """What it was made with; empty once it was pickled."""
        return self._options

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_options": {}}  # secrets are never pickled

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        """Send a directory. Empty directories are left out: a bucket has none.

        Raises:
            PathRefusedError: A link in it that cannot be sent; see `tune_sync.tree`.
        """
        tree, patterns = scan(Path(local_dir)), tuple(exclude or ())
        bucket = self._bucket(remote_dir)
        wanted = [file for file in tree.files if not matches(file.path, patterns)]
        return self._start(lambda: _each(lambda f: _put(bucket, f.path, Path(f.source)), wanted))

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        """Fetch a directory into `local_dir`, which is made if needed."""
        bucket, patterns = self._bucket(remote_dir), tuple(exclude or ())

        def fetch() -> None:
            Path(local_dir).mkdir(parents=True, exist_ok=True)
            found = [o for o in bucket.list("") if not matches(o.key, patterns)]
            _each(lambda o: _get(bucket, o.key, o.size_bytes, Path(local_dir, o.key)), found)

        return self._start(fetch)

    def delete(self, remote_dir: str) -> bool:
        """Delete all objects below a URL."""
        bucket = self._bucket(remote_dir)
        return self._start(lambda: bucket.delete([found.key for found in bucket.list("")]))

    def _bucket(self, remote_dir: str) -> Bucket:
        return open_bucket(parse_bucket_url(remote_dir), self._options)


def _each(act: Any, items: list[Any]) -> None:
    with ThreadPoolExecutor(AT_ONCE_COUNT) as pool:
        for _ in pool.map(act, items):
            pass


def _put(bucket: Bucket, key: str, source: Path) -> None:
    size_bytes = source.stat().st_size
    with open(source, "rb") as file:
        if size_bytes <= CHUNK_BYTES:
            bucket.put(key, file.read())
            return
        bucket.put_stream(key, iter(lambda: file.read(CHUNK_BYTES), b""), size_bytes)


def _get(bucket: Bucket, key: str, size_bytes: int, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as file:
        for chunk in _chunks(bucket, key, size_bytes):
            file.write(chunk)


def _chunks(bucket: Bucket, key: str, size_bytes: int) -> Iterator[bytes]:
    for start in range(0, size_bytes, CHUNK_BYTES):
        yield bucket.get(key, start, CHUNK_BYTES)
