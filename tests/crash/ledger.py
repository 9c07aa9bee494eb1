"""What a scenario asked for and what it was promised, so that it can be checked after a crash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Contents = dict[str, bytes | None]  # path inside the checkpoint -> bytes, or None for a directory


@dataclass
class Ledger:
    """Promises of one run.

    Attributes:
        wholes: Contents that were handed over to be placed; a visible checkpoint is one of them.
        placed: What `place` returned for last.
        recorded: What `record` returned for last.
        replacing: Checkpoints for which a later `place` has begun since `recorded`.
        retiring: Checkpoints for which `retire` has begun.
        retired: Checkpoints for which `retire` has returned.
        acknowledged: Checkpoints that a trial was told of as taken.
        states: State contents by number, in the order in which they were begun.
        states_done: How many of them were reported as written.
    """

    wholes: dict[str, list[Contents]] = field(default_factory=dict)
    placed: dict[str, Contents] = field(default_factory=dict)
    recorded: dict[str, Contents] = field(default_factory=dict)
    replacing: set[str] = field(default_factory=set)
    retiring: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    states: list[tuple[str, ...]] = field(default_factory=list)
    states_done: int = 0

    def place_begins(self, checkpoint: str, whole: Contents) -> None:
        self.wholes.setdefault(checkpoint, []).append(whole)
        self.retired.discard(checkpoint)
        self.retiring.discard(checkpoint)
        if checkpoint in self.recorded:
            self.replacing.add(checkpoint)

    def place_returned(self, checkpoint: str, whole: Contents) -> None:
        self.placed[checkpoint] = whole

    def record_returned(self, checkpoint: str, whole: Contents) -> None:
        self.recorded[checkpoint] = whole
        self.replacing.discard(checkpoint)

    def retire_begins(self, checkpoint: str) -> None:
        self.retiring.add(checkpoint)
        self.acknowledged.discard(checkpoint)

    def retire_returned(self, checkpoint: str) -> None:
        self.retired.add(checkpoint)
        self.placed.pop(checkpoint, None)
        self.recorded.pop(checkpoint, None)

    def state_begins(self, names: Iterable[str]) -> int:
        """Note a state that is going to be written; returns its number."""
        self.states.append(tuple(names))
        return len(self.states) - 1

    def state_returned(self, number: int) -> None:
        self.states_done = number + 1


def with_directories(contents: Contents) -> Contents:
    """Contents with the directories that their files are in."""
    whole = dict(contents)
    for path in contents:
        parts = path.split("/")[:-1]
        for end in range(1, len(parts) + 1):
            whole["/".join(parts[:end])] = None
    return whole
