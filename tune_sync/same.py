"""Whether two paths are one directory: through links, bind mounts, or two mounts of one export."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def is_same_directory(one: Path, other: Path) -> bool:
    """Whether what is written to `other` appears in `one`. Writes a mark there for a moment."""
    if is_same_inode(one, other):
        return True
    if not (one.is_dir() and other.is_dir()):
        return False
    mark = other / f".tune_sync-{uuid.uuid4().hex}"  # two mounts of one export differ in st_dev
    try:
        mark.touch()
        return (one / mark.name).exists()
    except OSError:
        return False
    finally:
        mark.unlink(missing_ok=True)


def is_same_inode(one: Path, other: Path) -> bool:
    """Whether both are there, and one directory or file of this machine."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def is_below(inner: Path, outer: Path) -> bool:
    """Whether a path, which need not be there, is inside of a directory."""
    return any(is_same_inode(above, outer) for above in Path(os.path.realpath(inner)).parents)
