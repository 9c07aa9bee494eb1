"""Which files a checkpoint directory holds, and the rules for links.

| in the directory | what is sent |
|---|---|
| link to a file or directory inside it | the data, as a file or directory of its own |
| hard links to one file | the bytes once; hard links again at the destination |
| link that leaves the directory (also absolute) | refused |
| link to its own parent, or in a circle | refused |
| broken link | refused |
| socket, FIFO, device | refused |
| a name that is not UTF-8 | refused |
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from tune_sync.errors import PathRefusedError


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A regular file to send.

    Attributes:
        path: Relative to the scanned directory, with "/".
        source: Where its bytes are.
        size_bytes: Its length when scanned.
        same_as: `path` of an earlier entry that is a hard link to the same bytes, or "".
        is_given: Its bytes may be had instead of a copy of them.
    """

    path: str
    source: Path
    size_bytes: int
    same_as: str = ""
    is_given: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """A scanned directory: its files and its directories (empty ones too), sorted."""

    files: tuple[TreeFile, ...]
    directories: tuple[str, ...]


def scan(root: Path) -> Tree:
    """List what `root` holds, following the rules for links above.

    Raises:
        FileNotFoundError, NotADirectoryError: `root` is no directory.
        PathRefusedError: A link or special file that cannot be sent; names it and says why.
    """
    try:
        real_root = Path(os.path.realpath(root, strict=True))
    except FileNotFoundError as error:  # which names the first part of it that is not there
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(root)) from error
    if not real_root.is_dir():
        raise NotADirectoryError(f"{root} is not a directory")
    files: list[tuple[TreeFile, os.stat_result]] = []
    directories: list[str] = []
    _walk(real_root, real_root, "", (str(real_root),), files, directories)
    return Tree(_merge_hard_links(files), tuple(sorted(directories)))


def _walk(
    root: Path, here: Path, prefix: str, above: tuple[str, ...],
    files: list[tuple[TreeFile, os.stat_result]], directories: list[str],
) -> None:  # fmt: skip
    with os.scandir(here) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            path = _checked(prefix + entry.name)
            real = Path(entry.path)
            if entry.is_symlink():
                real = _resolve(root, Path(entry.path), path)
            found = real.stat() if entry.is_symlink() else entry.stat()
            if stat.S_ISDIR(found.st_mode):
                if entry.is_symlink() and str(real) in above:
                    raise PathRefusedError(
                        f"link {path!r} points to a directory that holds it; remove the link"
                    )
                directories.append(path)
                _walk(root, real, path + "/", (*above, str(real)), files, directories)
            elif stat.S_ISREG(found.st_mode):
                files.append((TreeFile(path, real, found.st_size), found))
            else:
                raise PathRefusedError(f"{path!r} is neither a file nor a directory; remove it")


def _checked(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise PathRefusedError(
            f"the name {os.fsencode(path)!r} is not UTF-8, as names have to be; rename it"
        ) from error
    return path


def _resolve(root: Path, link: Path, path: str) -> Path:
    try:
        real = Path(os.path.realpath(link, strict=True))
    except FileNotFoundError as error:
        raise PathRefusedError(
            f"link {path!r} is broken: it points to {os.readlink(link)!r}; remove the link"
        ) from error
    except OSError as error:
        raise PathRefusedError(f"link {path!r} goes in a circle; remove the link") from error
    if real != root and root not in real.parents:
        raise PathRefusedError(
            f"link {path!r} leaves the checkpoint (to {real}); copy the file into it instead"
        )
    return real


def _merge_hard_links(files: list[tuple[TreeFile, os.stat_result]]) -> tuple[TreeFile, ...]:
    first: dict[tuple[int, int], str] = {}
    merged = []
    for file, found in sorted(files, key=lambda f: f[0].path):
        same_as = ""
        if found.st_nlink > 1:
            same_as = first.setdefault((found.st_dev, found.st_ino), file.path)
            same_as = "" if same_as == file.path else same_as
        merged.append(replace(file, same_as=same_as) if same_as else file)
    return tuple(merged)
