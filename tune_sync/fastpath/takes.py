"""What each attempt takes of shared memory: the length of an empty file beside its bytes.

So what is removed no longer counts, whoever removed it, and nothing has to be put right after a
crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

TAKES = "takes"


def taken_bytes(folder: Path) -> int:
    """By all attempts below a directory, and by each file there that is of none."""
    return sum(_sizes(folder))


def grow(attempt: Path, more_bytes: int) -> None:
    """Let an attempt take so much more, or less."""
    descriptor = os.open(attempt / TAKES, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size + more_bytes))
    finally:
        os.close(descriptor)


def _sizes(folder: Path) -> Iterator[int]:
    """What each attempt takes, and each file that is of none."""
    entries = entries_of(folder)
    takes = [entry for entry in entries if entry.name == TAKES]
    for entry in takes or entries:  # what is beside it is what it counts
        if entry.is_dir(follow_symlinks=False):
            yield from _sizes(Path(entry))
        elif found := stat_of(entry):
            yield found.st_size


def entries_of(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a directory that others may be removing."""
    try:
        return list(os.scandir(folder))
    except FileNotFoundError:  # it is being removed
        return []


def stat_of(entry: os.DirEntry[str]) -> os.stat_result | None:
    """What an entry is; None if it has just gone."""
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
