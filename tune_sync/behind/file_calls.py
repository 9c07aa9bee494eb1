"""What the kernel does with files that no bytes of have to come here for."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path

from tune_sync.errors import StoreFullError

# It copies so much in one call.
STEP_BYTES = 1 << 30
BUFFER_BYTES = 16 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def is_being_written(file: Path) -> bool:
    """Whether any process has a file open, or mapped, for writing. Not where that is not told."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # Who opens it meanwhile breaks the lease: by a signal that does nothing.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(descriptor)
    return False


def copy_file(source: Path, target: Path) -> None:
    """Copy a file as it is now; some file systems share the bytes.

    Raises:
        StoreFullError: There is no room; nothing of it stays.
    """
    try:
        _copy(source, target)
    except OSError as error:
        target.unlink(missing_ok=True)
        if error.errno not in _FULL:
            raise
        raise StoreFullError(error.errno, f"cannot write {target}: {error.strerror}") from error


def _copy(source: Path, target: Path) -> None:
    with open(source, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
        try:
            while os.copy_file_range(reader.fileno(), writer.fileno(), STEP_BYTES):
                pass
        except OSError as error:  # between file systems some kernels cannot
            if error.errno not in _CANNOT:
                raise
        # Nothing, where all is done. Some file systems say that there are no bytes.
        while left := memoryview(reader.read(BUFFER_BYTES)):
            while left:
                left = left[writer.write(left) :]
