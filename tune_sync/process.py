"""Which process something belongs to, so that others can tell whether it is still alive."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import weakref
from collections.abc import Callable
from pathlib import Path

_NUMBERS = itertools.count()
_OWNED = re.compile(r"tune_sync-([0-9a-f]{8})-([0-9]+)-([0-9]+)-[0-9]+")


def machine() -> str:
    """Tells apart boots and process id namespaces: pids compare only within one."""
    try:
        return f"{boot()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def boot() -> str:
    """Tells apart boots of hosts: what was written since, and never synced, is still there."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_of(pid: int) -> str:
    """When process `pid` started, in the kernel's ticks; "" if it is gone or cannot be told."""
    return _stat_of(pid)[1]


def is_stopped(pid: int, start: str) -> bool:
    """Whether process `pid` of this machine that started then is stopped, and may go on."""
    return _stat_of(pid) in (("T", start), ("t", start))


def _stat_of(pid: int) -> tuple[str, str]:
    """Its state, "Z" only if no thread of it goes on, and `start_of`."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        state, threads_count, start = found[0], found[17], found[19]
        return "S" if state == "Z" and int(threads_count) > 1 else state, start
    except (OSError, IndexError):
        return "", ""


def has_ended(pid: int, start: str) -> bool:
    """Whether process `pid` of this machine that started then is surely gone.

    A system may hide the processes of other users (`hidepid`); a signal still finds them. What
    was killed, and its parent has not asked for yet, as in many a container, is gone.
    """
    state, found = _stat_of(pid)
    return found != start or state == "Z" if found else not _is_there(pid)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def owned_name() -> str:
    """A file name that no other call has given, and that says which process it belongs to."""
    pid = os.getpid()
    return f"tune_sync-{_machine_hash()}-{pid}-{start_of(pid) or '0'}-{next(_NUMBERS)}"


def is_own(name: str) -> bool:
    """Whether `name` holds an `owned_name` of this process."""
    found, pid = _OWNED.search(name), os.getpid()
    return found is not None and found.groups() == (
        _machine_hash(), str(pid), start_of(pid) or "0",
    )  # fmt: skip


def is_orphan(name: str) -> bool:
    """Whether `name` holds an `owned_name` of a process of this machine that has ended."""
    found = _OWNED.search(name)
    if found is None or not machine() or found[1] != _machine_hash():
        return False
    return has_ended(int(found[2]), found[3])


def in_forks(renew: Callable[[], None]) -> None:
    """Call a method in each process that is forked from this one, while its object is there."""
    method = weakref.WeakMethod(renew)

    def call() -> None:
        found = method()
        if found is not None:
            found()

    os.register_at_fork(after_in_child=call)


def _machine_hash() -> str:
    return hashlib.sha256(machine().encode()).hexdigest()[:8]
