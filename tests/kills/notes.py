"""What trials write down outside of the bucket, and what has to hold because of it.

A file a trial, a line a note, in the order in which things happened:

- ``start``: a process of the trial goes on at step ``first``; ``life`` counts the drivers.
- ``broken``: it has failed too often in this ``life``, and Ray has given it up.
- ``saving``: it is about to report ``step``, whose checkpoint has this ``digest``.
- ``acked``: that report has returned.
- ``lost``: written by whoever kills: what only the killed had is gone; of what was acknowledged,
  ``stored`` is the newest step that was in the bucket by then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Note = dict[str, Any]
Named = list[dict[str, Any]]  # see `Arena.named`


@dataclass(frozen=True, slots=True)
class Setback:
    """A trial that did again what was durable.

    Attributes:
        durable: The newest step that it should have gone on from.
        first: The step that it went on at.
    """

    durable: int
    first: int

    @property
    def steps_count(self) -> int:
        """Steps that are done twice."""
        return self.durable + 1 - self.first

    def __str__(self) -> str:
        return f"goes on at step {self.first}, and step {self.durable} was durable"


def add(file: Path, **note: Any) -> None:
    """Write a note down. It survives whoever writes it."""
    with open(file, "a") as out:
        out.write(json.dumps(note) + "\n")


def read(file: Path) -> list[Note]:
    """All notes of a trial; the last one may be half written, and does not count then."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def setbacks(notes: Iterable[Note], life: int) -> list[Setback]:
    """Starts in one driver's life that go back behind what was durable by then."""
    return [
        Setback(durable, note["first"])
        for note, durable in _with_durable(notes)
        if note["event"] == "start" and note["life"] == life and note["first"] <= durable
    ]


def newest_durable(notes: Iterable[Note]) -> int:
    """The newest step that was acknowledged and is not lost, or -1."""
    return [-1, *(durable for _, durable in _with_durable(notes))][-1]


def _with_durable(notes: Iterable[Note]) -> Iterator[tuple[Note, int]]:
    """Each note, and the newest step that is durable after it."""
    durable = -1
    for note in notes:
        if note["event"] == "acked":
            durable = max(durable, note["step"])
        elif note["event"] == "lost":
            durable = note["stored"]
        yield note, durable


def begun_elsewhere(named: Named, firsts: Mapping[int, int]) -> list[str]:
    """Trials that do not go on after the newest of theirs that the state names, in words.

    Args:
        named: What the state names.
        firsts: Index of each trial -> the step that it begins at.
    """
    newest = dict.fromkeys(firsts, -1)
    for found in named:
        if not found["error"]:
            newest[found["index"]] = max(newest[found["index"]], found["step"])
    return [
        f"trial {index} begins at step {firsts[index]}, and the state names step {step}"
        for index, step in newest.items()
        if firsts[index] != step + 1
    ]


def starts(notes: Iterable[Note], life: int) -> list[Note]:
    """Its starts in one driver's life."""
    return [note for note in notes if note["event"] == "start" and note["life"] == life]


def is_broken(notes: Iterable[Note], life: int) -> bool:
    """Whether it was given up in one driver's life."""
    return any(note["event"] == "broken" and note["life"] == life for note in notes)


def digests(notes: Iterable[Note]) -> set[tuple[int, str]]:
    """All `(step, digest)` that were ever reported."""
    return {(note["step"], note["digest"]) for note in notes if note["event"] == "saving"}
