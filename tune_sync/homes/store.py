"""A store: few blocking verbs on bytes below one root. It orders nothing; see `commit`.

Keys are POSIX strings relative to the root. Every verb may be called from any thread, and, but for
`rename`, twice. What is durable (survives a power cut) is only what a `sync…` verb returned for:
the bytes of a file, and, apart from them, the entry of a file or directory in its parent.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tune_sync.errors import PathRefusedError, StoreDeniedError, StoreError, StoreFullError
from tune_sync.homes import disk, kinds
from tune_sync.homes.large_writes import LARGE_BYTES, start_write_back, write_large
from tune_sync.layout import INTERNAL_DIR, check_key
from tune_sync.manifest import FileEntry

# From this many files on, one syncfs() is cheaper than an fsync() each (measured on ext4:
# 2,000 files of 64 KiB, 0.08 s against 0.38 s); below it, other writers' data is not waited for.
SYNCFS_FROM_FILES = 64
# Before Linux 5.8 it says nothing of bytes that could not be written (syncfs(2)).
SYNCFS_TELLS = [int(n) for n in re.findall(r"\d+", os.uname().release)[:2]] >= [5, 8]

# Of what is surely not there: also of a name that no file can have. Not of links in a circle: an
# automount that fails says the same.
_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
_IN_THE_WAY = frozenset({errno.EEXIST, errno.ENOTDIR, errno.ELOOP})
_FULL = {
    errno.ENOSPC: "no space left", errno.EDQUOT: "quota used up", errno.EROFS: "mounted read-only",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Info:
    """What a key is.

    Attributes:
        key: Relative to the root.
        is_dir: A directory, else a file.
        size_bytes: 0 for a directory.
        modified_s: Seconds since the epoch.
        stored: What a manifest says of it, where whoever lists it has read that.
    """

    key: str
    is_dir: bool
    size_bytes: int
    modified_s: float
    stored: FileEntry | None = None


class Store(Protocol):
    """What `commit` needs of a place that keeps bytes.

    Every verb raises `PathRefusedError` for a key that leaves the root, `StoreFullError` where
    there is no room or all is read-only, `StoreDeniedError` where this user may not use it,
    `FileNotFoundError` where a key is needed and missing, and `OSError` for the rest.
    """

    def info(self, key: str) -> Info | None:
        """What `key` is; None only if it is surely not there."""

    def list(self, key: str) -> list[Info]:
        """The direct entries of a directory, sorted; empty if it is not there."""

    def read(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Bytes of a file, fewer at its end."""

    def make_dir(self, key: str) -> None:
        """Create a directory and its parents; fine if it is there."""

    def write_at(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """Put bytes into a file, which is created if missing; its parent has to be there."""

    def link(self, source: str, target: str) -> None:
        """Make `target` another name for the file `source`, or a copy of it."""

    def rename(self, source: str, target: str) -> None:
        """Move a file (replaces a file) or a directory (`target` is absent), all at once."""

    def remove(self, key: str) -> None:
        """Remove a file; fine if it is not there."""

    def remove_tree(self, key: str) -> None:
        """Remove a directory and what is below; fine if it is not there."""

    def sync(self, key: str) -> None:
        """Make durable: the bytes of a file, or the entries of a directory."""

    def sync_tree(self, key: str) -> None:
        """`sync` for a directory and everything below it."""


class LocalStore:
    """A directory of this machine.

    Args:
        root: The directory; made when first written to.

    Attributes:
        is_hasty: Large writes are sent on their way to the disk at once.
        setting: What names another directory, for messages.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.is_hasty = True
        self.setting = "storage_path"

    def path(self, key: str) -> Path:
        """Where `key` lies. Raises PathRefusedError if that is outside the root."""
        return self.root / check_key(key) if key else self.root

    @disk.reopened
    def info(self, key: str) -> Info | None:
        """See `Store.info`."""
        try:
            found = self.path(key).stat()
        except OSError as error:
            if error.errno in _NOWHERE:
                return None
            self._refuse_denied(error, self.path(key))
            kinds.name_circle(error, self.path(key))
            raise
        is_dir = stat.S_ISDIR(found.st_mode)
        return Info(key, is_dir, 0 if is_dir else found.st_size, found.st_mtime)

    @disk.reopened
    def list(self, key: str) -> list[Info]:
        """See `Store.list`."""
        try:
            names = sorted(os.listdir(self.path(key)))
        except OSError as error:
            if error.errno in _NOWHERE:
                return []
            self._refuse_denied(error, self.path(key))
            kinds.name_circle(error, self.path(key))
            raise
        found = (self.info(f"{key}/{name}" if key else name) for name in names)
        return [info for info in found if info is not None]

    @disk.reopened
    def read(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Store.read`."""
        try:
            return kinds.read_file(self.path(key), offset_bytes, length_bytes)
        except PermissionError as error:
            self._refuse_denied(error, self.path(key))
            raise

    @disk.reopened
    def make_dir(self, key: str) -> None:
        """See `Store.make_dir`."""
        path = self._inside(key)
        with self.room(path):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                if error.errno in _IN_THE_WAY:
                    kinds.refuse_in_the_way(path)
                raise

    @disk.reopened
    def write_at(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """See `Store.write_at`."""
        path = self._inside(key)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with self.room(path, len(data)):
            try:
                descriptor = os.open(path, flags, 0o666)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise PathRefusedError(f"{path} is a link; remove the link") from error
            try:
                left, at_bytes = memoryview(data), offset_bytes
                written = write_large(descriptor, at_bytes, left) if self.is_hasty else 0
                while left := left[written:]:
                    at_bytes += written
                    written = os.pwrite(descriptor, left, at_bytes)
                if self.is_hasty and len(data) >= LARGE_BYTES:
                    start_write_back(descriptor, offset_bytes, len(data))
            finally:
                os.close(descriptor)

    def link(self, source: str, target: str) -> None:
        """See `Store.link`."""
        try:
            os.link(self._inside(source), self._inside(target))
        except FileExistsError:  # a second call, unless it is another file
            if not os.path.samefile(self.path(source), self.path(target)):
                raise
        except OSError:  # a file system without hard links
            with self.room(self.path(target)):
                shutil.copyfile(self.path(source), self.path(target))

    @disk.reopened
    def rename(self, source: str, target: str) -> None:
        """See `Store.rename`."""
        with self.room(self.path(target)):
            os.rename(self._inside(source), self._inside(target))

    @disk.reopened
    def remove(self, key: str) -> None:
        """See `Store.remove`."""
        with self.room(self.path(key)):
            self._inside(key).unlink(missing_ok=True)

    @disk.reopened
    def remove_tree(self, key: str) -> None:
        """See `Store.remove_tree`."""
        path = self._inside(key)
        with self.room(path):
            disk.remove_tree(path)

    @disk.reopened
    def sync(self, key: str) -> None:
        """See `Store.sync`."""
        self._sync_path(self._inside(key))

    @disk.reopened
    def sync_tree(self, key: str) -> None:
        """See `Store.sync_tree`."""
        top = self._inside(key)
        if not top.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(top))
        walked = list(disk.walk(top))
        paths = [Path(base, name) for base, names in walked for name in names]
        if len(paths) >= SYNCFS_FROM_FILES and self._sync_file_system(top):
            return
        for path in (*paths, *(base for base, _ in walked)):
            self._sync_path(path)

    def _sync_path(self, path: Path) -> None:
        with self.room(path):
            descriptor = kinds.open_at_once(path, os.O_RDONLY)
            try:
                disk.fsync(descriptor, path)
            finally:
                os.close(descriptor)

    def _sync_file_system(self, path: Path) -> bool:
        """One syncfs() for all below `path`; False where the system has no such call to trust."""
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None or not SYNCFS_TELLS:
            return False
        with self.room(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if syncfs(descriptor) != 0:
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code), str(path))
            finally:
                os.close(descriptor)
        return True

    def _inside(self, key: str) -> Path:
        """The path of `key` for a change; refuses one that a link leads out of the root."""
        path = self.path(key)
        if self._has_link_above(key):  # else it is where it says: no need to resolve it
            root, real = os.path.realpath(self.root), os.path.realpath(path.parent)
            if real != root and not real.startswith(root + os.sep):
                raise PathRefusedError(f"{path} is a link out of {self.root}; remove the link")
            ours = f"{INTERNAL_DIR}/"  # to empty one directory of ours may not empty another one
            top = os.path.realpath(self.root / INTERNAL_DIR)
            if key.startswith(ours) and real != str(Path(top, key.removeprefix(ours)).parent):
                raise PathRefusedError(f"{path} is reached through a link; remove the link")
        return path

    def _has_link_above(self, key: str) -> bool:
        """Whether a directory between the root and `key` is a link."""
        above = str(self.root)
        for name in key.split("/")[:-1]:
            above += "/" + name
            try:
                if stat.S_ISLNK(os.lstat(above).st_mode):
                    return True
            except (FileNotFoundError, NotADirectoryError):
                return False
        return False

    def _refuse_denied(self, error: OSError, path: Path) -> None:
        """Raise StoreDeniedError if that is why: it names the file that this user may not use."""
        if not isinstance(error, PermissionError):
            return
        named = [name for name in (error.filename, error.filename2) if isinstance(name, str)]
        raise StoreDeniedError(
            error.errno,
            f"user {os.geteuid()} may not use {' or '.join(named) or path}: {error.strerror}; what "
            f"is stored is intact; let this user read and write there, or choose another "
            f"{self.setting}",
        ) from error

    @contextmanager
    def room(self, path: Path, need_bytes: int = 0) -> Iterator[None]:
        """Turn "full", "read-only" and "denied" into errors that say what to do.

        Args:
            path: What is being written.
            need_bytes: How much. What of it was written already is not free any more.

        Raises:
            StoreFullError, StoreDeniedError: Instead of such an OSError.
        """
        try:
            yield
        except StoreError:  # said so already
            raise
        except OSError as error:
            self._refuse_denied(error, path)
            reason = _FULL.get(error.errno or 0)
            if reason is None:
                raise
            why = f"{reason}; what is stored is intact; mount it for writing,"
            if error.errno != errno.EROFS:
                sizes = f"need {need_bytes} bytes, free {_free_text(self.root)}"
                sizes += " beside what was written of it" if need_bytes else ""
                why = f"{reason} ({sizes}); what is stored is intact; make room"
            raise StoreFullError(
                error.errno, f"cannot write {path}: {why} or choose another {self.setting}"
            ) from error


def remove_either(store: Store, key: str) -> None:
    """Remove a directory with what is below; or a link, and nothing of what it points to.

    For a checkpoint that somebody moved elsewhere and linked.
    """
    try:
        store.remove_tree(key)
    except OSError as error:
        try:
            store.remove(key)
        except OSError:
            raise error from None


def is_linked_away(store: Store, key: str) -> bool:
    """Whether a link, at `key` or above it, leads to what is not seen just now.

    The disk that it leads to may not be mounted. A rename onto itself changes nothing, and needs
    a name that is there.
    """
    try:
        store.rename(key, key)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PathRefusedError:  # a link above leads out of the root
        return True
    return True


def sync_with_all_above(directory: Path) -> None:
    """Make a directory durable whose parents may be new too, as far as its file system goes.

    A power cut would take them, and all in them.

    Raises:
        StoreError, OSError: The disk fails.
    """
    device = directory.stat().st_dev
    for above in (*reversed(directory.parents), directory):
        if above.stat().st_dev == device:
            with suppress(StoreDeniedError):  # who may write there may not always read
                LocalStore(above).sync("")


def free_bytes(path: Path) -> int:
    """Bytes that a user may still write below `path`, or -1 if that cannot be told."""
    found = _file_system(path)
    return found.f_bavail * found.f_frsize if found else -1


def _free_text(path: Path) -> str:
    """What is free, for people. A disk with room for bytes may have none for one more file."""
    found = _file_system(path)
    inodes = f" and {found.f_favail} inodes" if found and found.f_files else ""
    return f"{free_bytes(path)} bytes{inodes}"


def _file_system(path: Path) -> os.statvfs_result | None:
    for candidate in (path, *path.parents):
        with suppress(OSError):
            return os.statvfs(candidate)
    return None
