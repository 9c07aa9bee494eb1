"""`ObjectStoreSyncer`: directories to and from the driver's node, through Ray's object store."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from tune_sync.errors import ConfigError
from tune_sync.filesystem import SyncHandler
from tune_sync.filters import matches
from tune_sync.layout import check_key
from tune_sync.syncers.base import SYNC_PERIOD_S, SYNC_TIMEOUT_S, BackgroundSyncer
from tune_sync.transfer.tree import scan


class ObjectStoreSyncer(BackgroundSyncer):
    """Needs no shared storage. What `SyncConfig(syncer="auto")` uses.

    Args:
        filesystem: The filesystem of a run (`checkpoint.filesystem`,
            `run_config.storage_filesystem`). Needed to call the syncer's methods yourself; a
            syncer that is put into a `SyncConfig` works through the run's own.
        sync_period: See `Syncer`.
        sync_timeout: See `Syncer`. In a `SyncConfig` it is used where the config has the default.
    """

    def __init__(
        self, filesystem: pafs.FileSystem | None = None,
        sync_period: float = SYNC_PERIOD_S, sync_timeout: float = SYNC_TIMEOUT_S,
    ) -> None:  # fmt: skip
        super().__init__(sync_period, sync_timeout)
        self._filesystem = filesystem

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        """Send a directory; a checkpoint directory appears whole when it is published.

        Raises:
            PathRefusedError: A link in it that cannot be sent; see `tune_sync.transfer.tree`.
        """
        handler, tree = self._handler(), scan(Path(local_dir))
        patterns = tuple(exclude or ())

        def send() -> None:
            handler.create_dir(remote_dir, True)
            for directory in tree.directories:
                if not matches(directory, patterns):
                    handler.create_dir(f"{remote_dir}/{directory}", True)
            for file in tree.files:
                if not matches(file.path, patterns):
                    self.check()
                    handler.send_file(file, f"{remote_dir}/{file.path}", remote_dir)
            handler.barrier()

        return self._start(send, f"upload to {remote_dir}")

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        """Fetch a directory into `local_dir`, which is made if needed."""
        filesystem = pafs.PyFileSystem(self._handler())
        patterns = tuple(exclude or ())

        def fetch() -> None:
            Path(local_dir).mkdir(parents=True, exist_ok=True)
            for info in filesystem.get_file_info(pafs.FileSelector(remote_dir, recursive=True)):
                inner = info.path[len(remote_dir.rstrip("/")) + 1 :]
                if matches(inner, patterns):
                    continue
                target = Path(local_dir, check_key(inner))
                if info.type == pafs.FileType.Directory:
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    self.check()
                    fresh = target.with_name(f".{uuid.uuid4().hex}")  # or it might be cut short
                    try:
                        pafs.copy_files(info.path, str(fresh), source_filesystem=filesystem)
                        self.check()
                        fresh.replace(target)
                    finally:
                        fresh.unlink(missing_ok=True)

        return self._start(fetch, f"download from {remote_dir}")

    def delete(self, remote_dir: str) -> bool:
        """Delete a directory of the run."""
        handler = self._handler()

        def delete() -> None:
            self.check()
            handler.delete_dir(remote_dir)

        return self._start(delete, f"delete of {remote_dir}")

    def _handler(self) -> SyncHandler:
        handler: Any = getattr(self._filesystem, "handler", None)
        if not isinstance(handler, SyncHandler):
            raise ConfigError("ObjectStoreSyncer(filesystem=...) needs the filesystem of a run")
        return handler
