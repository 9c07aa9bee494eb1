"""Steps of scenarios that are the same on a disk and in a bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.ledger import Contents, Ledger, with_directories
from tune_sync.manifest import Manifest

Action = Callable[[], object]


class Steps:
    """Of a run that has a committer, and keeps the ledger of its promises."""

    committer: Any
    ledger: Ledger
    placed: dict[str, Manifest]
    stage: Callable[..., object]

    def do(self, action: Action) -> None:
        """Do one step; a subclass may try it again."""
        action()

    def sent_behind(self, checkpoint: str, *ranks: Contents) -> None:
        """Agents send parts of a checkpoint whose driver, now dead, had told the last all of them.

        From here it must not be lost.
        """
        whole: Contents = {}
        for contents in reversed(ranks):
            whole |= contents
        self.ledger.place_begins(checkpoint, with_directories(whole))
        names = tuple(f"rank{rank}" for rank in range(len(ranks)))
        for rank, contents in enumerate(ranks):
            parts = names if rank == len(ranks) - 1 else None
            known = {"ranks_count": len(ranks), "staged_as": names[rank], "parts": parts}
            self.stage(checkpoint, contents, rank=rank, **known)
        self.ledger.acknowledged.add(checkpoint)

    def record(self, checkpoint: str) -> None:
        """Publish what was placed."""
        self.do(lambda: self.committer.record(self.placed[checkpoint]))
        self.ledger.record_returned(checkpoint, self.ledger.placed[checkpoint])

    def retire(self, checkpoint: str) -> None:
        """Delete a checkpoint."""
        self.ledger.retire_begins(checkpoint)
        self.do(lambda: self.committer.retire(checkpoint))
        self.ledger.retire_returned(checkpoint)

    def end(self) -> None:
        """The run ends: what was placed is published by then."""
        self.do(self.committer.sweep)
        for checkpoint, whole in self.ledger.placed.items():
            self.ledger.record_returned(checkpoint, whole)

    def recover(self) -> None:
        """Start again, as the next driver does."""
        self.do(self.committer.recover)
