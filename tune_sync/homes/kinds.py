"""Where a file or a directory of ours belongs, something else may lie: a FIFO, a link, a device.

To open a FIFO waits for its other end, for good; to open a link for writing makes what it points
to. So files of ours are opened here, which does neither, and names what is in the way.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

# What the system says to who opens a FIFO or a socket, a directory, a device that is not there.
_NO_FILE = frozenset({errno.ENXIO, errno.EISDIR, errno.ENODEV})
_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a link", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
}  # fmt: skip


def open_file(path: Path, flags: int) -> int:
    """As `os.open`, of a regular file; waits for nobody.

    Raises:
        OSError: It cannot be opened; or it is no file, or, with O_NOFOLLOW, a link, and then it
            says what to do. It is no DamagedError: what is damaged may be given up, and this not.
    """
    try:
        descriptor = open_at_once(path, flags)
    except OSError as error:
        is_link = error.errno == errno.ELOOP and flags & os.O_NOFOLLOW
        if error.errno in _NO_FILE or is_link:
            raise _no_file(path) from error
        name_circle(error, path)
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise _no_file(path)


def open_at_once(path: Path, flags: int) -> int:
    """As `os.open`, and does not wait for the other end of a FIFO. It can be a directory, too."""
    flags |= os.O_CLOEXEC | os.O_NOCTTY
    try:
        return os.open(path, flags | os.O_NONBLOCK, 0o666)
    except BlockingIOError:  # a file server gives it back just now, which takes a moment
        return os.open(path, flags, 0o666)


def read_file(path: Path, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
    """Bytes of a file, fewer at its end. Raises as `open_file`."""
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        file.seek(offset_bytes)
        return file.read(-1 if length_bytes is None else length_bytes)


def open_lock(path: Path) -> IO[str]:
    """A file to lock, made where there is none. Raises as `open_file`, also where a link is.

    Through one there would be a lock for each host, and a file where nobody asked for one.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.fdopen(open_file(path, flags), "a")


def read_if_there(path: Path) -> bytes | None:
    """All of a file; None if nothing is there. Raises as `open_file`."""
    try:
        return read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def name_circle(error: OSError, path: Path) -> None:
    """Raise an error that says what to do, if it is that links lead in a circle."""
    if error.errno == errno.ELOOP:
        why = "links lead in a circle, or a mount fails; remove the link, or mount what is missing"
        link = next((at for at in (path, *path.parents) if at.is_symlink()), path)
        raise OSError(errno.ELOOP, why, os.fspath(link)) from error


def refuse_in_the_way(path: Path) -> None:
    """Raise NotADirectoryError if `path`, or what is above it, is there and no directory."""
    at = next((above for above in (path, *path.parents) if os.path.lexists(above)), path)
    if not at.is_dir():
        refuse_other(at)


def refuse_other(path: Path) -> None:
    """Raise NotADirectoryError if `path` is there and no directory, or a link to one."""
    try:
        is_other = not stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:  # whoever uses it is told why
        return
    if is_other:
        raise _no_directory(path)


def _no_directory(path: Path) -> NotADirectoryError:
    why = f"{_kind_of(path)} is where a directory belongs; move it away, once no run writes there"
    return NotADirectoryError(errno.ENOTDIR, why, os.fspath(path))


def _kind_of(path: Path) -> str:
    """What is there, for people; a link is not followed."""
    try:
        return _KINDS[stat.S_IFMT(os.lstat(path).st_mode)]
    except (OSError, KeyError):
        return "something else"


def _no_file(path: Path) -> OSError:
    why = f"{_kind_of(path)} is where a file belongs; move it away, once no run writes there"
    return OSError(errno.EISDIR if path.is_dir() else errno.EINVAL, why, os.fspath(path))
