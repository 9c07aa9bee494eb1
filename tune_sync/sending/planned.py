"""A backlog in which the driver says what travels when, and how much at a time. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tune_sync.layout import by_age
from tune_sync.sending.backlog import Accepted, Backlog
from tune_sync.sending.gate import Gate
from tune_sync.sending.orders import News, Orders


class PlannedBacklog(Backlog):
    """See `Backlog`. Nodes send only what they are told to: `plan`, then `orders`.

    Args:
        gate: How many transfers there are at a time.
    """

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate
        self._put_off: dict[str, None] = {}

    def plan(self, now_s: float) -> None:
        """See `Backlog.plan`."""
        for checkpoint in self._gate.inside():
            if not self._parts(checkpoint):
                self._gate.leave(checkpoint)
        self._put_off = {c: None for c in self._put_off if c in self._accepted}
        strays_count = self._strays_count() if self._gate.is_limited else 0
        for checkpoint in self._candidates(now_s):
            parts = self._parts(checkpoint)
            if parts and self._gate.enter(checkpoint, parts, strays_count):
                self._put_off.pop(checkpoint, None)
                self._entered(checkpoint)

    def orders(self, node: str) -> Orders:
        """See `Backlog.orders`."""
        rank = {checkpoint: n for n, checkpoint in enumerate(self._first())}
        inside = sorted(self._gate.inside(), key=lambda c: rank.get(c, len(rank)))
        return replace(super().orders(node), wanted=self._at(node, inside), held_back=())

    def hear(self, node: str, news: News) -> str:
        """See `Backlog.hear`. A node that cannot send now makes way for others."""
        complaint = super().hear(node, news)
        if news.error and self._gate.is_limited:
            for checkpoint in self._gate.inside():
                here = [a for a, at in self._parts(checkpoint).items() if at == node]
                if here and not set(here) & set(news.sending):
                    self._gate.leave(checkpoint)
                    self._put_off[checkpoint] = None
        return complaint

    # Inside

    def _first(self) -> list[str]:
        """What someone waits for."""
        return list(dict.fromkeys((*self._hurried, *sorted(self.cut.pinned(), key=by_age))))

    def _candidates(self, now_s: float) -> Iterable[str]:
        """What may travel now, in order."""
        held_back = self.cut.held_back()
        rest = [c for c in self._accepted if c not in self._put_off and c not in held_back]
        return dict.fromkeys((*self._first(), *rest, *self._put_off))

    def _entered(self, checkpoint: str) -> None:
        """It travels from here on."""

    def _parts(self, checkpoint: str) -> dict[str, str]:
        """Its attempts that are to be sent, and their nodes."""
        found = self._accepted.get(checkpoint)
        return _unsent(found) if found is not None else {}

    def _strays_count(self) -> int:
        """What nodes still send although they should not."""
        inside = {a for c in self._gate.inside() for a in self._parts(c)}
        return sum(len(set(news.sending) - inside) for news in self._news.values())


def _unsent(accepted: Accepted) -> dict[str, str]:
    return {a: at for a, at in accepted.staged.items() if a not in accepted.stored}
