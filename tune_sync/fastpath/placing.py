"""A file appears at a path whole, or not at all; what was there before stays until then."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tune_sync.errors import StoreFullError
from tune_sync.fastpath.slot import Slot
from tune_sync.process import is_orphan, owned_name

_FULL = {errno.ENOSPC: "no space left", errno.EDQUOT: "quota used up", errno.EROFS: "read-only"}
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)
_CHUNK_BYTES = 64 << 20


def place(slot: Slot, path: Path) -> bool:
    """Make the checkpoint in `slot` the file at `path`.

    On the file system of the slot that is a second link. Elsewhere the bytes are copied and, on
    return, durable.

    Returns:
        Whether that is a link below the directory of the slots. What is there was made to be
        handed over, which needs a file that nobody else has, or may write to.

    Raises:
        StoreFullError: No room; what was at `path` is intact.
    """
    with _temporary(path, slot.capacity_bytes) as temporary:
        is_linked = _is_linked(slot, temporary)
        if not is_linked:
            write(temporary, lambda file: _copy(slot, file))
    return is_linked and slot.path.parent.resolve() in path.parents


def write(temporary: Path, fill: Callable[[int], None]) -> None:
    """Let `fill` write into a new file, and make its bytes durable."""
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        fill(file)
        os.fsync(file)
    finally:
        os.close(file)


def place_by(path: Path, fill: Callable[[Path], None], need_bytes: int = 0) -> None:
    """Make what `fill` writes into a file of another name the file at `path`, durably.

    Raises:
        StoreFullError: No room; what was at `path` is intact.
    """
    with _temporary(path, need_bytes) as temporary:
        fill(temporary)
        file = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def takes_no_file(path: Path) -> bool:
    """Whether a device, a pipe or a socket is there: what is saved goes into it."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def target_of(path: str | os.PathLike[str]) -> Path:
    """The file that a save to `path` replaces: what a symbolic link points to."""
    return Path(os.path.realpath(path))


@contextmanager
def _temporary(path: Path, need_bytes: int) -> Iterator[Path]:
    _sweep(path)
    temporary = path.with_name(_prefix(path) + owned_name())
    try:
        with _room(path, need_bytes):
            yield temporary
            os.replace(temporary, path)
            _sync_folder(path.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def _prefix(path: Path) -> str:
    """Of the names of files that become the one at `path`; its whole name may leave no room."""
    return f".{os.fsencode(path.name)[:128].decode(errors='ignore')}."


@functools.lru_cache(maxsize=4096)
def _sweep(path: Path) -> None:
    """Remove what a process that was killed left of its saves to `path`; once is enough."""
    with contextlib.suppress(OSError):
        for entry in path.parent.iterdir():
            if entry.name.startswith(_prefix(path)) and is_orphan(entry.name):
                entry.unlink()


@contextmanager
def _room(path: Path, need_bytes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = _FULL.get(error.errno or 0)
        if reason is None:
            raise
        found = os.statvfs(path.parent)
        raise StoreFullError(
            error.errno,
            f"cannot write {path}: {reason} (need {need_bytes} bytes, free "
            f"{found.f_bavail * found.f_frsize} bytes beside what was written of it); what was "
            "there before is intact; make room or choose another path",
        ) from error


def _is_linked(slot: Slot, temporary: Path) -> bool:
    if temporary.parent.stat().st_dev != slot.path.parent.stat().st_dev:
        return False
    slot.allow_reading(0o666 & ~_umask())
    try:
        os.link(slot.path, temporary)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        return False
    return True


def _copy(slot: Slot, file: int) -> None:
    view = memoryview(slot.memory)
    try:
        offset_bytes = 0
        while offset_bytes < len(view):
            offset_bytes += os.write(file, view[offset_bytes : offset_bytes + _CHUNK_BYTES])
    finally:
        view.release()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    """The permissions that new files of this process lack."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o077
