"""Files outside of checkpoints: which versions this process has stored, and which it could not."""

from __future__ import annotations

import logging

from tune_sync import layout
from tune_sync.errors import LeaseLostError
from tune_sync.layout import Kind
from tune_sync.run import Run
from tune_sync.streams import FileStream

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class SentFiles:
    """Used by one filesystem. Methods may be called from any thread.

    Attributes:
        unstored: Key of a file whose last version is not stored -> why.
    """

    def __init__(self) -> None:
        self.unstored: dict[str, Exception] = {}
        self._digests: dict[str, str] = {}

    def commit(
        self, stream: FileStream, key: str, kind: Kind, run: Run | None, timeout_s: float
    ) -> None:
        """Put a finished file in its place; skips one that this process has sent before.

        It runs in `close`, whose errors pyarrow drops: so they are told and kept here.
        """
        try:
            self._commit(stream, key, kind is Kind.STATE, run, timeout_s)
        except LeaseLostError:
            raise  # told by whoever checks the lease
        except Exception as error:
            logger.error("%s is not stored: %s", key, error)
            self.unstored[key] = error
            raise
        self.unstored.pop(key, None)

    def forget(self, key: str) -> None:
        """`key` was removed, with all that is below."""
        self._digests = {k: d for k, d in self._digests.items() if layout.below(key, k) is None}

    def _commit(
        self, stream: FileStream, key: str, durable: bool, run: Run | None, timeout_s: float
    ) -> None:
        if run is not None and durable:
            run.publisher.drain(timeout_s)
        stream.commit(durable, unless=None if run and durable else self._digests.get(key))
        if run is not None and key.startswith("experiment_state"):
            run.publisher.state_written()
        self._digests[key] = stream.digest
