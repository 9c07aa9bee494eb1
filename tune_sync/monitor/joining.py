"""Connects a command to the Ray cluster of its machine, and never starts one."""

from __future__ import annotations

import threading

from tune_sync.monitor.environment import ADDRESS, cluster_address

# Longer than a busy cluster needs; Ray itself tries for minutes.
JOIN_TIMEOUT_S = 15.0
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
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        named = f"{ADDRESS}={address}" if address else "the Ray cluster of this machine"
        return (
            f"{named} does not answer within {timeout_s:.0f} s, or does not let this process in "
            "(RAY_AUTH_MODE=token, where it wants a token)"
        )
    return f"{ADDRESS}={address}: {failed[0]}" if failed and address else ""


def _join(failed: list[str]) -> None:
    try:
        import ray
    except ModuleNotFoundError:
        return
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # what Ray raises depends on what is there
        failed.append(str(error).strip().partition("\n")[0])
