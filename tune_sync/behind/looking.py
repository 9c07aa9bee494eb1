"""What is sealed on a node, and what of it cannot be looked at just now."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.node_disk import NodeDisk
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.telling import Once
from tune_sync.errors import DamagedError
from tune_sync.manifest import Seal
from tune_sync.sending.queue import Item

Take = Callable[[StagedCopies, Seal, Item], None]
# As `sync_timeout`: what cannot be looked at for so long counts as gone.
PATIENCE_S = 1800.0


class Looking:
    """Methods may be called from any thread.

    Args:
        copies: What the node has.
        memory: Which of it is in shared memory.
        patience_s: See `PATIENCE_S`. A disk that does not answer for a moment has lost nothing.
        clock: Monotonic seconds.
    """

    def __init__(
        self, copies: NodeCopies, memory: Path | None, patience_s: float = PATIENCE_S, *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._copies, self._memory = copies, memory
        self._patience_s, self._clock, self._warn = patience_s, clock, Once()
        self._disks = [NodeDisk(one.root) for one in copies.roots]
        self._unread_s: dict[str, float] = {}  # since when
        self._unlisted_s: float | None = None

    def look(self, known: Collection[str], expected: Collection[str], take: Take) -> None:
        """Give `take` what is sealed, and remove what nobody will ever seal.

        Args:
            known: Attempts that are not looked at.
            expected: See `NodeSender.scan`.
            take: May raise OSError.
        """
        for disk in self._disks:
            with suppress(OSError):  # it is swept again
                disk.sweep_making()
        unread, unlisted = list[str](), list[OSError]()

        def cannot_list(error: OSError) -> None:
            self._warn(error)
            unlisted.append(error)

        for copies, checkpoint, attempt in self._copies.attempts(cannot_list):
            if attempt not in known:
                try:
                    found = self._sealed(copies, checkpoint, attempt, attempt in expected)
                    if found is not None:
                        take(copies, *found)
                except (DamagedError, OSError) as error:  # the others are taken in all the same
                    self._warn(error)
                    unread.append(attempt)
        now_s = self._clock()
        self._unread_s = {attempt: self._unread_s.get(attempt, now_s) for attempt in unread}
        before_s = now_s if self._unlisted_s is None else self._unlisted_s
        self._unlisted_s = before_s if unlisted else None

    def may_have(self, attempt: str) -> bool:
        """Whether an attempt that was not found may be here all the same."""
        unread_s, unlisted_s = self._unread_s.get(attempt), self._unlisted_s
        since_s = [since_s for since_s in (unread_s, unlisted_s) if since_s is not None]
        return bool(since_s) and self._clock() - min(since_s) < self._patience_s

    def _sealed(
        self, copies: StagedCopies, checkpoint: str, attempt: str, is_expected: bool
    ) -> tuple[Seal, Item] | None:
        seal = copies.seal(checkpoint, attempt)
        if seal is None and copies.is_abandoned(checkpoint, attempt):
            with suppress(OSError):  # it is tried again
                copies.remove(checkpoint, attempt)
        if seal is None or (seal.ranks_count is None and not is_expected):
            return None
        size_bytes = sum(file.size_bytes for file in seal.files)
        stored_as = copies.stored_as(checkpoint, attempt)
        in_memory, known = copies.root == self._memory, seal.is_confirmed or bool(stored_as)
        return seal, Item(
            checkpoint, attempt, seal.sealed_s, size_bytes, stored_as, in_memory, known
        )
