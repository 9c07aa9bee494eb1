"""A destination some of whose answers are lost: what was asked is done, or is not."""

from __future__ import annotations

from typing import Any

from tune_sync.errors import StoreUnreachableError


class NoAnswerError(StoreUnreachableError):
    """Whoever asked cannot know whether it was done."""


class Unanswered:
    """See `of`.

    Args:
        of: A home, or its committer.
        lost: Which calls get no answer the next time -> whether what they ask for is done.
    """

    def __init__(self, of: Any, lost: dict[str, bool]) -> None:
        self._of = of
        self._lost = lost

    @property
    def committer(self) -> Any:
        """The driver's way to it."""
        return Unanswered(self._of.committer, self._lost)

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._of, name)
        if name not in self._lost:
            return act

        def ask(*args: Any, **more: Any) -> None:
            if self._lost.pop(name):
                act(*args, **more)
            raise NoAnswerError(f"no answer to {name}")

        return ask
