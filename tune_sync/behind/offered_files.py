"""Files of the driver that name no checkpoints: written in any order, the newest of each."""

from __future__ import annotations

import threading

from tune_sync.sending.cut import Write


class OfferedFiles:
    """Methods may be called from any thread; `write` from one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, Write] = {}
        self._failed: dict[str, Exception] = {}

    def offer(self, key: str, write: Write) -> None:
        """Take a file; it replaces one with this key that was not written."""
        with self._lock:
            self._files[key] = write

    def what_is_left(self) -> list[str]:
        """What is not written, and why, in words."""
        with self._lock:
            failed = [f"{k}: {self._failed[k]}" for k in self._files if k in self._failed]
            return failed + [key for key in self._files if key not in self._failed]

    @property
    def is_empty(self) -> bool:
        """Whether all that was offered is taken by `write`, and none of it failed."""
        return not self._files

    def write(self) -> None:
        """Write what was offered. After an error the rest stays, and what is newer wins."""
        with self._lock:
            files, self._files = self._files, {}
        while files:
            key, write = next(iter(files.items()))
            try:
                write()
            except BaseException as error:
                with self._lock:
                    if isinstance(error, Exception):
                        self._failed[key] = error
                    del files[key]  # the others are tried before it
                    self._files = {**files, key: write, **self._files}
                raise
            del files[key]
            self._failed.pop(key, None)
