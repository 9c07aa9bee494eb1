"""What a node's agent does for other nodes: it takes replicas of what they have staged."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import ray

from tune_sync.behind.node_copies import CopyHere
from tune_sync.behind.replica_door import Door, Entrance
from tune_sync.behind.replica_message import Message
from tune_sync.behind.replicas import Replicas, Room
from tune_sync.behind.united_copy import UnitedCopy, whole_of
from tune_sync.errors import PathRefusedError
from tune_sync.fastpath.transport_names import OBJECT_STORE
from tune_sync.homes.digests import check_digest, digest_of
from tune_sync.manifest import Seal
from tune_sync.spec import Options

logger = logging.getLogger("ray.tune_sync")

# Bulk writes must not keep short questions waiting; nor must those who wait for them to be done,
# each in a thread that does nothing else.
GROUPS = {"replicas": 4, "replica_flushes": 64}
# Less than whoever calls waits for an answer.
FLUSH_TIMEOUT_S = 50.0


class ReplicaService:
    """A part of `NodeAgent`. Its methods are Ray calls of other nodes.

    Who may call them is Ray's matter. Every key is checked against staging, every chunk against its
    digest, and nothing of what is stored is unpickled.
    """

    def _take_replicas(self, replicas: Replicas, options: Options) -> None:
        """Begin with it."""
        self._replicas = replicas
        self._options = options
        self._came_bytes: Counter[str] = Counter()
        self._unreplicated = ""
        self._door: Door | None = None
        self._door_lock = threading.Lock()

    def replica_door(self) -> Entrance:
        """Where replicas are taken by transports. Raises what `Door` raises."""
        with self._door_lock:
            if self._door is None:
                host = ray.util.get_node_ip_address()
                self._door = Door(self._options.memory_dir, self._replicas, host, self._options)
                _say_lacks(self._door.entrance.lacks)
        return self._door.entrance

    def tell_unreplicated(self, why: str) -> None:
        """Hear which report of this node has no replica, and why; "": it has one after all."""
        self._unreplicated = why

    def _close_replica_door(self) -> None:
        """Let nobody in any more, and give the memory for messages back."""
        with self._door_lock:
            if self._door is not None:
                self._door.close()

    @ray.method(concurrency_group="replica_flushes")  # type: ignore[untyped-decorator]
    def flush_replica(self, attempt: str, transport: str) -> None:
        """Return once all that came by a transport is in its place. Raises what went wrong."""
        if self._door is not None and transport in self._door.entrance.lacks:
            self._came_bytes[transport] += self._door.intake.flush(attempt, FLUSH_TIMEOUT_S)

    def begin_replica(
        self, checkpoint: str, attempt: str, sizes: Mapping[str, int], room: Room
    ) -> None:
        """See `Replicas.begin`."""
        self._replicas.begin(checkpoint, attempt, sizes, room)

    @ray.method(concurrency_group="replicas")  # type: ignore[untyped-decorator]
    def write_replica(self, message: bytes, digest: str, data: np.ndarray[Any, Any]) -> None:
        """Bytes that came through the object store."""
        view = memoryview(data)
        said = Message.from_json(message, len(view))
        check_digest(said.pieces[0].key, view, digest)
        self._came_bytes[OBJECT_STORE] += len(view)
        self._replicas.write(said.pieces, view, said.at_bytes)

    def link_replica(self, source: str, target: str) -> None:
        """See `Replicas.link`."""
        self._replicas.link(source, target)

    def seal_replica(self, checkpoint: str, seal: Seal) -> None:
        """See `Replicas.seal`. Call `flush_replica` before, if bytes came by a transport."""
        self._replicas.seal(checkpoint, seal)
        self.wake()

    def discard_replica(self, checkpoint: str, attempt: str) -> None:
        """See `Replicas.discard`."""
        self._replicas.discard(checkpoint, attempt)
        if self._door is not None:
            self._door.intake.forget(attempt)

    def ask_copy(self, checkpoint: str, verb: str, *args: object) -> object:
        """What a whole copy that is here says of itself. Raises FileNotFoundError without one."""
        if verb not in ("info", "list"):
            raise PathRefusedError(f"{verb!r} is not asked of a copy")
        return getattr(self._copy_of(checkpoint), verb)(*args)

    @ray.method(concurrency_group="replicas")  # type: ignore[untyped-decorator]
    def read_copy(
        self, checkpoint: str, key: str, offset_bytes: int, length_bytes: int
    ) -> tuple[str, np.ndarray[Any, Any]]:
        """Bytes of a file of a whole copy that is here, with their digest."""
        data = self._copy_of(checkpoint).read(key, offset_bytes, length_bytes)
        return digest_of(data), np.frombuffer(data, dtype=np.uint8)

    def _copy_of(self, checkpoint: str) -> CopyHere | UnitedCopy:
        found = whole_of(self._replicas.copies, checkpoint)
        if found is None:
            raise FileNotFoundError(f"there is no whole copy of {checkpoint} here")
        return found

    def wake(self) -> None:
        """See `NodeAgent.wake`."""
        raise NotImplementedError

    def _came_by(self) -> dict[str, int]:
        """Transport -> bytes of replicas that came by it, since this agent was started."""
        return dict(self._came_bytes)

    def _sweep_replicas(self) -> None:
        for checkpoint in self._replicas.sweep():
            logger.warning("a replica of %s did not arrive whole; it is dropped", checkpoint)


def _say_lacks(lacks: Mapping[str, str]) -> None:
    for name, lacking in lacks.items():
        if lacking:
            logger.info("replicas do not come here by %r: %s", name, lacking)
