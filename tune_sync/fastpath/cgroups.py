"""What the groups around this process have left of their memory: a container, or a batch job.

Shared memory counts for them. Who passes their limit is killed, however much the machine has.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Files that were read stay in memory while there is room, and count; they make way by themselves.
_CACHE = ("inactive_file", "active_file")
# Of the first version: no limit is a number as large as this, or larger.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class _Names:
    """Of the files of a group: its limit, what is used of it, and before the names in its text."""

    limit: str
    used: str
    prefix: str


_FIRST = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_SECOND = _Names("memory.max", "memory.current", "")


def left_bytes(process: Path = Path("/proc/self")) -> int:
    """What is left where least is; -1 if there is no limit, or none can be read.

    Args:
        process: What the kernel tells of this process.
    """
    found = (_left_in(group, names) for group, names in _groups(process))
    return min((left for left in found if left >= 0), default=-1)


@functools.cache  # each file of a checkpoint asks, and there may be many mounts
def _groups(process: Path) -> tuple[tuple[Path, _Names], ...]:
    try:
        mounts = (process / "mountinfo").read_text().splitlines()
        own = (process / "cgroup").read_text().splitlines()
        hierarchies = list(_hierarchies(mounts, own))
    except (OSError, ValueError):  # or they are told in a way that is not known
        return ()
    return tuple((group, names) for top, names, path in hierarchies for group in _from(top, path))


def _hierarchies(mounts: list[str], groups: list[str]) -> Iterator[tuple[Path, _Names, str]]:
    """Where groups are mounted that count memory, and the path of ours below that."""
    own = {kinds: path for _, kinds, path in (line.split(":", 2) for line in groups)}
    for line in mounts:
        place, _, told = line.partition(" - ")
        kind, _, options = told.split(" ", 2)
        is_first = kind == "cgroup" and "memory" in options.split(",")
        if not is_first and kind != "cgroup2":
            continue
        root, top = map(_plain, place.split(" ")[3:5])
        wanted = (path for kinds, path in own.items() if "memory" in kinds.split(","))
        path = next(wanted, "/") if is_first else own.get("", "/")
        yield Path(top), _FIRST if is_first else _SECOND, _below(root, path)


def _plain(text: str) -> str:
    """As the kernel writes blanks in paths."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _below(root: str, path: str) -> str:
    """The part of a group's path that is below what is mounted; "" if that is another one."""
    inside = path.removeprefix(root.rstrip("/")) if path.startswith(root) else ""
    return "" if ".." in inside.split("/") else inside.strip("/")


def _from(top: Path, path: str) -> Iterator[Path]:
    """A group, and all that it is in."""
    group = top / path
    yield group
    while group != top:
        group = group.parent
        yield group


def _left_in(group: Path, names: _Names) -> int:
    try:
        limit = (group / names.limit).read_text().strip()
        if not limit.isdigit() or int(limit) >= _NO_LIMIT_BYTES:
            return -1
        used_bytes = int((group / names.used).read_text())
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        wanted = {names.prefix + name for name in _CACHE}
        cache_bytes = sum(int(value) for name, value in lines if name in wanted)
    except (OSError, ValueError):
        return -1
    return max(0, int(limit) - used_bytes + cache_bytes)
