"""Files outside of checkpoints: which versions this process has stored, and which it could not."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tune_sync import layout
from tune_sync.errors import LeaseLostError
from tune_sync.home import digest_of
from tune_sync.layout import Kind
from tune_sync.run import Run
from tune_sync.streams import FileStream

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


# Ray's experiment state, the files that name checkpoints, begins with this.
STATE_NAME = "experiment_state"


class SentFiles:
    """Used by one filesystem. Methods may be called from any thread.

    Args:
        tell: Called with the key of a file that is not stored, and why.

    Attributes:
        unstored: Key of a file whose last version is not stored -> why.
    """

    def __init__(self, tell: Callable[[str, Exception], None] = lambda key, error: None) -> None:
        self._tell = tell
        self.unstored: dict[str, Exception] = {}
        self._digests: dict[str, str] = {}

    def commit(
        self, stream: FileStream, key: str, kind: Kind, run: Run | None, timeout_s: float
    ) -> None:
        """Put a finished file in its place; skips one that this process has sent before."""
        self._commit(stream, key, kind is Kind.STATE, run, timeout_s)
        self.unstored.pop(key, None)

    def failed(self, key: str, error: Exception) -> None:
        """A file is not stored. pyarrow drops what `close` raises, and Ray only logs the rest."""
        if isinstance(error, LeaseLostError):
            return  # told by whoever checks the lease
        logger.error("%s is not stored: %s", key, error)
        self.unstored[key] = error
        self._digests.pop(key, None)
        self._tell(key, error)

    def forget(self, key: str) -> None:
        """`key` was removed, with all that is below."""
        self._digests = {k: d for k, d in self._digests.items() if layout.below(key, k) is None}

    def _commit(
        self, stream: FileStream, key: str, durable: bool, run: Run | None, timeout_s: float
    ) -> None:
        if run is not None and durable:
            run.publisher.drain(timeout_s)
        before = self._digests.get(key)
        if run is not None and before is None and key.startswith(STATE_NAME):
            before = _digest_at(run, key)
        stream.commit(durable, unless=None if run and durable else before)
        # After a restore Ray copies the states of earlier runs too, in every snapshot. They are not
        # news: only what differs from the version before may count for deletes.
        if run is not None and key.startswith(STATE_NAME) and stream.digest != before:
            run.publisher.state_written()
        self._digests[key] = stream.digest


def _digest_at(run: Run, key: str) -> str | None:
    found = run.home.info(key)
    return digest_of(run.home.read(key, 0, found.size_bytes)) if found else None
