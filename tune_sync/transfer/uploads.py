"""The checkpoint uploads of one process, and what it knows of those of others."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from tune_sync.errors import ConfigError
from tune_sync.homes.home import Home
from tune_sync.transfer.upload import Upload

# How many checkpoints a process remembers the reported attempts of. A driver takes a checkpoint
# before its trial reports the next one; the rest of these only bounds what travels along.
CHECKPOINTS_KEPT = 64


class Uploads:
    """Methods may be called from any thread."""

    def __init__(self) -> None:
        self._uploads: dict[str, Upload] = {}
        self._reported: dict[str, dict[str, None]] = {}
        self._lists = threading.Lock()

    def begin(self, home: Home, checkpoint: str, rank: int) -> Upload:
        """A new attempt: what this process wrote for that checkpoint before is dropped.

        Raises:
            ConfigError: Another thread is writing it: its bytes are not dropped under its hands.
        """
        upload = Upload(home, checkpoint, rank)
        with self._lists:
            earlier = self._uploads.get(checkpoint)
            if earlier is None or not earlier.is_of_another_thread:
                self._uploads = {k: u for k, u in self._uploads.items() if not u.is_over}
                self._uploads[checkpoint] = upload
        if self.find(checkpoint) is not upload:
            upload.abort()
            raise ConfigError(
                f"{checkpoint}: another thread of this process is reporting it just now, and Ray "
                "gave both the same name; report from one thread, or hold a lock around it"
            )
        if earlier is not None:
            earlier.abort()
        return upload

    def find(self, checkpoint: str) -> Upload | None:
        """The latest attempt of this process, or None."""
        with self._lists:
            return self._uploads.get(checkpoint)

    def copied(self, checkpoint: str, ranks_count: int) -> None:
        """The copy of a checkpoint has come to its end. See `Seal.ranks_count`."""
        upload = self.find(checkpoint)
        if upload is not None:
            upload.copied(ranks_count)

    def seal(self) -> None:
        """Seal what this process wrote: durable at home when this returns."""
        with self._lists:
            uploads = list(self._uploads.items())
        for checkpoint, upload in uploads:
            if upload.seal():
                self.heard_of(((checkpoint, upload.reported_as),))

    def heard_of(self, reported: Iterable[tuple[str, str]]) -> None:
        """Note attempts `(checkpoint, attempt)` sealed by processes that reported to this one."""
        with self._lists:
            for checkpoint, attempt in reported:
                attempts = self._reported.pop(checkpoint, {})
                self._reported[checkpoint] = attempts | {attempt: None}
            while len(self._reported) > CHECKPOINTS_KEPT:
                del self._reported[next(iter(self._reported))]

    def reported(self) -> tuple[tuple[str, str], ...]:
        """`(checkpoint, attempt)` of what this process sealed, or heard of."""
        with self._lists:
            return tuple((c, a) for c, attempts in self._reported.items() for a in attempts)

    def reported_at(self, checkpoint: str) -> list[str]:
        """The attempts at `checkpoint` that reported."""
        with self._lists:
            return list(self._reported.get(checkpoint, ()))

    def take(self, checkpoint: str) -> list[str]:
        """The attempts at `checkpoint` that reported; forgets them."""
        with self._lists:
            return list(self._reported.pop(checkpoint, ()))
