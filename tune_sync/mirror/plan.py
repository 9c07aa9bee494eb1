"""What of an experiment has to be sent to its mirror, and what deleted there. Pure.

A *cut* is what goes together: the state as it was at one moment, and before it all checkpoints
that were published then, as it names no others. They are held at home until they are sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MirrorCut:
    """What one round has to do. Keys of checkpoints.

    Attributes:
        send: Before the state of the cut.
        delete: After it.
    """

    send: tuple[str, ...]
    delete: tuple[str, ...]


class MirrorPlan:
    """Decides; whoever has it calls from one thread at a time.

    Args:
        published: What is published at home.
        touched: What may be at the mirror, wholly or in part.
        whole: What is wholly there.

    Attributes:
        touched: See above.
        whole: See above.
    """

    def __init__(
        self, published: Iterable[str], touched: Iterable[str] = (), whole: Iterable[str] = ()
    ) -> None:
        self._published = set(published)
        self.whole = set(whole)
        self.touched = {*touched, *self.whole}
        self._held: set[str] = set()
        self._holds_all = False

    def recorded(self, checkpoint: str) -> None:
        """It is published at home."""
        self._published.add(checkpoint)

    def may_retire(self, checkpoint: str) -> bool:
        """Whether it may be deleted at home now."""
        return not self._holds_all and checkpoint not in self._held

    def retired(self, checkpoint: str) -> None:
        """It is deleted at home, or about to be."""
        self._published.discard(checkpoint)

    def unsent(self) -> tuple[str, ...]:
        """What is published at home and not wholly at the mirror."""
        return tuple(sorted(self._published - self.whole))

    def hold(self) -> None:
        """Nothing is deleted at home until `cut`: the state is looked at in between."""
        self._holds_all = True

    def cut(self) -> MirrorCut:
        """What goes with the state that was looked at since `hold`."""
        self._holds_all = False
        send = self.unsent()
        self._held = set(send)
        return MirrorCut(send, tuple(sorted(self.touched - self._published)))

    def begun(self, checkpoints: Iterable[str]) -> None:
        """Parts of these may be at the mirror from now on."""
        self.touched.update(checkpoints)

    def copied(self, checkpoint: str) -> None:
        """Its bytes are at the mirror: home need not hold it any longer."""
        self._held.discard(checkpoint)

    def sent(self, checkpoints: Iterable[str]) -> None:
        """They are wholly at the mirror, with their manifests."""
        self.whole.update(checkpoints)

    def deleted(self, checkpoint: str) -> None:
        """It is gone from the mirror."""
        self.touched.discard(checkpoint)
        self.whole.discard(checkpoint)

    def release(self) -> None:
        """The round is over: nothing is held."""
        self._holds_all = False
        self._held.clear()
