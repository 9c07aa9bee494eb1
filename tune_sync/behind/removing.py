"""`Removing`: bytes that nobody sees any more go in a thread of their own."""

from __future__ import annotations

from collections.abc import Callable

from tune_sync.worker import Worker

# Pages of memory go at some GB/s, and those of disks are not waited for.
WAIT_S = 30.0


class Removing:
    """Methods may be called from any thread."""

    def __init__(self) -> None:
        self._worker = Worker("tune_sync-remove")

    def add(self, job: Callable[[], None]) -> None:
        """Have it done soon. See `staged_copy.Later`."""
        self._worker.add(job)

    def wait(self) -> bool:
        """Return once all has gone; False if there was nothing."""
        return self._worker.wait(0.0) > 0 and not self._worker.wait(WAIT_S)

    def close(self, timeout_s: float) -> None:
        """End the thread after what is left."""
        self._worker.close(timeout_s)
