"""Who else has a file open or mapped. The kernel tells: it gives a lease where nobody has."""

from __future__ import annotations

import fcntl
import signal


def why_not_leased(descriptor: int, kind: int) -> int:
    """Ask for a lease, and give it back at once.

    Args:
        descriptor: Of the file.
        kind: `fcntl.F_WRLCK`: nobody else has it open at all. `fcntl.F_RDLCK`: nobody for writing.

    Returns:
        0, or the number of the error: EAGAIN if somebody has; others where leases are not known.
    """
    try:
        # Who opens it meanwhile breaks the lease: by a signal that does nothing. The default one
        # would end this process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno or -1
    return 0
