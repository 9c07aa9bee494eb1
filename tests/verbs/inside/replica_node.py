"""Another process that takes replicas as a node's agent does, and this one's side of it. No Ray."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.verbs.inside.others import Answers, Other, serve
from tune_sync.behind.lane_choice import LaneChoice
from tune_sync.behind.memory_home import Memory
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.replica_door import Door
from tune_sync.behind.replica_lane import ReplicaLane
from tune_sync.behind.replica_message import Bytes, Message
from tune_sync.behind.replicas import Replicas
from tune_sync.fastpath.budget import Budget
from tune_sync.fastpath.transport_names import OBJECT_STORE
from tune_sync.homes.home import Piece, ReadsAll
from tune_sync.manifest import Seal
from tune_sync.spec import Options

MEMORY_BYTES = 256 << 20
FLUSH_S = 60.0


def take(connection: Connection, memory_dir: str, options: Options) -> None:
    """Another process: takes replicas into memory, and tells what it has."""
    budget = Budget(Path(memory_dir), MEMORY_BYTES)
    disk, memory = Path(memory_dir, "disk"), budget.folder / "run" / "node"
    copies = NodeCopies(memory, disk)
    replicas = Replicas(
        disk, Memory(memory, budget, 2), lambda trial: False, copies.remove, lambda: True
    )
    door = Door(memory_dir, replicas, "127.0.0.1", options)

    def files(request: dict[str, Any]) -> dict[str, bytes] | None:
        checkpoint = request["checkpoint"]
        found = copies.whole(checkpoint)
        if found is None:
            return None
        infos = [info for info in found.list(checkpoint, True) if not info.is_dir]
        return {i.key.removeprefix(f"{checkpoint}/"): bytes(found.read(i.key)) for i in infos}

    answers: Answers = {
        "begin": lambda r: replicas.begin(*r["told"], "memory"),
        "link": lambda r: replicas.link(*r["told"]),
        "seal": lambda r: replicas.seal(*r["told"]),
        "discard": lambda r: replicas.discard(*r["told"]),
        "flush": lambda r: door.intake.flush(r["attempt"], FLUSH_S),
        "files": files,
    }
    serve(connection, door.entrance, answers)


class ByStore:
    """Stands for the object store, which needs Ray: takes nothing."""

    name = OBJECT_STORE

    def send(self, attempt: str, message: Message, data: Bytes) -> Any:
        raise AssertionError("bytes took the way through Ray")

    def flush(self, attempt: str) -> Any: ...

    def close(self) -> None: ...


class Node:
    """The other process, as a sender sees it.

    Attributes:
        came: Transport and bytes, of each flush.
    """

    def __init__(self, options: Options) -> None:
        self.memory_dir = tempfile.mkdtemp(dir="/dev/shm")
        self._options = options
        self.other = Other(take, self.memory_dir, options)
        self.came: list[tuple[str, int]] = []

    def choose(self, options: Options | None = None, before: str = "") -> ReplicaLane:
        choice = LaneChoice(
            options or self._options, lambda: self.other.told, self._flush, ByStore(), FLUSH_S,
            before,
        )  # fmt: skip
        return choice.lane()

    def files(self, checkpoint: str) -> dict[str, bytes] | None:
        found: dict[str, bytes] | None = self.other.ask("files", checkpoint=checkpoint)
        return found

    def close(self) -> None:
        self.other.kill()
        shutil.rmtree(self.memory_dir)

    def _flush(self, attempt: str, transport: str) -> None:
        self.came.append((transport, self.other.ask("flush", attempt=attempt)))


class ReplicaHome(ReadsAll):
    """As `agents.replica_home.ReplicaHome`, with a pipe in place of Ray's calls."""

    keeps_chunks = False

    def __init__(self, node: Node, lane: ReplicaLane, seal: Seal) -> None:
        self._node, self._lane, self._attempt = node, lane, seal.attempt
        self._sizes = {file.path: file.size_bytes for file in seal.files}

    def begin(self, checkpoint: str) -> str:
        self._ask("begin", checkpoint, self._attempt, self._sizes)
        return self._attempt

    def expect(self, key: str, size_bytes: int) -> None: ...

    def write(self, key: str, offset_bytes: int, data: Bytes) -> None:
        self._lane.send(self._attempt, Message.of_chunk(key, offset_bytes, len(data)), data)

    def write_batch(self, pieces: Sequence[Piece], data: Bytes) -> None:
        self._lane.send(self._attempt, Message.of_batch(pieces), data)

    def link(self, source: str, target: str) -> None:
        self._ask("link", source, target)

    def flush(self, key: str) -> None:
        self._lane.flush(self._attempt)

    def finish(self, key: str) -> None: ...

    def seal(self, checkpoint: str, seal: Seal) -> None:
        self._ask("seal", checkpoint, seal)

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        self._ask("discard", checkpoint, attempt)

    def _ask(self, do: str, *told: str | Mapping[str, int] | Seal) -> None:
        self._node.other.ask(do, told=told)
