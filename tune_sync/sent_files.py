"""Files outside of checkpoints: which versions this process has stored, and which it could not."""

from __future__ import annotations

import logging

from tune_sync import layout
from tune_sync.behind import Behind
from tune_sync.errors import LeaseLostError
from tune_sync.held_file import HeldFile
from tune_sync.home import digest_of
from tune_sync.layout import Kind
from tune_sync.run import Run
from tune_sync.streams import FileStream

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


# Ray's experiment state, the files that name checkpoints, begins with this.
STATE_NAME = "experiment_state"


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

    def learn(self, run: Run) -> None:
        """Look at the state that earlier runs left: Ray copies it again, and it is no news."""
        for entry in run.home.list("", False):
            if entry.key.startswith(STATE_NAME):
                self._digests[entry.key] = _digest_at(run, entry.key) or ""

    def hold(self, file: HeldFile, key: str, kind: Kind, run: Run, behind: Behind) -> None:
        """Have a complete file of the driver written later; skips one that is on its way or there.

        Does not wait, and makes no request.
        """
        names, is_state = key.startswith(STATE_NAME), kind is Kind.STATE
        if self._digests.get(key) == file.digest:
            return
        self._digests[key] = file.digest

        def write() -> None:
            try:
                file.send(run.home, key, is_state)
            except Exception as error:
                self.unstored[key] = error
                raise
            self.unstored.pop(key, None)

        behind.offer(key, write, is_state=is_state, names=names)

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
