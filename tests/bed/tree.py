"""What lies under a directory: names, kinds, sizes, digests. Compares trees across hosts.

Uses the standard library only, so that any interpreter on any host can run it:
``python -m tests.bed.tree PATH`` prints the tree as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

READ_BYTES = 1 << 20

# (kind, size in bytes, digest): kind is "file", "dir", "link" or "other"; the digest of a
# link is that of its target's name.
Entry = tuple[str, int, str]


def tree_digest(path: str | Path) -> dict[str, Entry]:
    """Read a directory tree, links not followed, empty directories included.

    Args:
        path: The directory. It must exist.

    Returns:
        POSIX path relative to ``path`` -> (kind, size in bytes, SHA-256 in hex). Directories
        have size 0 and an empty digest.

    Raises:
        NotADirectoryError: ``path`` is no directory.
    """
    root = Path(path)
    if not root.is_dir():
        raise NotADirectoryError(str(root))
    return {
        child.relative_to(root).as_posix(): _entry(child)
        for folder, dirs, files in os.walk(root)
        for child in (Path(folder, name) for name in sorted(dirs + files))
    }


def _entry(path: Path) -> Entry:
    if path.is_symlink():
        target = os.readlink(path).encode()
        return ("link", len(target), hashlib.sha256(target).hexdigest())
    if path.is_dir():
        return ("dir", 0, "")
    if not path.is_file():
        return ("other", 0, "")
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("rb") as source:
        while block := source.read(READ_BYTES):
            digest.update(block)
            size_bytes += len(block)
    return ("file", size_bytes, digest.hexdigest())


if __name__ == "__main__":
    json.dump(tree_digest(sys.argv[1]), sys.stdout)
