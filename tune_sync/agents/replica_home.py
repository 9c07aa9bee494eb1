"""`ReplicaHome`: the staging of another node, as what a copy of one attempt is written to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
from ray.exceptions import (
    GetTimeoutError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayError,
    RayTaskError,
)

from tune_sync.agents.home_errors import no_room_on_the_way, said_by
from tune_sync.agents.in_flight import InFlight
from tune_sync.behind.replica_lane import ReplicaLane
from tune_sync.behind.replica_message import Bytes, Message
from tune_sync.behind.replicas import Room
from tune_sync.errors import (
    DamagedError,
    HomeLostError,
    NotWholeError,
    PeerLostError,
    SyncTimeoutError,
)
from tune_sync.fastpath.transport_names import OBJECT_STORE
from tune_sync.guard import staged_part
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import Piece, ReadsAll
from tune_sync.manifest import Seal

# As for the home agent: what this process has sent and the other node has not confirmed.
IN_FLIGHT_BYTES = 64 << 20
DISCARD_WAIT_S = 5.0


class ObjectStoreLane:
    """Through Ray's object store.

    Args:
        agent: Handle of the other node's agent.
    """

    name = OBJECT_STORE

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def send(self, attempt: str, message: Message, data: Bytes) -> Any:
        """See `ReplicaLane.send`."""
        ref = ray.put(np.frombuffer(data, dtype=np.uint8))
        return self._agent.write_replica.remote(message.to_json(), digest_of(data), ref)

    def flush(self, attempt: str) -> Any:
        """See `ReplicaLane.flush`: each message was waited for."""
        return None

    def close(self) -> None:
        """See `ReplicaLane.close`."""


class ReplicaHome(ReadsAll):
    """What `send_attempt` needs of a `Home`. One a copy of an attempt.

    Args:
        agent: Handle of the other node's agent.
        lane: How bytes go there.
        seal: What it holds, and the id that it gets there: its own, or for readers a new one.
        room: Where to put it.
        timeout_s: How long to wait for any one answer.
    """

    in_place = False
    keeps_chunks = False
    rewrite_s = 0.0

    def __init__(
        self, agent: Any, lane: ReplicaLane, seal: Seal, room: Room, *, timeout_s: float
    ) -> None:
        self._agent = agent
        self._lane = lane
        self._attempt = seal.attempt
        self._sizes = {file.path: file.size_bytes for file in seal.files}
        self._room = room
        self._timeout_s = timeout_s
        self._in_flight = InFlight(IN_FLIGHT_BYTES, self._wait)

    def begin(self, checkpoint: str) -> str:
        """See `Home.begin`."""
        self._call(self._agent.begin_replica, checkpoint, self._attempt, self._sizes, self._room)
        return self._attempt

    def expect(self, key: str, size_bytes: int) -> None:
        """See `Home.expect`: `begin` has told all sizes."""

    def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """See `Home.write`."""
        self._send(key, Message.of_chunk(key, offset_bytes, len(data)), data)

    def write_batch(self, pieces: Sequence[Piece], data: Bytes) -> None:
        """See `Home.write_batch`."""
        self._send(pieces[0].key, Message.of_batch(pieces), data)

    def link(self, source: str, target: str) -> None:
        """See `Home.link`."""
        self._call(self._agent.link_replica, source, target)

    def flush(self, key: str) -> None:
        """See `Home.flush`."""
        self._in_flight.flush(staged_part(key))
        self._wait(self._lane.flush(self._attempt))

    def finish(self, key: str) -> None:
        """See `Home.finish`: the seal waits for all."""

    def seal(self, checkpoint: str, seal: Seal) -> None:
        """See `Home.seal`."""
        self._call(self._agent.seal_replica, checkpoint, seal)

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """See `Home.discard_attempt`. Waited for a moment only: it may follow a hang."""
        with self._ours():
            ref = self._agent.discard_replica.remote(checkpoint, attempt)
            ray.wait([ref], timeout=DISCARD_WAIT_S)

    def _send(self, key: str, message: Message, data: Bytes) -> None:
        def start() -> Any:
            with self._ours():
                return self._lane.send(self._attempt, message, data)

        self._in_flight.send(staged_part(key), len(data), start)

    def _call(self, method: Any, *args: object) -> None:
        with self._ours():
            ref = method.remote(*args)
        self._wait(ref)

    def _wait(self, ref: Any) -> None:
        if ref is not None:
            with self._ours():
                ray.get(ref, timeout=self._timeout_s)

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Errors of Ray leave it as ours."""
        try:
            yield
        except RayError as error:
            raise peer_error(error, self._timeout_s) from error


def peer_error(error: RayError, timeout_s: float) -> Exception:
    """What a call to the other node's agent failed with, as whoever copies there takes it.

    Args:
        error: What Ray raised.
        timeout_s: How long the answer was waited for.
    """
    if isinstance(error, RayTaskError) and isinstance(error.cause, RayError):
        error = error.cause
    if isinstance(error, GetTimeoutError):
        return SyncTimeoutError(
            f"the other node's agent did not answer within {timeout_s:.0f} s; is its disk or the "
            "network hanging?"
        )
    if isinstance(error, (ObjectStoreFullError, OutOfDiskError)):
        return no_room_on_the_way(error, "replicating")
    if not isinstance(error, RayTaskError):  # not RayActorError alone: Ray cannot place it again
        return HomeLostError(
            "the other node's agent died, or bytes were lost on their way to it: "
            f"{said_by(error)}; it is looked for again"
        )
    cause = error.cause if isinstance(error.cause, Exception) else error
    if isinstance(cause, (DamagedError, NotWholeError)):  # the copy; what is here is looked at here
        return PeerLostError(f"{cause}; it is sent again")
    return cause
