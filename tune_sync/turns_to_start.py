"""Drivers of one machine that start runs of one name, one after the other.

Ray keeps what a driver writes, before it is stored, in a directory of the machine whose name is the
second of the start and the name of the run. Two that are equal would have one, and each store what
is the other's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# Ray reads the clock a moment after this, so that the next second is too early.
APART_S = 2.0


def take_turn(
    name: str, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until no other run of this name has started within the last two seconds.

    Where this cannot be noted, as in a full temporary directory, nothing is waited for.
    """
    key = hashlib.sha256(name.encode()).hexdigest()[:32]
    with suppress(OSError):
        folder = Path(tempfile.gettempdir(), f"tune_sync-{os.getuid()}-starts")
        folder.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        note = os.open(folder / key, flags, 0o600)
        try:
            fcntl.flock(note, fcntl.LOCK_EX)
            since_s = clock() - os.fstat(note).st_mtime
            if os.fstat(note).st_size and 0 <= since_s < APART_S:
                sleep(APART_S - since_s)
            os.pwrite(note, b"1", 0)
            os.utime(note, (clock(), clock()))
        finally:
            os.close(note)
