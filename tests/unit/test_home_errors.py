"""What Ray says of a call to a home agent, as those who write and read there are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    OwnerDiedError,
    RayError,
    RaySystemError,
    RayTaskError,
)

from tune_sync.agents.home_errors import home_error
from tune_sync.agents.remote_home import RemoteHome
from tune_sync.agents.replica_home import peer_error
from tune_sync.errors import HomeLostError, StoreFullError, SyncTimeoutError, TuneSyncError

ROOT, DOING, TIMEOUT_S = "/results/exp", "writing", 60.0
LOST = "0" * 56, b"", ""
GONE = [
    ActorDiedError(),
    ActorUnschedulableError("the node given by NodeAffinitySchedulingStrategy is dead"),
    NodeDiedError("it is gone"),
    RaySystemError("a socket was closed"),
    RayError(),
]
OTHERS: list[tuple[RayError, type[TuneSyncError], str]] = [
    (GetTimeoutError("no answer"), SyncTimeoutError, "within 60 s .sync_timeout.; is its disk"),
    (ObjectLostError(*LOST), HomeLostError, "lost on their way .*ObjectLostError.*; .*again"),
    (OwnerDiedError(*LOST), HomeLostError, "lost on their way .*OwnerDiedError.*; .*again"),
    (OutOfMemoryError("killed"), HomeLostError, "out of memory.*killed.*; run less on that node"),
    (ObjectStoreFullError("no room"), StoreFullError, "no room.*; .*--object-store-memory"),
    (OutOfDiskError("no disk"), StoreFullError, "no disk.*; .*--object-store-memory"),
    (
        ActorUnavailableError("no answer of it", b"0" * 16),
        HomeLostError,
        "not be reached .*no answer of it.*; is its node.* The run goes on; .*max_failures",
    ),
    *((error, HomeLostError, f"home agent of {ROOT}.*; restore the experiment") for error in GONE),
]


def name_of(value: object) -> str:
    return type(value).__name__ if isinstance(value, Exception) else ""


@pytest.mark.parametrize(("error", "kind", "said"), OTHERS, ids=name_of)
@pytest.mark.parametrize("is_of_agent", [False, True])
def test_whoever_asks_is_told_by_an_error_of_ours_what_to_do(
    error: RayError, kind: type[TuneSyncError], said: str, is_of_agent: bool
) -> None:
    """The agent fails with one of Ray's own if what it was sent does not come to it."""
    raised = RayTaskError("write", "", error) if is_of_agent else error
    found = home_error(raised, ROOT, DOING, TIMEOUT_S)
    assert isinstance(found, kind)
    with pytest.raises(kind, match=said) as told:
        raise found
    assert DOING in str(told.value)
    assert "\n" not in str(told.value)


def test_what_the_home_itself_raises_is_raised_here() -> None:
    full = StoreFullError(28, "no room")
    assert home_error(RayTaskError("write", "", full), ROOT, DOING, TIMEOUT_S) is full


class Unreached(RemoteHome):
    """A home whose agent no call gets to."""

    def _find(self) -> Any:
        def fail(*args: object) -> None:
            raise ObjectStoreFullError("no room")

        verbs = ("call", "read", "read_many", "write", "write_batch")
        return SimpleNamespace(**{verb: SimpleNamespace(remote=fail) for verb in verbs})


def test_a_call_that_cannot_even_be_sent_is_told_so_too() -> None:
    home = Unreached("agent", ROOT, "", 1, TIMEOUT_S)
    for ask in (
        lambda: home.info("x"),
        lambda: home.read("x", 0, 1),
        lambda: home.read_many(["x"]),
        lambda: home.discard_attempt("trial/checkpoint_000000", "0" * 32),
    ):
        with pytest.raises(StoreFullError, match="--object-store-memory"):
            ask()


def test_a_replica_that_was_lost_on_its_way_is_sent_again() -> None:
    error = RayTaskError("write_replica", "", ObjectLostError(*LOST))
    assert isinstance(peer_error(error, TIMEOUT_S), HomeLostError)


def test_a_replica_that_finds_no_room_on_its_way_is_no_lost_node() -> None:
    assert isinstance(peer_error(ObjectStoreFullError("no room"), TIMEOUT_S), StoreFullError)
