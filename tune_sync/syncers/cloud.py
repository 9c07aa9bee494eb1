"""`CloudSyncer`: directories to and from a bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tune_sync.buckets.bucket import Bucket
from tune_sync.buckets.files import get_files, put_files
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.filters import matches
from tune_sync.syncers.base import SYNC_PERIOD_S, SYNC_TIMEOUT_S, BackgroundSyncer
from tune_sync.transfer.tree import scan

# So many between two looks whether the delete is still wanted: few where each is a request.
DELETES_COUNT = 100


class CloudSyncer(BackgroundSyncer):
    """What `SyncConfig(upload_dir="s3://…")` uses. Remote directories are URLs.

    In a `SyncConfig` it says that every worker writes to the bucket itself. Its methods move plain
    directories: they publish nothing, and delete at once. Empty directories are not kept: a bucket
    has none, and not every library can put the empty objects that some tools have in their place.

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
        """Send a directory. Empty directories are left out.

        Raises:
            PathRefusedError: A link in it that cannot be sent; see `tune_sync.transfer.tree`.
        """
        tree, patterns = scan(Path(local_dir)), tuple(exclude or ())
        bucket = self._bucket(remote_dir)
        sources = {f.path: Path(f.source) for f in tree.files if not matches(f.path, patterns)}
        return self._start(
            lambda: put_files(bucket, sources, self._checker()), f"upload to {remote_dir}"
        )

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        """Fetch a directory into `local_dir`, which is made if needed. `wait` raises.

        Raises:
            FileNotFoundError: No object is below that URL.
            PathRefusedError: The name of one is none of a file. Nothing is written then.
        """
        bucket, patterns = self._bucket(remote_dir), tuple(exclude or ())

        def fetch() -> None:
            found = bucket.list("")
            if not found:
                raise FileNotFoundError(f"{remote_dir}: nothing is there; correct the URL")
            wanted = [o for o in found if not matches(o.key, patterns)]
            self.check()
            Path(local_dir).mkdir(parents=True, exist_ok=True)
            get_files(bucket, wanted, Path(local_dir), self._checker())

        return self._start(fetch, f"download from {remote_dir}")

    def delete(self, remote_dir: str) -> bool:
        """Delete all objects below a URL."""
        bucket = self._bucket(remote_dir)

        def delete() -> None:
            keys = [found.key for found in bucket.list("")]
            for start in range(0, len(keys), DELETES_COUNT):
                self.check()
                bucket.delete(keys[start : start + DELETES_COUNT])

        return self._start(delete, f"delete of {remote_dir}")

    def _checker(self) -> Callable[[], None]:
        """`check` of the command that runs, for the threads that work for it."""
        return partial(self.check, threading.current_thread())

    def _bucket(self, remote_dir: str) -> Bucket:
        return open_bucket(parse_bucket_url(remote_dir), self._options)
