"""`Removing`: bytes that nobody sees any more go in a thread of their own, or are used again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tune_sync.fastpath.spares import Spares
from tune_sync.worker import Worker

# Pages of memory go at some GB/s, and those of disks are not waited for.
WAIT_S = 30.0


class Removing:
    """Methods may be called from any thread.

    Args:
        memory: The run's directory in shared memory, if that is used.
    """

    def __init__(self, memory: Path | None = None) -> None:
        self._worker = Worker("tune_sync-remove")
        self._spares = Spares(memory) if memory is not None else None

    def add(self, job: Callable[[], None]) -> None:
        """Have it done soon. See `staged_copy.Later`."""
        self._worker.add(job)

    def keep(self, attempt: Path) -> None:
        """See `Spares.keep`."""
        if self._spares is not None:
            self._spares.keep(attempt)

    def trim(self) -> None:
        """See `Spares.trim`."""
        if self._spares is not None:
            self._spares.trim()

    def wait(self) -> bool:
        """Return once all has gone; False if there was nothing."""
        return self._worker.wait(0.0) > 0 and not self._worker.wait(WAIT_S)

    def close(self, timeout_s: float) -> None:
        """End the thread after what is left; nothing is kept any more."""
        self._worker.close(timeout_s)
        if self._spares is not None:
            self._spares.close()
