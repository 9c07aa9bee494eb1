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
# Of several that start at once each waits for those before it.
LOCK_TRIES, LOCK_TRY_S = 200, 0.1


def take_turn(
    name: str, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until no other run of this name has started within the last two seconds.

    Where this cannot be noted, as in a full temporary directory, nothing is waited for; and no
    longer than 20 s for others.
    """
    key = hashlib.sha256(name.encode()).hexdigest()[:32]
    with suppress(OSError):
        folder = Path(tempfile.gettempdir(), f"tune_sync-{os.getuid()}-starts")
        folder.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        note = os.open(folder / key, flags, 0o600)
        try:
            _lock(note, sleep)
            since_s = clock() - os.fstat(note).st_mtime
            if os.fstat(note).st_size and 0 <= since_s < APART_S:
                sleep(APART_S - since_s)
            os.pwrite(note, b"1", 0)
            os.utime(note, (clock(), clock()))
        finally:  # to close it does not unlock it while a process lives that was forked just now
            fcntl.flock(note, fcntl.LOCK_UN)
            os.close(note)


def _lock(note: int, sleep: Callable[[float], None]) -> None:
    """Raises BlockingIOError if somebody has it for long: one that is stopped just then."""
    for _ in range(LOCK_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        sleep(LOCK_TRY_S)
    fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
