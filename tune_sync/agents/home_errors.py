"""What Ray says when a call to a home agent fails, as an error of ours. Pure."""

from __future__ import annotations

import errno

from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
)

from tune_sync.errors import HomeLostError, StoreFullError, SyncTimeoutError


def home_error(error: RayError, root: str, doing: str, timeout_s: float) -> Exception:
    """What whoever writes to a home, or reads there, is told.

    Args:
        error: What Ray raised.
        root: The experiment directory.
        doing: What was asked for.
        timeout_s: How long the answer was waited for.
    """
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        if not isinstance(error.cause, RayError):
            return error.cause
        error = error.cause  # what was sent to the agent has not come to it
    if isinstance(error, GetTimeoutError):
        return SyncTimeoutError(
            f"{doing}: the home of {root} did not answer within {timeout_s:.0f} s (sync_timeout); "
            "is its disk or the network hanging?"
        )
    if isinstance(error, (ObjectStoreFullError, OutOfDiskError)):
        return no_room_on_the_way(error, doing)
    if isinstance(error, ObjectLostError):
        return HomeLostError(
            f"{doing}: bytes were lost on their way to or from the home of {root} "
            f"({type(error).__name__}): a node or a process of Ray died, or the network fails; "
            "look at both nodes, then try it again"
        )
    if isinstance(error, OutOfMemoryError):
        return HomeLostError(
            f"{doing}: the node of the home agent of {root} is out of memory: {said_by(error)}; "
            "run less on that node, then restore the experiment"
        )
    if isinstance(error, ActorUnavailableError):
        return HomeLostError(
            f"{doing}: the home agent of {root} could not be reached for a while: "
            f"{said_by(error)}; is its node, or the agent, stopped, overloaded or cut off? The run "
            "goes on; have trials tried again, with FailureConfig(max_failures=...)"
        )
    return HomeLostError(
        f"{doing}: the home agent of {root} died: {said_by(error)}; restore the experiment to go on"
    )


def no_room_on_the_way(error: RayError, doing: str) -> StoreFullError:
    """Ray's object store, through which bytes go to other nodes, takes no more on this one."""
    return StoreFullError(
        errno.ENOSPC,
        f"{doing}: Ray's object store on this node has no room: {said_by(error)}; give it more "
        "(ray start --object-store-memory), make room where Ray spills to, or run less on the node",
    )


def said_by(error: Exception) -> str:
    """The first line of a message, which Ray's have many of."""
    return (str(error).splitlines() or [type(error).__name__])[0]
