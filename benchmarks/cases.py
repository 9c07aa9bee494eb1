"""What is sent: how many files of which size. Imports nothing, so that any Ray can use it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
LARGE_BYTES = 100 * MIB


@dataclass(frozen=True)
class Case:
    """One kind of checkpoint.

    Attributes:
        name: Its directory's name.
        title: As the table shows it.
        file_count: How many files.
        file_bytes: Size of each.
    """

    name: str
    title: str
    file_count: int
    file_bytes: int

    @property
    def total_bytes(self) -> int:
        """All files together."""
        return self.file_count * self.file_bytes


CASES = {
    case.name: case
    for case in (
        Case("large", "1 GiB, one file", 1, 1 << 30),
        Case("many", "2,000 files of 64 KiB", 2000, 64 << 10),
        Case("small", "10 MB, one file", 1, 10_000_000),
        Case("huge", "2 GiB, one file", 1, 2 << 30),
        Case("medium", "100 MB, one file", 1, 100_000_000),
        Case("tiny", "1 MB, one file", 1, 1_000_000),
    )
}


def make_files(parent: Path, case: Case) -> Path:
    """Write the files of a case, of random bytes, below `parent`; returns their directory."""
    directory = parent / case.name
    directory.mkdir(parents=True)
    for number in range(case.file_count):
        with (directory / f"{case.name}-{number:05d}.bin").open("wb") as file:
            for start in range(0, case.file_bytes, 16 * MIB):
                file.write(os.urandom(min(16 * MIB, case.file_bytes - start)))
    return directory


def copy_of(source: Path, target: Path) -> None:
    """Copy the files of a case into a directory that is there."""
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)


def free_large_files(directory: Path) -> int:
    """Make room: delete the large files of a directory. Returns the size of all that was there.

    Small ones stay until the end: for minutes ext4 passes over every inode that was deleted
    when it looks for a free one, and the next to create files would pay for that.
    """
    total_bytes = 0
    for path in directory.rglob("*"):
        size_bytes = path.stat().st_size if path.is_file() else 0
        total_bytes += size_bytes
        if size_bytes >= LARGE_BYTES:
            path.unlink()
    return total_bytes
