"""`CallbackSyncer`: directories moved by functions of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tune_sync.errors import ConfigError
from tune_sync.syncers.base import SYNC_PERIOD_S, SYNC_TIMEOUT_S, BackgroundSyncer, exits_told
from tune_sync.syncers.choosing import chosen, fetch_chosen


class CallbackSyncer(BackgroundSyncer):
    """Moves directories with functions, which run in a thread of the driver, one at a time.

    What holds for the commands of a `CommandSyncer` holds for the functions: contents of `source`
    go into `target`, what else is there stays, and what cannot be done raises. They are stored
    with the experiment, so they have to pickle, and should read secrets when they are called.

    A function cannot be killed. While one does not return, nothing else is sent, and `fit()` says
    so once `sync_timeout` has passed: have it give up by itself.

    Args:
        upload: `upload(source, target)`: a directory of this node, and where it goes.
        download: `download(source, target)`: the other way round.
        delete: `delete(target)`: removes a remote directory.
        sync_period: See `Syncer`.
        sync_timeout: See `Syncer`.

    Raises:
        ConfigError: Something is no function.
    """

    def __init__(
        self, upload: Callable[[str, str], Any], download: Callable[[str, str], Any],
        delete: Callable[[str], Any],
        sync_period: float = SYNC_PERIOD_S, sync_timeout: float = SYNC_TIMEOUT_S,
    ) -> None:  # fmt: skip
        super().__init__(sync_period, sync_timeout)
        for name, function in (("upload", upload), ("download", download), ("delete", delete)):
            if not callable(function):
                raise ConfigError(f"CallbackSyncer({name}={function!r}): a function is needed")
        self._upload, self._download, self._delete = upload, download, delete

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        """See `Syncer.sync_up`."""

        def send() -> None:
            with chosen(local_dir, exclude) as source:
                self._call("upload", self._upload, source, remote_dir)

        return self._start(send, f"upload to {remote_dir}")

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        """See `Syncer.sync_down`."""

        def fetch(target: str) -> None:
            self._call("download", self._download, remote_dir, target)

        return self._start(
            lambda: fetch_chosen(fetch, local_dir, exclude), f"download from {remote_dir}"
        )

    def delete(self, remote_dir: str) -> bool:
        """See `Syncer.delete`."""
        return self._start(
            lambda: self._call("delete", self._delete, remote_dir), f"delete of {remote_dir}"
        )

    def _call(self, name: str, function: Callable[..., Any], *directories: str) -> None:
        with exits_told(f"{name}{directories}"):
            function(*directories)
