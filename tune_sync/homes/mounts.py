"""Which file system a directory is on, and whether one is not mounted that should be.

Where a mount was forgotten, its directory can be made all the same: on the disk below. Nobody sees
that until another node looks, or the mount is there again and hides what was written meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from tune_sync.homes.disk import refresh

# What is mounted now, as this process sees it, and what the administrator wants to be.
TABLE = Path("/proc/self/mountinfo")
FSTAB = Path("/etc/fstab")
# Where disks and servers are mounted by custom, each in a directory of its own.
PLACES = ("/mnt", "/media", "/run/media", "/net")
# An automount that nobody has used yet.
_AUTOFS = "autofs"

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system in its place.

    Attributes:
        point: The directory.
        kind: Of the file system, such as "nfs4".
        source: Its device or server, as the kernel names it.
    """

    point: str
    kind: str
    source: str

    def is_below(self, directory: str) -> bool:
        """Whether it is mounted there, or below; not if it only would be, by its first use."""
        return PurePath(self.point).is_relative_to(directory) and self.kind != _AUTOFS

    def __str__(self) -> str:
        named = f" {self.source}" if self.source not in ("none", self.kind) else ""
        return f"{self.kind}{named}, mounted at {self.point}"


def mount_of(path: Path) -> Mount | None:
    """What a path is on, or would be made on; None where the system does not tell."""
    found, real = None, PurePath(os.path.realpath(path))
    for mount in _mounts():  # of several at one place, the last one hides the others
        inside = real.is_relative_to(mount.point)
        if inside and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def missing_mount(path: Path) -> str:
    """The mount point that `FSTAB` has at `path` or above it, and where nothing is mounted.

    "" if there is none, or the system does not tell. What is mounted by its first use is used.
    """
    spelled, real = PurePath(os.path.abspath(path)), PurePath(os.path.realpath(path))
    on_the_way = {str(above) for end in (spelled, real) for above in (end, *end.parents)}
    for point in _wanted():  # no other one is touched: its server may be away, and let us wait
        if point in on_the_way:
            refresh(Path(point, "x"))
            mount = mount_of(path)
            if mount is not None and not mount.is_below(os.path.realpath(point)):
                return point
    return ""


def unmounted_place(path: Path) -> str:
    """The directory in one of `PLACES` that `path` is in, if nothing is mounted on the way there.

    "" if something is, or if it is elsewhere.
    """
    real, mount = PurePath(os.path.realpath(path)), mount_of(path)
    if mount is None:
        return ""
    for place in map(PurePath, PLACES):
        inside = real.parts[len(place.parts) :]
        if inside and real.is_relative_to(place):
            is_mounted = PurePath(mount.point).is_relative_to(place)
            return "" if is_mounted else str(place / inside[0])
    return ""


def _mounts() -> Iterator[Mount]:
    for line in _lines(TABLE):
        where, _, what = line.partition(" - ")
        parts, (kind, source, *_rest) = where.split(), [*what.split(), "", ""]
        if len(parts) > 4:
            yield Mount(_plain(parts[4]), kind, _plain(source))


def _wanted() -> Iterator[str]:
    for line in _lines(FSTAB):
        parts = line.split()
        if len(parts) < 3 or parts[0].startswith("#") or not parts[1].startswith("/"):
            continue  # "none", "swap"
        if (point := os.path.normpath(_plain(parts[1]))) != "/":
            yield point


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _plain(text: str) -> str:
    """What a field of these tables stands for: blanks in it are escaped."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)
