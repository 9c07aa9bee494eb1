"""A bucket on a host that is reached by SFTP, through paramiko.

Not through fsspec's `SFTPFileSystem`, which has one session that hangs where several threads use
it, and takes any host for the right one.
"""

from __future__ import annotations

import builtins
import errno
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tune_sync.buckets.renaming_bucket import ABSENT, Entry, RenamingBucket
from tune_sync.buckets.sftp_sessions import SftpSessions
from tune_sync.errors import ConfigError

# Between two looks at what the server says of what was written.
WRITE_BYTES = 8 << 20
_FSYNC = "fsync@openssh.com"
# All that a server says of most errors is that it has failed.
_NO_ROOM = re.compile("failure|space|quota|read-only", re.IGNORECASE)
_FULL = "it says only that it failed, as where its disk or a quota is full, or it is read-only"


class SftpBucket(RenamingBucket):
    """See `bucket.Bucket`.

    Args:
        url: For messages.
        sessions: With the server.
        root: Absolute path of the root there.
    """

    def __init__(self, url: str, sessions: SftpSessions, root: str) -> None:
        super().__init__(root)
        self._url = url
        self._sessions = sessions

    def rebuild(self) -> None:
        """New sessions, with the credentials of now."""
        self._sessions.renew()

    def _stat(self, path: str) -> Entry:
        with self._sessions.one() as sftp:
            return _entry("", sftp.stat(path))

    def _scan(self, path: str) -> builtins.list[Entry]:
        with self._sessions.one() as sftp:
            found = sftp.listdir_attr(path)
        known = [one for one in found if stat.S_ISDIR(one.st_mode) or stat.S_ISREG(one.st_mode)]
        return [_entry(one.filename, one) for one in known]

    def _read(self, path: str, offset_bytes: int, length_bytes: int | None) -> bytes:
        with self._sessions.one() as sftp, sftp.open(path, "rb") as file:
            found = _entry("", file.stat())
            if found.is_dir:
                raise IsADirectoryError(path)
            left_bytes = max(0, found.size_bytes - offset_bytes)
            wanted = left_bytes if length_bytes is None else min(left_bytes, length_bytes)
            # It asks for all blocks of it before it waits for the first.
            return b"".join(file.readv([(offset_bytes, wanted)])) if wanted else b""

    def _write(self, path: str, chunks: Iterable[bytes | memoryview], *, waits: bool) -> None:
        with self._sessions.one(counts=not waits) as sftp:
            file = self._made(sftp, path)
            try:
                for chunk in chunks:
                    self._append(file, bytes(chunk))
                with _telling_full():
                    self._sync(sftp, file)
            finally:
                file.close()

    def _made(self, sftp: Any, path: str) -> Any:
        with _telling_full():
            try:
                return sftp.open(path, "wxb")
            except FileNotFoundError:
                _make_dirs(sftp, self._root)
                return sftp.open(path, "wxb")

    def _append(self, file: Any, data: bytes) -> None:
        for start in range(0, len(data), WRITE_BYTES):
            piece = memoryview(data)[start : start + WRITE_BYTES]
            with _telling_full():
                # Blocks are sent without a wait for their answers. Only where one is sent that is
                # waited for are those of all before it looked at, and errors in them raised.
                file.set_pipelined(True)
                file.write(piece[:-1])
                file.set_pipelined(False)
                file.write(piece[-1:])

    def _sync(self, sftp: Any, file: Any) -> None:
        """Have it on the disk, where the server can do that: paramiko has no method for it."""
        from paramiko.sftp import CMD_EXTENDED

        try:
            sftp._request(CMD_EXTENDED, _FSYNC, file.handle)
        except OSError as error:
            if not _is_unsupported(error):
                raise

    def _move(self, aside: str, path: str) -> None:
        with self._sessions.one() as sftp:
            try:
                try:
                    sftp.posix_rename(aside, path)
                except FileNotFoundError:
                    _make_dirs(sftp, path.rpartition("/")[0])
                    sftp.posix_rename(aside, path)
            except OSError as error:
                if not _is_unsupported(error):
                    raise
                raise ConfigError(
                    f"{self._url}: the server has no rename that replaces a file "
                    "(posix-rename@openssh.com), by which each one is put; OpenSSH has it"
                ) from error

    def _remove(self, path: str) -> None:
        with self._sessions.one() as sftp:
            try:
                sftp.remove(path)
            except ABSENT:
                raise
            except OSError:  # of a directory it says only that it failed
                if _entry("", sftp.stat(path)).is_dir:
                    raise IsADirectoryError(path) from None
                raise

    def _rmdir(self, path: str) -> None:
        with self._sessions.one() as sftp:
            sftp.rmdir(path)


@contextmanager
def _telling_full() -> Iterator[None]:
    """A failure that the server gives no other reason for is a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None and _NO_ROOM.search(str(error)):
            raise OSError(errno.ENOSPC, _FULL) from error
        raise


def _make_dirs(sftp: Any, path: str) -> None:
    """Make a directory and those above it, as far as they are not there."""
    try:
        with _telling_full():
            sftp.mkdir(path)
    except FileNotFoundError:
        parent = path.rpartition("/")[0]
        if not parent:
            raise
        _make_dirs(sftp, parent)
        _make_dirs(sftp, path)
    except OSError:  # it is there, most often: the server says only that it failed
        found = None
        with suppress(*ABSENT):
            found = _entry("", sftp.stat(path))
        if found is None:
            raise
        if not found.is_dir:
            raise OSError(f"{path} is a file, where a directory is needed") from None


def _entry(name: str, found: Any) -> Entry:
    is_dir = stat.S_ISDIR(found.st_mode or 0)
    return Entry(name, is_dir, int(found.st_size or 0), float(found.st_mtime or 0))


def _is_unsupported(error: OSError) -> bool:
    return error.errno is None and "support" in str(error).lower()
