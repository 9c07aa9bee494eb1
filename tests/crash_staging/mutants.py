"""Wrong orders on a node, kept to show that the crash loop sees them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, cast

from tests.crash_staging.intake import ByIntake
from tests.crash_staging.run import Agent
from tune_sync import layout
from tune_sync.behind.arrivals import Arrivals
from tune_sync.behind.replicas import Replicas, Room
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staging_home import StagingHome
from tune_sync.homes.home import Home, Piece
from tune_sync.manifest import Manifest, Seal, to_json
from tune_sync.process import boot
from tune_sync.sending.backlog import Accepted
from tune_sync.sending.cut import Cut
from tune_sync.sending.queue import Item


class SealsFirst(StagingHome):
    """A trial notes what an attempt holds, and then writes it."""

    _late: list[tuple[Sequence[Piece], bytes]]

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        self._late = [(pieces, bytes(data))]

    def seal(self, checkpoint: str, seal: Seal) -> None:
        body = replace(seal, boot=boot())
        copies = StagedCopies(self._disk.root)
        copies._mark(checkpoint, seal.attempt, "seal.json", to_json(body).decode())
        for pieces, data in self._late:
            super().write_batch(pieces, data)
        super().seal(checkpoint, seal)


class SealsLater(StagingHome):
    """A report returns, and the seal is for later, which may not come."""

    def seal(self, checkpoint: str, seal: Seal) -> None:
        pass


class NotesFirst(Agent):
    """Notes that an attempt is stored, and then sends it."""

    def _send(self, item: Item) -> bool:
        self._places[item.attempt].stored(item.checkpoint, item.attempt, item.attempt)
        return super()._send(item)


class RemovesFirst(Agent):
    """Removes what has been sent before the destination has confirmed it."""

    def _send(self, item: Item) -> bool:
        open_home, copies = self._open_home, self._places[item.attempt]

        class Removing:
            def __init__(self) -> None:
                self._home = open_home()

            def seal(self, checkpoint: str, seal: Seal) -> None:
                copies.remove(item.checkpoint, item.attempt)
                self._home.seal(checkpoint, seal)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._home, name)

        self._open_home = lambda: cast(Home, Removing())
        try:
            return super()._send(item)
        finally:
            self._open_home = open_home


class ForgetsWhatIsPutBack(Agent):
    """What could not be sent at once is not tried again."""

    def _put_back(self, item: Item, error: str) -> None:
        self._error = error


class TakesSilenceForYes(Agent):
    """Counts as stored what was to be sealed, and was dropped as no answer came."""

    def _send(self, item: Item) -> bool:
        open_home, sealed = self._open_home, list[str]()

        class Noting:
            def __init__(self) -> None:
                self._home = open_home()

            def seal(self, checkpoint: str, seal: Seal) -> None:
                sealed.append(seal.attempt)
                self._home.seal(checkpoint, seal)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._home, name)

        self._open_home = lambda: cast(Home, Noting())
        try:
            is_sent = super()._send(item)
        finally:
            self._open_home = open_home
        if not is_sent and sealed:
            self._queue.sent(item.attempt, sealed[-1])
        return is_sent or bool(sealed)


class ForgetsWhatItPlaced(Arrivals):
    """If no answer comes to what is recorded, it is placed once more."""

    def _place(self, accepted: Accepted) -> Manifest:
        placed = super()._place(accepted)
        accepted.manifest = None
        return placed


class NeedsNothing(Cut):
    """State is written before what it names is recorded."""

    def _needs_now(self) -> frozenset[str]:
        return frozenset()


class DeletesAtOnce(Cut):
    """What Ray deletes goes before a state is written that does not name it."""

    def deletable(self) -> list[str]:
        return [c for c in self._doomed if c not in self._unstored]


class LooksWhenTold(Agent):
    """A new agent waits until somebody seals something."""

    def scan(self, expected: Collection[str] = ()) -> None:
        if hasattr(self, "_threads"):
            super().scan(expected)


class CountsAtOnce(ByIntake):
    """The seal of a replica is there before its bytes are."""

    def __init__(self, replicas: Replicas, seal: Seal, room: Room) -> None:
        super().__init__(replicas, seal, room)
        self._whole = seal

    def begin(self, checkpoint: str) -> str:
        attempt = super().begin(checkpoint)
        body = replace(self._whole, boot=boot())
        (copies,) = [c for c in self._replicas.copies.roots if c.store.info(layout.STAGING_DIR)]
        copies._mark(checkpoint, attempt, "seal.json", to_json(body).decode())
        return attempt


class RepliesFirst(ByIntake):
    """The other node says that it has all, and seals it later, if it is there then."""

    def __init__(self, replicas: Replicas, seal: Seal, room: Room) -> None:
        super().__init__(replicas, seal, room)
        self.seal = lambda checkpoint, seal: None
