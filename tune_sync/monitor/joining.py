"""Connects a command to the Ray cluster of its machine, and never starts one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tune_sync.monitor.environment import ADDRESS, cluster_address

# Longer than a busy cluster needs; Ray itself tries for minutes.
JOIN_TIMEOUT_S = 15.0
# Of a run that is over a cluster has little to add; and it may be another user's, which Ray finds
# by its processes, and which lets nobody in. Ray's import takes seconds of it.
ENDED_TIMEOUT_S = 5.0
# With it Ray starts a cluster of its own.
LOCAL = "local"


def join_cluster(timeout_s: float) -> str:
    """Connect to the cluster of this machine, or that of `RAY_ADDRESS`, if there is one.

    Returns:
        Why there is none, if one was named; else "". A connection that is too late may go on in
        a thread, so the caller should end its process without waiting for that.
    """
    address = cluster_address()
    if address == LOCAL:
        return ""
    failed: list[str] = []
    thread = threading.Thread(target=_join, args=(failed,), name="tune_sync-join", daemon=True)
    with muted():
        thread.start()
        thread.join(timeout_s)
    if thread.is_alive():
        named = f"{ADDRESS}={address}" if address else "the Ray cluster of this machine"
        return (
            f"{named} does not answer within {timeout_s:.0f} s, or does not let this process in "
            "(RAY_AUTH_MODE=token, where it wants a token)"
        )
    return f"{ADDRESS}={address}: {failed[0]}" if failed and address else ""


@contextmanager
def muted() -> Iterator[None]:
    """Nothing of this process gets to the terminal as an error: Ray's core would fill it."""
    sys.stderr.flush()
    shown, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)
        os.close(nowhere)


def _join(failed: list[str]) -> None:
    try:
        import ray
    except ModuleNotFoundError:
        return
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # what Ray raises depends on what is there
        failed.append(str(error).strip().partition("\n")[0])
