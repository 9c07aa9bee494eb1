"""The checkpoint uploads of one process, and what it knows of those of others."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from tune_sync.home import Home
from tune_sync.upload import Upload

# A process reports few checkpoints before their driver takes them; more would only be stale.
REPORTED_KEPT = 64


class Uploads:
    """Methods may be called from any thread."""

    def __init__(self) -> None:
        self._uploads: dict[str, Upload] = {}
        self._reported: dict[tuple[str, str], None] = {}
        self._lists = threading.Lock()

    def begin(self, home: Home, checkpoint: str, rank: int) -> Upload:
        """A new attempt: what this process wrote for that checkpoint before is dropped."""
        upload = Upload(home, checkpoint, rank)
        with self._lists:
            earlier = self._uploads.pop(checkpoint, None)
            self._uploads = {k: u for k, u in self._uploads.items() if not u.is_over}
            self._uploads[checkpoint] = upload
        if earlier is not None:
            earlier.abort()
        return upload

    def find(self, checkpoint: str) -> Upload | None:
        """The latest attempt of this process, or None."""
        with self._lists:
            return self._uploads.get(checkpoint)

    def seal(self) -> None:
        """Seal what this process wrote: durable at home when this returns."""
        with self._lists:
            uploads = list(self._uploads.items())
        for checkpoint, upload in uploads:
            if upload.seal():
                self.heard_of(((checkpoint, upload.attempt),))

    def heard_of(self, reported: Iterable[tuple[str, str]]) -> None:
        """Note attempts `(checkpoint, attempt)` sealed by processes that reported to this one."""
        with self._lists:
            for attempt in reported:
                self._reported[attempt] = None
            while len(self._reported) > REPORTED_KEPT:
                del self._reported[next(iter(self._reported))]

    def reported(self) -> tuple[tuple[str, str], ...]:
        """All that this process sealed, or heard of."""
        with self._lists:
            return tuple(self._reported)

    def take(self, checkpoint: str) -> list[str]:
        """The attempts at `checkpoint` that reported; forgets them."""
        with self._lists:
            found = [known for known in self._reported if known[0] == checkpoint]
            for known in found:
                del self._reported[known]
        return [attempt for _, attempt in found]
