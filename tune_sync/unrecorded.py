"""What was placed and could not be recorded, and which of it is given up. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tune_sync.errors import NOT_PUBLISHABLE, NotStoredError
from tune_sync.manifest import Manifest

# One that failed so often, while others were recorded, is given up whatever its error says.
LASTING_TRIES_COUNT = 3
# How often what was left out is tried again.
AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Of one checkpoint.

    Attributes:
        manifest: Its own.
        error: Of the last try.
        tries_count: Those that failed.
        others_count: How many others were recorded before the first of them.
        tried_s: When the last one was, by a monotonic clock.
    """

    manifest: Manifest
    error: Exception
    tries_count: int
    others_count: int
    tried_s: float


class Unrecorded(dict[str, Failure]):
    """By checkpoint, in the order in which they are tried again. For one thread at a time.

    Attributes:
        left_out: Those of them that no state names which is put from now on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_out: frozenset[str] = frozenset()
        self._recorded_count = 0

    def failed(self, manifest: Manifest, error: Exception, now_s: float) -> bool:
        """One could not be recorded. Returns whether that is news."""
        # As the last, so that the others are tried before it.
        before = self.pop(manifest.checkpoint, None)
        tries_count, others_count = 0, self._recorded_count
        if before is not None and before.manifest == manifest:
            tries_count, others_count = before.tries_count, before.others_count
        now = Failure(manifest, error, tries_count + 1, others_count, now_s)
        self[manifest.checkpoint] = now
        return before is None or str(before.error) != str(error)

    def recorded(self, checkpoint: str) -> None:
        """One is recorded."""
        self._recorded_count += 1
        self.forget(checkpoint)

    def forget(self, checkpoint: str) -> None:
        """It is recorded, or nobody wants it any more."""
        self.pop(checkpoint, None)
        self.left_out -= {checkpoint}

    def leave_out(self, checkpoints: Collection[str]) -> None:
        """State does not name these any more. What was recorded meanwhile is none of them."""
        self.left_out = frozenset(checkpoints) & self.keys()

    def given_up(self) -> frozenset[str]:
        """What can never be recorded, or could not several times, while others could."""
        return frozenset(c for c, found in self.items() if self._is_given_up(found))

    def due(self, now_s: float) -> list[Failure]:
        """What is to be tried again at a moment."""
        return [
            found for checkpoint, found in self.items()
            if checkpoint not in self.left_out or now_s - found.tried_s > AGAIN_S
        ]  # fmt: skip

    def check(self, checkpoints: Collection[str]) -> None:
        """Raise NotStoredError, which names these and why, if there are any."""
        found = [f"{c}: {failure.error}" for c, failure in self.items() if c in checkpoints]
        if found:
            raise NotStoredError("; ".join(found))

    def _is_given_up(self, found: Failure) -> bool:
        lasts = found.tries_count >= LASTING_TRIES_COUNT
        others_could = self._recorded_count > found.others_count
        return isinstance(found.error, NOT_PUBLISHABLE) or (lasts and others_could)
