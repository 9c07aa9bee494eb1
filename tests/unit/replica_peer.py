"""A node that has replicas of what another one stages, with no Ray between them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

from tests.unit.clock import Clock
from tests.unit.test_node_sender import Shaky
from tune_sync.behind.memory_home import Memory
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.replicas import Replicas, Room
from tune_sync.behind.replicating import Replica
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staged_send import send_attempt
from tune_sync.errors import StoreFullError
from tune_sync.fastpath.budget import Budget
from tune_sync.homes.home import Home, Piece, ReadsAll
from tune_sync.manifest import Seal

CONFIRMED_WITHIN_S = 30.0
BODY = b"x" * 2_000_000  # more than what travels in batches


class Direct(ReadsAll):
    """What a node's agent takes, with nothing between. As `agents.replica_home.ReplicaHome`."""

    keeps_chunks = False

    def __init__(self, replicas: Replicas, seal: Seal, room: Room) -> None:
        self._replicas = replicas
        self._attempt = seal.attempt
        self._sizes = {file.path: file.size_bytes for file in seal.files}
        self._room = room
        self.link, self.seal = replicas.link, replicas.seal

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        self._replicas.discard(checkpoint, attempt)

    def begin(self, checkpoint: str) -> str:
        self._replicas.begin(checkpoint, self._attempt, self._sizes, self._room)
        return self._attempt

    def write(self, key: str, offset_bytes: int, data: bytes) -> None:
        self._replicas.write([Piece(key, 0, len(data))], memoryview(data), offset_bytes)

    def write_batch(self, pieces: list[Piece], data: bytes) -> None:
        self._replicas.write(pieces, memoryview(data))

    def expect(self, key: str, size_bytes: int) -> None: ...

    def flush(self, key: str) -> None: ...

    def finish(self, key: str) -> None: ...


class Peer:
    """The node that has replicas, and as what the other one reaches it."""

    def __init__(self, base: Path, home: Shaky, limit_bytes: int = 1 << 25) -> None:
        shm = base / "shm"
        shm.mkdir(parents=True)
        budget = Budget(shm, limit_bytes)
        self.disk, self.memory = base / "disk", budget.folder / "run" / "peer"
        self.agent = NodeSender(
            self.disk, lambda: home, 1 << 26, memory=self.memory, only_expected=True,
            first_pause_s=0.01,
        )  # fmt: skip
        self.clock, self.has_room, self.slept = Clock(), True, list[float]()
        self.replicas = Replicas(
            self.disk, Memory(self.memory, budget, 2), self.agent.free_memory,
            self.agent.forget, lambda: self.has_room, clock=self.clock, sleep=self._sleep,
        )  # fmt: skip
        self.errors: list[Exception] = []

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        time.sleep(seconds)  # what it waits for is another thread
        end_s = time.monotonic() + CONFIRMED_WITHIN_S
        while self.agent._confirming and time.monotonic() < end_s:
            time.sleep(0.01)

    def copy(self, copies: StagedCopies, checkpoint: str, seal: Seal) -> Replica:
        """See `Replicator.copy`."""
        if self.errors:
            raise self.errors.pop(0)
        try:
            self.send(copies, checkpoint, seal, "memory")
        except StoreFullError:
            self.send(copies, checkpoint, seal, "disk")
        self.agent.wake()
        return Replica("peer")

    def send(
        self, copies: StagedCopies, checkpoint: str, seal: Seal, room: Room, go_on: Any = None
    ) -> None:
        home = cast(Home, Direct(self.replicas, seal, room))
        send_attempt(copies, checkpoint, seal, home, *([go_on] if go_on else []))

    def whole(self, checkpoint: str) -> str:
        """Where there is a whole copy that has the bytes."""
        found = NodeCopies(self.memory, self.disk).whole(checkpoint)
        if found is None:
            return ""
        assert {i.key for i in found.list(checkpoint, True)} >= {f"{checkpoint}/empty"}
        assert found.read(f"{checkpoint}/two") == found.read(f"{checkpoint}/a/one") == BODY
        return "memory" if found.copies.root == self.memory else "disk"
